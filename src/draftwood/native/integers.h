// Products of codes with inputs that are rounded to 8 bits. The sum of a quantisation group is an integer, which every instruction
// set computes alike; what follows is float32 in one order, so that scores have the same bits everywhere.
//
// For each instruction set, a block of the same functions:
//   WIDE                    outputs of a register
//   Bytes, Ints, Floats     registers: four codes, an integer, a float of each of these outputs
//   line, bits_of, left ...  what lies in memory; and, or, exclusive or of bits; bits moved within 16 bits, so that a mask must follow
//   looked_up               of codes of 4 bits, their values
//   dot                     the sums of products of N registers of codes with as many fours of inputs, and of ``bias``
//   floats_of, halves, factors, ...
// Where codes have 8 bits, as BYTES_OF_8 says, they come as they are packed, or with a sign, less 128.
#pragma once
#include "codes.h"
#include "lanes.h"

namespace {

// A quantisation group of an input: its scale, times the sum of its codes, and that sum, of all and of the first half.
struct InputGroup {
    float scale, total;
    int sum, half;
};

// Rows of inputs as codes; distances are in numbers.
struct Inputs {
    int8_t* codes;
    InputGroup* groups;
    int size;
    int groups_of_row() const { return size / draftwood::QUANT; }
};

// How codes lie in registers, and the most of their products that 16 bits hold as a sum.
enum Kind { FOUR, FIVE, SIX, EIGHT, VALUES };
inline constexpr bool is_signed(Kind kind) { return kind == EIGHT || kind == VALUES; }
inline constexpr int pairs_of_16_bits(Kind kind) { return kind == FOUR ? 8 : kind == FIVE ? 4 : kind == SIX ? 2 : 1; }

inline int four_inputs(const int8_t* codes, int i) {
    int found;
    memcpy(&found, codes + 4 * i, 4);
    return found;
}

#if defined(__AVX512F__)
const int WIDE = 16;
typedef __m512i Bytes;
typedef __m512i Ints;
typedef __m512 Floats;
inline Bytes line(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline Bytes all(uint8_t byte) { return _mm512_set1_epi8(byte); }
inline Bytes bits_of(Bytes a, Bytes b) { return _mm512_and_si512(a, b); }
inline Bytes united(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
inline Bytes flipped(Bytes a, Bytes b) { return _mm512_xor_si512(a, b); }
inline Bytes left(Bytes a, int n) { return _mm512_slli_epi16(a, n); }
inline Bytes right(Bytes a, int n) { return _mm512_srli_epi16(a, n); }
inline Bytes sixteen(const int8_t* values) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)values)); }
inline Bytes looked_up(Bytes values, Bytes codes) { return _mm512_shuffle_epi8(values, codes); }
inline Floats zeros() { return _mm512_setzero_ps(); }
inline Floats every(float a) { return _mm512_set1_ps(a); }
inline Floats times(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats fused(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline void keep(float* p, Floats a) { _mm512_storeu_ps(p, a); }
inline Floats floats(const float* p) { return _mm512_loadu_ps(p); }
inline Floats halves(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
inline Floats factors(const int8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))); }
inline Floats floats_of(Ints a) { return _mm512_cvtepi32_ps(a); }
inline Floats codes_of(Bytes a, int i) { return floats_of(_mm512_and_si512(_mm512_srli_epi32(a, 8 * i), _mm512_set1_epi32(255))); }
inline Lanes joined(const Floats* a) { return {a[0]}; }
inline void narrow_codes(int8_t* p, Lanes a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v))); }
#if defined(__AVX512VNNI__)
#define DRAFTWOOD_UNSIGNED_CODES
template <Kind K, int N>
inline Ints dot(const Bytes* w, const int8_t* x, int bias) {
    Ints a = _mm512_set1_epi32(bias), b = _mm512_setzero_si512();
    for (int i = 0; i < N; i += 2) {
        a = _mm512_dpbusd_epi32(a, w[i], _mm512_set1_epi32(four_inputs(x, i)));
        b = _mm512_dpbusd_epi32(b, w[i + 1], _mm512_set1_epi32(four_inputs(x, i + 1)));
    }
    return _mm512_add_epi32(a, b);
}
#else
inline Ints pair_sums(Kind kind, Bytes w, Ints x) {
    if (!is_signed(kind)) return _mm512_maddubs_epi16(w, x);
    return _mm512_maddubs_epi16(_mm512_abs_epi8(w), _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x));
}
template <Kind K, int N>
inline Ints dot(const Bytes* w, const int8_t* x, int bias) {
    Ints found = _mm512_set1_epi32(is_signed(K) ? 0 : bias);
    const int most = pairs_of_16_bits(K) < N ? pairs_of_16_bits(K) : N;
    for (int i = 0; i < N; i += most) {
        Ints sums = pair_sums(K, w[i], _mm512_set1_epi32(four_inputs(x, i)));
        for (int j = i + 1; j < i + most; j++)
            sums = _mm512_add_epi16(sums, pair_sums(K, w[j], _mm512_set1_epi32(four_inputs(x, j))));
        found = _mm512_add_epi32(found, _mm512_madd_epi16(sums, _mm512_set1_epi16(1)));
    }
    return found;
}
#endif

#elif defined(__AVX2__) && defined(__FMA__)
const int WIDE = 8;
typedef __m256i Bytes;
typedef __m256i Ints;
typedef __m256 Floats;
inline Bytes line(const uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
inline Bytes all(uint8_t byte) { return _mm256_set1_epi8(byte); }
inline Bytes bits_of(Bytes a, Bytes b) { return _mm256_and_si256(a, b); }
inline Bytes united(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
inline Bytes flipped(Bytes a, Bytes b) { return _mm256_xor_si256(a, b); }
inline Bytes left(Bytes a, int n) { return _mm256_slli_epi16(a, n); }
inline Bytes right(Bytes a, int n) { return _mm256_srli_epi16(a, n); }
inline Bytes sixteen(const int8_t* values) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)values)); }
inline Bytes looked_up(Bytes values, Bytes codes) { return _mm256_shuffle_epi8(values, codes); }
inline Floats zeros() { return _mm256_setzero_ps(); }
inline Floats every(float a) { return _mm256_set1_ps(a); }
inline Floats times(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats fused(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline void keep(float* p, Floats a) { _mm256_storeu_ps(p, a); }
inline Floats floats(const float* p) { return _mm256_loadu_ps(p); }
inline Floats halves(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
inline Floats factors(const int8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))); }
inline Floats floats_of(Ints a) { return _mm256_cvtepi32_ps(a); }
inline Floats codes_of(Bytes a, int i) { return floats_of(_mm256_and_si256(_mm256_srli_epi32(a, 8 * i), _mm256_set1_epi32(255))); }
inline Lanes joined(const Floats* a) { return {a[0], a[1]}; }
inline void narrow_codes(int8_t* p, Lanes a) {
    const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.a), _mm256_cvtps_epi32(a.b));
    const __m256i order = _mm256_permute4x64_epi64(words, 0xd8);
    _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(order), _mm256_extracti128_si256(order, 1)));
}
#if defined(__AVXVNNI__)
#define DRAFTWOOD_UNSIGNED_CODES
template <Kind K, int N>
inline Ints dot(const Bytes* w, const int8_t* x, int bias) {
    Ints a = _mm256_set1_epi32(bias), b = _mm256_setzero_si256();
    for (int i = 0; i < N; i += 2) {
        a = _mm256_dpbusd_avx_epi32(a, w[i], _mm256_set1_epi32(four_inputs(x, i)));
        b = _mm256_dpbusd_avx_epi32(b, w[i + 1], _mm256_set1_epi32(four_inputs(x, i + 1)));
    }
    return _mm256_add_epi32(a, b);
}
#else
inline Ints pair_sums(Kind kind, Bytes w, Ints x) {
    return is_signed(kind) ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)) : _mm256_maddubs_epi16(w, x);
}
template <Kind K, int N>
inline Ints dot(const Bytes* w, const int8_t* x, int bias) {
    Ints found = _mm256_set1_epi32(is_signed(K) ? 0 : bias);
    const int most = pairs_of_16_bits(K) < N ? pairs_of_16_bits(K) : N;
    for (int i = 0; i < N; i += most) {
        Ints sums = pair_sums(K, w[i], _mm256_set1_epi32(four_inputs(x, i)));
        for (int j = i + 1; j < i + most; j++)
            sums = _mm256_add_epi16(sums, pair_sums(K, w[j], _mm256_set1_epi32(four_inputs(x, j))));
        found = _mm256_add_epi32(found, _mm256_madd_epi16(sums, _mm256_set1_epi16(1)));
    }
    return found;
}
#endif

#elif defined(__aarch64__)
const int WIDE = 4;
typedef uint8x16_t Bytes;
typedef int32x4_t Ints;
typedef float32x4_t Floats;
inline Bytes line(const uint8_t* p) { return vld1q_u8(p); }
inline Bytes all(uint8_t byte) { return vdupq_n_u8(byte); }
inline Bytes bits_of(Bytes a, Bytes b) { return vandq_u8(a, b); }
inline Bytes united(Bytes a, Bytes b) { return vorrq_u8(a, b); }
inline Bytes flipped(Bytes a, Bytes b) { return veorq_u8(a, b); }
inline Bytes left(Bytes a, int n) { return vshlq_u8(a, vdupq_n_s8(n)); }
inline Bytes right(Bytes a, int n) { return vshlq_u8(a, vdupq_n_s8(-n)); }
inline Bytes sixteen(const int8_t* values) { return vreinterpretq_u8_s8(vld1q_s8(values)); }
inline Bytes looked_up(Bytes values, Bytes codes) { return vqtbl1q_u8(values, codes); }
inline Floats zeros() { return vdupq_n_f32(0); }
inline Floats every(float a) { return vdupq_n_f32(a); }
inline Floats times(Floats a, Floats b) { return vmulq_f32(a, b); }
inline Floats fused(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
inline void keep(float* p, Floats a) { vst1q_f32(p, a); }
inline Floats floats(const float* p) { return vld1q_f32(p); }
inline Floats halves(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
inline Floats factors(const int8_t* p) {
    int32_t four;
    memcpy(&four, p, 4);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four))))));
}
inline Floats floats_of(Ints a) { return vcvtq_f32_s32(a); }
inline Floats codes_of(Bytes a, int i) {
    return vcvtq_f32_u32(vandq_u32(vshlq_u32(vreinterpretq_u32_u8(a), vdupq_n_s32(-8 * i)), vdupq_n_u32(255)));
}
inline Lanes joined(const Floats* a) { return {{a[0], a[1], a[2], a[3]}}; }
inline void narrow_codes(int8_t* p, Lanes a) {
    auto words = [&](int i) { return vcombine_s16(vmovn_s32(vcvtnq_s32_f32(a.v[i])), vmovn_s32(vcvtnq_s32_f32(a.v[i + 1]))); };
    vst1q_s8(p, vcombine_s8(vmovn_s16(words(0)), vmovn_s16(words(2))));
}
inline Ints add_dot(Ints sum, int8x16_t w, int8x16_t x) {
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(sum, w, x);
#else
    const int16x8_t first = vmull_s8(vget_low_s8(w), vget_low_s8(x)), second = vmull_s8(vget_high_s8(w), vget_high_s8(x));
    return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(first), vpaddlq_s16(second)));
#endif
}
template <Kind K, int N>
inline Ints dot(const Bytes* w, const int8_t* x, int bias) {
    Ints a = vdupq_n_s32(is_signed(K) ? 0 : bias), b = vdupq_n_s32(0);
    for (int i = 0; i < N; i += 2) {
        a = add_dot(a, vreinterpretq_s8_u8(w[i]), vreinterpretq_s8_s32(vdupq_n_s32(four_inputs(x, i))));
        b = add_dot(b, vreinterpretq_s8_u8(w[i + 1]), vreinterpretq_s8_s32(vdupq_n_s32(four_inputs(x, i + 1))));
    }
    return vaddq_s32(a, b);
}

#else
#define DRAFTWOOD_UNSIGNED_CODES
const int WIDE = 16;
struct Bytes {
    uint8_t v[64];
};
struct Ints {
    int v[16];
};
typedef Lanes Floats;
template <class F>
inline Bytes each_byte(F one) {
    Bytes found;
    for (int i = 0; i < 64; i++) found.v[i] = one(i);
    return found;
}
inline Bytes line(const uint8_t* p) {
    return each_byte([&](int i) { return p[i]; });
}
inline Bytes all(uint8_t byte) {
    return each_byte([&](int) { return byte; });
}
inline Bytes bits_of(const Bytes& a, const Bytes& b) {
    return each_byte([&](int i) { return a.v[i] & b.v[i]; });
}
inline Bytes united(const Bytes& a, const Bytes& b) {
    return each_byte([&](int i) { return a.v[i] | b.v[i]; });
}
inline Bytes flipped(const Bytes& a, const Bytes& b) {
    return each_byte([&](int i) { return a.v[i] ^ b.v[i]; });
}
inline Bytes left(const Bytes& a, int n) {
    return each_byte([&](int i) { return a.v[i] << n; });
}
inline Bytes right(const Bytes& a, int n) {
    return each_byte([&](int i) { return a.v[i] >> n; });
}
inline Bytes sixteen(const int8_t* values) {
    return each_byte([&](int i) { return (uint8_t)values[i % 16]; });
}
inline Bytes looked_up(const Bytes& values, const Bytes& codes) {
    return each_byte([&](int i) { return values.v[codes.v[i]]; });
}
inline Floats zeros() { return splat(0.f); }
inline Floats every(float a) { return splat(a); }
inline Floats times(const Floats& a, const Floats& b) { return a * b; }
inline Floats fused(const Floats& a, const Floats& b, const Floats& c) { return fma(a, b, c); }
inline void keep(float* p, const Floats& a) { store(p, a); }
inline Floats floats(const float* p) { return load(p); }
inline float half_number(uint16_t bits) {
    const uint32_t exponent = bits >> 10 & 31, digits = bits & 1023, sign = (uint32_t)(bits >> 15) << 31;
    if (exponent == 31) return from_bits(sign | 0x7f800000u | digits << 13);
    const float small = digits * (1.f / (1 << 24));
    return exponent ? from_bits(sign | (exponent + 112) << 23 | digits << 13) : sign ? -small : small;
}
inline Floats halves(const uint16_t* p) {
    return each([&](int i) { return half_number(p[i]); });
}
inline Floats factors(const int8_t* p) {
    return each([&](int i) { return (float)p[i]; });
}
inline Floats floats_of(const Ints& a) {
    return each([&](int i) { return (float)a.v[i]; });
}
inline Floats codes_of(const Bytes& a, int i) {
    return each([&](int output) { return (float)a.v[4 * output + i]; });
}
inline Lanes joined(const Floats* a) { return a[0]; }
inline void narrow_codes(int8_t* p, const Lanes& a) {
    const Lanes whole = nearest(a);
    for (int i = 0; i < 16; i++) p[i] = whole.v[i] == whole.v[i] ? (int8_t)(int)whole.v[i] : 0;
}
template <Kind K, int N>
inline Ints dot(const Bytes* w, const int8_t* x, int bias) {
    Ints found;
    for (int output = 0; output < 16; output++) {
        found.v[output] = bias;
        for (int i = 0; i < 4 * N; i++) found.v[output] += w[i / 4].v[4 * output + i % 4] * x[i];
    }
    return found;
}
#endif

// The codes of a group, from line ``p`` on, of the outputs of a register; those of VALUES are values.
template <Kind K>
inline void read_codes(const uint8_t* p, const int8_t* values, Bytes* w) {
#if defined(DRAFTWOOD_UNSIGNED_CODES)
    const bool has_sign = false;
#else
    const bool has_sign = true;
#endif
    if constexpr (K == EIGHT) {
        for (int i = 0; i < 8; i++) w[i] = has_sign ? flipped(line(p + 64 * i), all(128)) : line(p + 64 * i);
        return;
    }
    for (int i = 0; i < 4; i++) {
        const Bytes both = line(p + 64 * i);
        w[2 * i] = bits_of(both, all(15));
        w[2 * i + 1] = bits_of(right(both, 4), all(15));
    }
    if constexpr (K == FIVE) {
        const Bytes upper = line(p + 256);
        for (int i = 0; i < 8; i++)
            w[i] = united(w[i], bits_of(i < 4 ? left(upper, 4 - i) : right(upper, i - 4), all(16)));
    }
    if constexpr (K == SIX)
        for (int i = 0; i < 8; i++) {
            const Bytes upper = line(p + 256 + i / 4 * 64);
            w[i] = united(w[i], bits_of(i % 4 < 3 ? left(upper, 4 - i % 4 * 2) : right(upper, 2), all(48)));
        }
    if constexpr (K == VALUES) {
        const Bytes table = has_sign ? sixteen(values) : flipped(sixteen(values), all(128));
        for (int i = 0; i < 8; i++) w[i] = looked_up(table, w[i]);
    }
}

// The scales and lows of a part of a group of a block, of the outputs from ``output`` on.
inline void read_scales(const draftwood::Format& format, const uint8_t* head, int group, int part, int output, Floats& scale, Floats& low) {
    using namespace draftwood;
    const uint16_t* simple = (const uint16_t*)head;
    if (format.scales == FLOATS) scale = floats((const float*)head + output);
    if (format.scales == HALVES) {
        scale = halves(simple + group * PANEL + output);
        if (format.low) low = halves(simple + PANEL + output);
    }
    if (format.scales != BYTES) return;
    const int8_t* own = (const int8_t*)head + 64 + (group * format.parts + part) * PANEL + output;
    scale = times(halves(simple + output), factors(own));
    if (format.low) low = times(halves(simple + PANEL + output), factors(own + format.groups() * format.parts * PANEL));
}

const int CODES_AHEAD = 4096;  // bytes of a panel that are fetched before they are needed

// The products of R rows with a panel.
template <Kind K, int PARTS, int R>
void panel(const draftwood::Format& format, const uint8_t* at, const Inputs& x, int first, float* out, size_t next_out) {
    using namespace draftwood;
    const int SIDES = PANEL / WIDE, groups = x.groups_of_row(), center = K == VALUES ? 128 : format.center;
    const int8_t* codes = x.codes + (size_t)first * x.size;
    const InputGroup* inputs = x.groups + (size_t)first * groups;
    const bool has_low = format.low;
    Floats sums[R][SIDES];
    for (int r = 0; r < R; r++)
        for (int side = 0; side < SIDES; side++) sums[r][side] = zeros();
    for (int g = 0; g < groups;) {
        const uint8_t* head = at;
        at += format.head_bytes();
        for (int in = 0; in < format.groups() && g < groups; in++, g++, at += format.group_bytes())
            for (int side = 0; side < SIDES; side++) {
                for (int i = side; i < (K == EIGHT ? 8 : K == SIX ? 6 : K == FIVE ? 5 : 4); i += SIDES)
                    __builtin_prefetch(at + CODES_AHEAD + 64 * i);
                Bytes w[8];
                read_codes<K>(at + 4 * WIDE * side, format.values, w);
                Floats scale[PARTS], low[PARTS];
                for (int p = 0; p < PARTS; p++) read_scales(format, head, in, p, WIDE * side, scale[p], low[p]);
                for (int r = 0; r < R; r++) {
                    const InputGroup& input = inputs[r * groups + g];
                    const int8_t* row = codes + (size_t)r * x.size + g * QUANT;
                    Floats sum = sums[r][side];
                    if constexpr (PARTS == 1) {
                        if (has_low) sum = fused(low[0], every(input.total), sum);
                        const Ints whole = dot<K, 8>(w, row, -center * input.sum);
                        sum = fused(floats_of(whole), times(scale[0], every(input.scale)), sum);
                    } else {
                        const int parts[] = {input.half, input.sum - input.half};
                        for (int p = 0; p < 2; p++) {
                            if (has_low) sum = fused(low[p], every(parts[p] * input.scale), sum);
                            const Ints some = dot<K, 4>(w + 4 * p, row + 16 * p, -center * parts[p]);
                            sum = fused(floats_of(some), times(scale[p], every(input.scale)), sum);
                        }
                    }
                    sums[r][side] = sum;
                }
            }
    }
    for (int r = 0; r < R; r++)
        for (int side = 0; side < SIDES; side++) keep(out + r * next_out + side * WIDE, sums[r][side]);
}

#if defined(__AVX512F__)
const int PANEL_ROWS = 16;  // rows whose sums stay in registers
#else
const int PANEL_ROWS = 8;
#endif

template <int R>
struct RowsOf {
    static const int rows = R;
};

// Any number of rows.
template <Kind K, int PARTS>
void panels(const draftwood::Format& format, const uint8_t* at, const Inputs& x, int rows, float* out, size_t next_out) {
    const int tiles = (rows + PANEL_ROWS - 1) / PANEL_ROWS, size = (rows + tiles - 1) / tiles;
    for (int r = 0, count; r < rows; r += count) {
        const int left = rows - r < size ? rows - r : size;
        auto some = [&](auto tile) {
            count = decltype(tile)::rows;
            panel<K, PARTS, decltype(tile)::rows>(format, at, x, r, out + r * next_out, next_out);
        };
        if (left >= 16 && PANEL_ROWS >= 16) some(RowsOf<PANEL_ROWS>());
        else if (left >= 12 && PANEL_ROWS >= 12) some(RowsOf<PANEL_ROWS >= 12 ? 12 : 8>());
        else if (left >= 8) some(RowsOf<8>());
        else if (left >= 6) some(RowsOf<6>());
        else if (left >= 4) some(RowsOf<4>());
        else if (left >= 3) some(RowsOf<3>());
        else if (left >= 2) some(RowsOf<2>());
        else some(RowsOf<1>());
    }
}

// The products of rows with a panel.
inline void multiply_panel(const draftwood::Panel& a, const Inputs& x, int rows, float* out, size_t next_out) {
    const draftwood::Format& f = *a.format;
    if (f.values) panels<VALUES, 1>(f, a.codes, x, rows, out, next_out);
    else if (f.bits == 8) panels<EIGHT, 1>(f, a.codes, x, rows, out, next_out);
    else if (f.bits == 6) panels<SIX, 2>(f, a.codes, x, rows, out, next_out);
    else if (f.bits == 5) panels<FIVE, 1>(f, a.codes, x, rows, out, next_out);
    else if (f.parts == 2) panels<FOUR, 2>(f, a.codes, x, rows, out, next_out);
    else panels<FOUR, 1>(f, a.codes, x, rows, out, next_out);
}

// A row of inputs as codes: of each group the largest magnitude is 127, halves are rounded to even. A group that holds a NaN or an
// infinity has the scale NaN; one of numbers below 1e-30 is zero.
inline void quantise(const float* from, int size, int8_t* codes, InputGroup* groups) {
    using namespace draftwood;
    for (int g = 0; g < size / QUANT; g++, from += QUANT, codes += QUANT) {
        const Lanes a = load(from), b = load(from + LANES), zero = splat(0.f);
        const float top = greatest(greater(greater(a, zero - a), greater(b, zero - b)));
        const float invalid = sum(a * zero + b * zero);  // NaN, or zero
        const bool empty = !(top >= 1e-30f) || invalid != 0;
        const Lanes factor = splat(empty ? 0.f : 127 / top);
        narrow_codes(codes, a * factor);
        narrow_codes(codes + LANES, b * factor);
        int half = 0, rest = 0;
        for (int i = 0; i < LANES; i++) half += codes[i], rest += codes[i + LANES];
        const float scale = empty ? invalid : top / 127;
        groups[g] = {scale, (half + rest) * scale, half + rest, half};
    }
}

// The numbers of a group of a panel, rounded to bfloat16: [pair of inputs][output][input of the pair], pairs ``next`` apart.
inline void expand_group(const draftwood::Panel& panel, int group, uint16_t* to, size_t next) {
    using namespace draftwood;
    const Format& format = *panel.format;
    const uint8_t* head = panel.codes + format.block_bytes() * (group / format.groups());
    group %= format.groups();
    const uint8_t* at = head + format.head_bytes() + group * format.group_bytes();
    const Lanes center = splat(format.values ? -128.f : (float)-format.center);
    Bytes w[PANEL / WIDE][8];
    for (int side = 0; side < PANEL / WIDE; side++) {
        const uint8_t* p = at + 4 * WIDE * side;
        if (format.values) read_codes<VALUES>(p, format.values, w[side]);
        else if (format.bits == 8) read_codes<EIGHT>(p, nullptr, w[side]);
        else if (format.bits == 6) read_codes<SIX>(p, nullptr, w[side]);
        else if (format.bits == 5) read_codes<FIVE>(p, nullptr, w[side]);
        else read_codes<FOUR>(p, nullptr, w[side]);
#if !defined(DRAFTWOOD_UNSIGNED_CODES)
        for (int i = 0; i < 8 && (format.values || format.bits == 8); i++) w[side][i] = flipped(w[side][i], all(128));
#endif
    }
    Floats parts[2][PANEL / WIDE];
    for (int part = 0; part < format.parts; part++) {
        for (int side = 0; side < PANEL / WIDE; side++) read_scales(format, head, group, part, WIDE * side, parts[0][side], parts[1][side]);
        const Lanes scale = joined(parts[0]), low = format.low ? joined(parts[1]) : center * scale;
        auto number = [&](int k) {
            Floats found[PANEL / WIDE];
            for (int side = 0; side < PANEL / WIDE; side++) found[side] = codes_of(w[side][k / 4], k % 4);
            return fma(joined(found), scale, low);
        };
        for (int k = part * QUANT / format.parts; k < (part + 1) * QUANT / format.parts; k += 2)
            Bfloat16::keep_pairs(to + k / 2 * next, number(k), number(k + 1));
    }
}

}  // namespace
