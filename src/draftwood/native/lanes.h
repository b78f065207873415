// Sixteen float lanes, and products of numbers in them, for the instruction set that the file is compiled for.
//
// Every sum has one order: along the inputs of one output, or over fixed lanes. It never depends on other outputs.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
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
struct Pairs {
    __m512i v;
};
inline Pairs load_pairs(const uint16_t* p) { return {_mm512_loadu_si512(p)}; }
inline Lanes widened(const uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
inline Lanes low(Pairs a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(a.v, 16))}; }
inline Lanes high(Pairs a) { return {_mm512_castsi512_ps(_mm512_and_si512(a.v, _mm512_set1_epi32(0xffff0000)))}; }
inline void narrow(uint16_t* p, Lanes a) {
    __m512i u = _mm512_castps_si512(a.v), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, odd), _mm512_set1_epi32(0x7fff)), 16);
    up = _mm512_mask_mov_epi32(up, _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(up));
}

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

#elif defined(__aarch64__)
struct Lanes {
    float32x4_t v[4];
};
template <class F>
inline Lanes quarters(F one) {
    return {{one(0), one(1), one(2), one(3)}};
}
inline Lanes load(const float* p) {
    return quarters([&](int i) { return vld1q_f32(p + 4 * i); });
}
inline void store(float* p, Lanes a) {
    for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, a.v[i]);
}
inline Lanes splat(float a) {
    return quarters([&](int) { return vdupq_n_f32(a); });
}
inline Lanes operator+(Lanes a, Lanes b) {
    return quarters([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
inline Lanes operator-(Lanes a, Lanes b) {
    return quarters([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
inline Lanes operator*(Lanes a, Lanes b) {
    return quarters([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
inline Lanes operator/(Lanes a, Lanes b) {
    return quarters([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
    return quarters([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
// Of NaN the second operand, as x86 does.
inline Lanes greater(Lanes a, Lanes b) {
    return quarters([&](int i) { return vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
inline Lanes lesser(Lanes a, Lanes b) {
    return quarters([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
inline Lanes nearest(Lanes a) {
    return quarters([&](int i) { return vrndnq_f32(a.v[i]); });
}
inline Lanes times_power(Lanes a, Lanes exponent) {
    return quarters([&](int i) {
        const int32x4_t bits = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(exponent.v[i]), vdupq_n_s32(127)), 23);
        return vmulq_f32(a.v[i], vreinterpretq_f32_s32(bits));
    });
}
template <class F>
inline float folded(Lanes a, F both) {
    float some[8];
    vst1q_f32(some, both(both(a.v[0], a.v[2]), both(a.v[1], a.v[3])));
    vst1q_f32(some + 4, vdupq_n_f32(0));
    const float32x4_t pairs = both(vld1q_f32(some), vld1q_f32(some + 2));
    vst1q_f32(some, pairs);
    return vgetq_lane_f32(both(vld1q_f32(some), vld1q_f32(some + 1)), 0);
}
inline float sum(Lanes a) {
    return folded(a, [](float32x4_t p, float32x4_t q) { return vaddq_f32(p, q); });
}
inline float greatest(Lanes a) {
    return folded(a, [](float32x4_t p, float32x4_t q) { return vbslq_f32(vcgtq_f32(p, q), p, q); });
}
struct Pairs {
    uint32x4_t v[4];
};
inline Pairs load_pairs(const uint16_t* p) {
    Pairs found;
    memcpy(&found, p, sizeof found);
    return found;
}
inline Lanes low(Pairs a) {
    return quarters([&](int i) { return vreinterpretq_f32_u32(vshlq_n_u32(a.v[i], 16)); });
}
inline Lanes high(Pairs a) {
    return quarters([&](int i) { return vreinterpretq_f32_u32(vandq_u32(a.v[i], vdupq_n_u32(0xffff0000u))); });
}
inline Lanes widened(const uint16_t* p) {
    return quarters([&](int i) { return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(p + 4 * i)), 16)); });
}
inline void narrow(uint16_t* p, Lanes a) {
    for (int i = 0; i < 4; i++) {
        const uint32x4_t bits = vreinterpretq_u32_f32(a.v[i]), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
        const uint32x4_t up = vshrq_n_u32(vaddq_u32(vaddq_u32(bits, odd), vdupq_n_u32(0x7fff)), 16);
        vst1_u16(p + 4 * i, vmovn_u32(vbslq_u32(vceqq_f32(a.v[i], a.v[i]), up, vdupq_n_u32(0x7fc0))));
    }
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
// A product and a sum that are rounded once: the sum of float64 is rounded to odd, so that float32 rounds it rightly.
inline float fused(float a, float b, float c) {
    const double product = (double)a * b, sum = product + c, part = sum - product;
    const double error = (product - (sum - part)) + (c - part);
    int64_t bits, sign;
    memcpy(&bits, &sum, 8);
    memcpy(&sign, &error, 8);
    const int64_t step = 1 - 2 * (int64_t)((uint64_t)(bits ^ sign) >> 63), even = (bits & 1) - 1;
    bits += fabs(error) > 0 ? step & even : 0;
    double odd;
    memcpy(&odd, &bits, 8);
    return (float)odd;
}
inline Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
    return each([&](int i) { return fused(a.v[i], b.v[i], c.v[i]); });
}
inline Lanes added_product(const Lanes& a, const Lanes& b, const Lanes& c) { return a * b + c; }
inline Lanes greater(const Lanes& a, const Lanes& b) {
    return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Lanes lesser(const Lanes& a, const Lanes& b) {
    return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Lanes nearest(const Lanes& a) {
    const float whole = 12582912.f;  // 1.5 * 2 ** 23: what is added to it has no fraction
    return each([&](int i) { return (a.v[i] + whole) - whole; });
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

#if defined(__aarch64__) || (defined(__AVX2__) && defined(__FMA__))
// As fma; rounded twice where a processor has none.
inline Lanes added_product(Lanes a, Lanes b, Lanes c) { return fma(a, b, c); }
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
    static const bool tiles = false, rounds = true;
    static Vector vector(const Weight* w) { return load(w); }
    static Lanes add_product(const Lanes& into, const Vector& w, const Input* x) { return added_product(w, splat(*x), into); }
    static void round(Input* p, const Lanes& a) { store(p, a); }
    static Lanes wide(const Weight* p) { return load(p); }
    static void keep(Weight* p, const Lanes& a) { store(p, a); }
};

// Weights, keys and values are bfloat16; inputs stay float32, so that bits are the same on every instruction set.
struct Portable {
    typedef uint16_t Weight;
    typedef float Input;
    struct Vector {
        Lanes first, second;
    };
    static const int step = 2;
    static const bool tiles = false;   // products by AMX
    static const bool rounds = false;  // inputs to the format of weights
    static Vector vector(const Weight* w) {
        const Pairs both = load_pairs(w);
        return {low(both), high(both)};
    }
    static Lanes add_product(const Lanes& into, const Vector& w, const Input* x) {
        return fma(w.second, splat(x[1]), fma(w.first, splat(x[0]), into));
    }
    static void round(Input* p, const Lanes& a) { store(p, a); }
    static Lanes wide(const Weight* p) { return widened(p); }
    static void keep(Weight* p, const Lanes& a) { narrow(p, a); }
    // Pairs of two numbers of each lane.
    static void keep_pairs(Weight* p, const Lanes& a, const Lanes& b) {
        Weight first[16], second[16];
        narrow(first, a);
        narrow(second, b);
        for (int i = 0; i < 16; i++) p[2 * i] = first[i], p[2 * i + 1] = second[i];
    }
};

// The same with inputs that are rounded to bfloat16.
struct Bfloat16 : Portable {
    static const bool rounds = true;
#if defined(DRAFTWOOD_AMX)
    static const bool tiles = true;
#endif
#if defined(__AVX512BF16__)
    typedef uint16_t Input;
    typedef Pairs Vector;
    static Vector vector(const Weight* w) { return load_pairs(w); }
    static Lanes add_product(Lanes into, Vector w, const Input* x) {
        int pair;
        memcpy(&pair, x, 4);
        return {_mm512_dpbf16_ps(into.v, (__m512bh)w.v, (__m512bh)_mm512_set1_epi32(pair))};
    }
    static void round(Input* p, Lanes a) { keep(p, a); }
    static void keep(Weight* p, Lanes a) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(a.v)); }
    static void keep_pairs(Weight* p, Lanes a, Lanes b) {
        const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(b.v, a.v);
        const __m512i first = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(both));
        const __m512i second = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(both, 1));
        _mm512_storeu_si512(p, _mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
    }
#else
    static Lanes add_product(const Lanes& into, const Vector& w, const Input* x) {
        return added_product(w.second, splat(x[1]), added_product(w.first, splat(x[0]), into));
    }
    static void round(Input* p, const Lanes& a) {
        Weight rounded[16];
        narrow(rounded, a);
        store(p, widened(rounded));
    }
#endif
};

}  // namespace
