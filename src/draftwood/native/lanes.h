// Sixteen float lanes, and products of numbers in them, for the instruction set that the file is compiled for.
//
// Every sum has one order: along the inputs of one output, or over fixed lanes. It never depends on other outputs.
// ``nibble`` has those of one number of sixteen four-byte words, the lowest is 0; ``twice`` has each of eight numbers twice.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

inline float from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
inline float number(float weight) { return weight; }
inline float number(uint16_t weight) { return from_bits((uint32_t)weight << 16); }

#if defined(__AVX512F__)
struct Lanes {
    __m512 v;
};
inline Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Lanes a) { _mm512_storeu_ps(p, a.v); }
inline Lanes splat(float a) { return {_mm512_set1_ps(a)}; }
inline Lanes operator+(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Lanes operator-(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Lanes operator*(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Lanes operator/(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Lanes greater(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Lanes lesser(Lanes a, Lanes b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Lanes nearest(Lanes a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Lanes times_power(Lanes a, Lanes exponent) { return {_mm512_scalef_ps(a.v, exponent.v)}; }
inline float sum(Lanes a) { return _mm512_reduce_add_ps(a.v); }
inline float greatest(Lanes a) { return _mm512_reduce_max_ps(a.v); }
inline Lanes bytes(const uint8_t* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)))}; }
struct Nibbles {
    __m512i v;
};
inline Nibbles load_nibbles(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline Lanes nibble(Nibbles a, int n) {
    const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return {_mm512_permutexvar_ps(_mm512_srli_epi32(a.v, 4 * n), numbers)};  // of the lowest four bits
}
inline Lanes twice(const float* p) {
    const __m512i order = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return {_mm512_permutexvar_ps(order, _mm512_castps256_ps512(_mm256_loadu_ps(p)))};
}
struct Pairs {
    __m512i v;
};
inline Pairs load_pairs(const uint16_t* p) { return {_mm512_loadu_si512(p)}; }
inline Lanes widened(const uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
#if defined(__AVX512BF16__)
inline void narrow(uint16_t* p, Lanes a) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(a.v)); }
inline void narrow(uint16_t* p, Lanes a, Lanes b) { _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(b.v, a.v)); }
#else
inline Lanes low(Pairs a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(a.v, 16))}; }
inline Lanes high(Pairs a) { return {_mm512_castsi512_ps(_mm512_and_si512(a.v, _mm512_set1_epi32(0xffff0000)))}; }
inline void narrow(uint16_t* p, Lanes a) {
    __m512i u = _mm512_castps_si512(a.v), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, odd), _mm512_set1_epi32(0x7fff)), 16);
    up = _mm512_mask_mov_epi32(up, _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(up));
}
#endif

#elif defined(__AVX2__) && defined(__FMA__)
struct Lanes {
    __m256 a, b;
};
inline Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Lanes x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
inline Lanes splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Lanes operator+(Lanes x, Lanes y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Lanes operator-(Lanes x, Lanes y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Lanes operator*(Lanes x, Lanes y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Lanes operator/(Lanes x, Lanes y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline Lanes fma(Lanes x, Lanes y, Lanes z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline Lanes greater(Lanes x, Lanes y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline Lanes lesser(Lanes x, Lanes y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline Lanes nearest(Lanes x) { return {_mm256_round_ps(x.a, 8), _mm256_round_ps(x.b, 8)}; }
inline __m256 power(__m256 e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(e), _mm256_set1_epi32(127)), 23));
}
inline Lanes times_power(Lanes x, Lanes e) { return {_mm256_mul_ps(x.a, power(e.a)), _mm256_mul_ps(x.b, power(e.b))}; }
template <class F>
inline float folded(__m256 x, F both) {
    __m128 y = both(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = both(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(both(y, _mm_shuffle_ps(y, y, 1)));
}
inline float sum(Lanes x) {
    return folded(_mm256_add_ps(x.a, x.b), [](__m128 p, __m128 q) { return _mm_add_ps(p, q); });
}
inline float greatest(Lanes x) {
    return folded(_mm256_max_ps(x.a, x.b), [](__m128 p, __m128 q) { return _mm_max_ps(p, q); });
}
inline __m256 eight_bytes(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p))); }
inline Lanes bytes(const uint8_t* p) { return {eight_bytes(p), eight_bytes(p + 8)}; }
struct Nibbles {
    __m256i a, b;
};
inline Nibbles load_nibbles(const uint8_t* p) {
    return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
}
inline __m256 nibble(__m256i x, int n) {
    return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(x, 4 * n), _mm256_set1_epi32(15)));
}
inline Lanes nibble(Nibbles x, int n) { return {nibble(x.a, n), nibble(x.b, n)}; }
inline Lanes twice(const float* p) {
    const __m256i order = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    auto four = [&](const float* q) { return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(q)), order); };
    return {four(p), four(p + 4)};
}
struct Pairs {
    __m256i a, b;
};
inline Pairs load_pairs(const uint16_t* p) {
    return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 16))};
}
inline __m256 raised(__m256i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
inline __m256 cleared(__m256i x) { return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(0xffff0000))); }
inline Lanes low(Pairs x) { return {raised(x.a), raised(x.b)}; }
inline Lanes high(Pairs x) { return {cleared(x.a), cleared(x.b)}; }
inline Lanes widened(const uint16_t* p) {
    return {raised(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p))),
            raised(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(p + 8))))};
}
inline __m256i narrowed(__m256 x) {
    __m256i u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, odd), _mm256_set1_epi32(0x7fff)), 16);
    return _mm256_blendv_epi8(up, _mm256_set1_epi32(0x7fc0), _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
inline void narrow(uint16_t* p, Lanes x) {
    __m256i both = _mm256_packus_epi32(narrowed(x.a), narrowed(x.b));
    _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(both, 0xd8));
}

#else
// Any processor: the compiler turns these loops into what vectors it has.
struct Lanes {
    float v[16];
};
template <class F>
inline Lanes each(F one) {
    Lanes out;
    for (int i = 0; i < 16; i++) out.v[i] = one(i);
    return out;
}
inline Lanes load(const float* p) {
    return each([&](int i) { return p[i]; });
}
inline void store(float* p, const Lanes& a) { memcpy(p, a.v, sizeof a.v); }
inline Lanes splat(float a) {
    return each([&](int) { return a; });
}
inline Lanes operator+(const Lanes& a, const Lanes& b) {
    return each([&](int i) { return a.v[i] + b.v[i]; });
}
inline Lanes operator-(const Lanes& a, const Lanes& b) {
    return each([&](int i) { return a.v[i] - b.v[i]; });
}
inline Lanes operator*(const Lanes& a, const Lanes& b) {
    return each([&](int i) { return a.v[i] * b.v[i]; });
}
inline Lanes operator/(const Lanes& a, const Lanes& b) {
    return each([&](int i) { return a.v[i] / b.v[i]; });
}
inline Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) { return a * b + c; }
inline Lanes greater(const Lanes& a, const Lanes& b) {
    return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Lanes lesser(const Lanes& a, const Lanes& b) {
    return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Lanes nearest(const Lanes& a) {
    return each([&](int i) { return (float)(int)(a.v[i] + (a.v[i] < 0 ? -0.5f : 0.5f)); });
}
inline Lanes times_power(const Lanes& a, const Lanes& exponent) {
    return each([&](int i) { return a.v[i] * from_bits((uint32_t)((int)exponent.v[i] + 127) << 23); });
}
template <class F>
inline float folded(Lanes a, F both) {
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) a.v[i] = both(a.v[i], a.v[i + half]);
    return a.v[0];
}
inline float sum(const Lanes& a) {
    return folded(a, [](float p, float q) { return p + q; });
}
inline float greatest(const Lanes& a) {
    return folded(a, [](float p, float q) { return p > q ? p : q; });
}
inline Lanes bytes(const uint8_t* p) {
    return each([&](int i) { return (float)p[i]; });
}
struct Nibbles {
    uint8_t v[64];
};
inline Nibbles load_nibbles(const uint8_t* p) {
    Nibbles out;
    memcpy(out.v, p, sizeof out.v);
    return out;
}
inline Lanes nibble(const Nibbles& a, int n) {
    return each([&](int i) { return (float)(a.v[4 * i + n / 2] >> n % 2 * 4 & 15); });
}
inline Lanes twice(const float* p) {
    return each([&](int i) { return p[i / 2]; });
}
struct Pairs {
    uint32_t v[16];
};
inline Pairs load_pairs(const uint16_t* p) {
    Pairs out;
    memcpy(out.v, p, sizeof out.v);
    return out;
}
inline Lanes low(const Pairs& a) {
    return each([&](int i) { return from_bits(a.v[i] << 16); });
}
inline Lanes high(const Pairs& a) {
    return each([&](int i) { return from_bits(a.v[i] & 0xffff0000u); });
}
inline Lanes widened(const uint16_t* p) {
    return each([&](int i) { return number(p[i]); });
}
inline void narrow(uint16_t* p, const Lanes& a) {
    for (int i = 0; i < 16; i++) {
        uint32_t u;
        memcpy(&u, &a.v[i], 4);
        p[i] = a.v[i] == a.v[i] ? (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16) : 0x7fc0;
    }
}
#endif

#if !defined(__AVX512BF16__)
inline void narrow(uint16_t* p, const Lanes& a, const Lanes& b) { narrow(p, a), narrow(p + 16, b); }
#endif

// e to the power of each lane, as a power of two; below -87 that of -87, never 0: callers put 0 where nothing is seen.
inline Lanes exponential(Lanes x) {
    x = lesser(splat(88.f), greater(splat(-87.f), x));  // in this order NaN stays NaN
    const float terms[] = {1.3398874e-3f, 9.6184374e-3f, 5.5503325e-2f, 2.4022648e-1f, 6.9314720e-1f, 1.f};
    const Lanes factor = splat(1.44269504f), whole = nearest(x * factor), part = fma(x, factor, splat(0.f) - whole);
    Lanes p = splat(1.5353362e-4f);
    for (float term : terms) p = fma(p, part, splat(term));
    return times_power(p, whole);
}

// ``cap`` times the hyperbolic tangent of each lane over ``cap``.
inline Lanes capped(Lanes x, float cap) {
    return splat(cap) * (splat(1.f) - splat(2.f) / (exponential(x * splat(2.f / cap)) + splat(1.f)));
}

// x times its sigmoid, and the same in GELU by tanh: of 2 sqrt(2 / pi) (x + 0.044715 x^3).
inline Lanes activated(Lanes x, bool gelu) {
    Lanes minus = splat(0.f) - x;
    if (gelu) minus = minus * fma(x * x, splat(0.0713548162726f), splat(1.59576912161f));
    return x / (splat(1.f) + exponential(minus));
}

// The formats of weights, and of keys and values. ``Input`` is what is multiplied with them: rounded to the format.
// A vector of weights holds ``step`` successive inputs of sixteen outputs.
struct Float32 {
    typedef float Weight;
    typedef float Input;
    typedef Lanes Vector;
    static const int step = 1;
    static Vector vector(const Weight* w) { return load(w); }
    static Lanes add_product(const Lanes& into, const Vector& w, const Input* x) { return fma(w, splat(*x), into); }
    static void round(Input* p, const Lanes& a) { store(p, a); }
    static Lanes wide(const Weight* p) { return load(p); }
    static void keep(Weight* p, const Lanes& a) { store(p, a); }
    static void keep(Weight* p, const Lanes& a, const Lanes& b) { store(p, a), store(p + 16, b); }
};

struct Bfloat16 {
    typedef uint16_t Weight;
    static const int step = 2;
    static Lanes wide(const Weight* p) { return widened(p); }
    static void keep(Weight* p, const Lanes& a) { narrow(p, a); }
    static void keep(Weight* p, const Lanes& a, const Lanes& b) { narrow(p, a, b); }
#if defined(__AVX512BF16__)
    typedef uint16_t Input;
    typedef Pairs Vector;
    static Vector vector(const Weight* w) { return load_pairs(w); }
    static Lanes add_product(Lanes into, Vector w, const Input* x) {
        int pair;
        memcpy(&pair, x, 4);
        return {_mm512_dpbf16_ps(into.v, (__m512bh)w.v, (__m512bh)_mm512_set1_epi32(pair))};
    }
    static void round(Input* p, Lanes a) { narrow(p, a); }
#else
    typedef float Input;
    struct Vector {
        Lanes first, second;
    };
    static Vector vector(const Weight* w) {
        Pairs both = load_pairs(w);
        return {low(both), high(both)};
    }
    static Lanes add_product(const Lanes& into, const Vector& w, const Input* x) {
        return fma(w.second, splat(x[1]), fma(w.first, splat(x[0]), into));
    }
    static void round(Input* p, const Lanes& a) {
        Weight rounded[16];
        narrow(rounded, a);
        store(p, widened(rounded));
    }
#endif
};

}  // namespace
