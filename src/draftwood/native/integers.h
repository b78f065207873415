// Registers of codes and of their integer products, of the instruction set that a file is compiled for.
//
// The contract: each block below supplies, for one instruction set,
//   SIGNED_CODES            codes of 8 bits are multiplied less 128, with a sign, not as they are packed
//   splat_code_values       sixteen values of 8 bits, as often as a register holds them
//   looked_up(values, a)    the values of codes of 4 bits
//   load_float16            numbers of float16, as floats
//   load_factors            integers of 8 bits, as floats
//   store_codes(p, a)       sixteen lanes, rounded to integers of 8 bits, halves to even
//   dot<K, N>(w, x, bias)   ``bias`` and the products of N registers of codes with N fours of inputs; it is made
//                           from ``add_products``, four at a time in 32 bits, or from sums of 16 bits (BY_PAIRS),
//                           unless an instruction set has its own (WITH_OWN_DOT)
//   multiply_codes          where there is AMX (tiles.h) or WITH_PAIRS: these products of MANY_ROWS or more at once
// An integer has no rounding, so all of these have the same bits on all instruction sets.
#pragma once
#include "codes.h"
#include "lanes.h"

namespace {
// How codes lie in a panel, and the most of their products with inputs that 16 bits hold as a sum.
enum Kind { FOUR, FIVE, SIX, EIGHT, VALUES };
inline constexpr bool is_signed(Kind kind) { return kind == EIGHT || kind == VALUES; }
inline constexpr int pairs_of_16_bits(Kind kind) { return kind == FOUR ? 8 : kind == FIVE ? 4 : kind == SIX ? 2 : 1; }

inline int four_inputs(const int8_t* codes, int i) {
    int four;
    memcpy(&four, codes + 4 * i, 4);
    return four;
}

typedef Words Codes;  // of each output of a register four codes, or the integer sum of their products

inline Codes splat_codes(uint32_t word) { return Codes{} + word; }
inline Codes load_codes(const void* p) {
    Codes codes;
    memcpy(&codes, p, sizeof codes);
    return codes;
}
inline Register to_floats(Codes a) {
    typedef int32_t Integers __attribute__((vector_size(4 * REGISTER)));
    return __builtin_convertvector((Integers)a, Register);
}

#if defined(__AVX512F__)
inline Codes splat_code_values(const int8_t* values) {
    return (Codes)_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)values));
}
inline Codes looked_up(Codes values, Codes a) { return (Codes)_mm512_shuffle_epi8((__m512i)values, (__m512i)a); }
inline Register load_float16(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
inline Register load_factors(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
inline void store_codes(int8_t* p, const Lanes& a) {
    _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v[0])));
}
#if defined(__AVX512VNNI__)
const bool SIGNED_CODES = false;
inline Codes add_products(Codes into, Codes w, int x) {
    return (Codes)_mm512_dpbusd_epi32((__m512i)into, (__m512i)w, _mm512_set1_epi32(x));
}
#else
#define BY_PAIRS
const bool SIGNED_CODES = true;
inline __m512i pair_sums(bool has_sign, Codes codes, int four) {
    const __m512i w = (__m512i)codes, x = _mm512_set1_epi32(four);
    if (!has_sign) return _mm512_maddubs_epi16(w, x);
    const __m512i signed_x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x);
    return _mm512_maddubs_epi16(_mm512_abs_epi8(w), signed_x);
}
inline __m512i add_pair_sums(__m512i a, __m512i b) { return _mm512_add_epi16(a, b); }
inline Codes in_32_bits(__m512i sums) { return (Codes)_mm512_madd_epi16(sums, _mm512_set1_epi16(1)); }
#endif

#elif defined(__AVX2__) && defined(__FMA__)
inline Codes splat_code_values(const int8_t* values) {
    return (Codes)_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)values));
}
inline Codes looked_up(Codes values, Codes a) { return (Codes)_mm256_shuffle_epi8((__m256i)values, (__m256i)a); }
inline Register load_float16(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
inline Register load_factors(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
inline void store_codes(int8_t* p, const Lanes& a) {
    const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.v[0]), _mm256_cvtps_epi32(a.v[1]));
    const __m256i order = _mm256_permute4x64_epi64(words, 0xd8);
    _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(order), _mm256_extracti128_si256(order, 1)));
}
#if defined(__AVXVNNI__)
const bool SIGNED_CODES = false;
inline Codes add_products(Codes into, Codes w, int x) {
    return (Codes)_mm256_dpbusd_avx_epi32((__m256i)into, (__m256i)w, _mm256_set1_epi32(x));
}
#else
#define BY_PAIRS
const bool SIGNED_CODES = true;
inline __m256i pair_sums(bool has_sign, Codes codes, int four) {
    const __m256i w = (__m256i)codes, x = _mm256_set1_epi32(four);
    return has_sign ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)) : _mm256_maddubs_epi16(w, x);
}
inline __m256i add_pair_sums(__m256i a, __m256i b) { return _mm256_add_epi16(a, b); }
inline Codes in_32_bits(__m256i sums) { return (Codes)_mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }
#endif

#elif defined(__aarch64__)
const bool SIGNED_CODES = true;
inline Codes splat_code_values(const int8_t* values) { return (Codes)vld1q_s8(values); }
inline Codes looked_up(Codes values, Codes a) { return (Codes)vqtbl1q_u8((uint8x16_t)values, (uint8x16_t)a); }
inline Register load_float16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
inline Register load_factors(const int8_t* p) {
    const int8x8_t four = vreinterpret_s8_s32(vdup_n_s32(four_inputs(p, 0)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(four))));
}
inline void store_codes(int8_t* p, const Lanes& a) {
    auto words = [&](int i) {
        return vcombine_s16(vmovn_s32(vcvtnq_s32_f32(a.v[i])), vmovn_s32(vcvtnq_s32_f32(a.v[i + 1])));
    };
    vst1q_s8(p, vcombine_s8(vmovn_s16(words(0)), vmovn_s16(words(2))));
}
#if defined(__ARM_FEATURE_DOTPROD)
#define WITH_OWN_DOT
template <Kind K, int N>
inline Codes dot(const Codes* w, const int8_t* x, int bias) {
    int32x4_t even = vdupq_n_s32(bias), odd = vdupq_n_s32(0);
    for (int i = 0; i < N; i += 4) {
        const int8x16_t inputs = vld1q_s8(x + 4 * i);
        even = vdotq_laneq_s32(even, (int8x16_t)w[i], inputs, 0);
        odd = vdotq_laneq_s32(odd, (int8x16_t)w[i + 1], inputs, 1);
        even = vdotq_laneq_s32(even, (int8x16_t)w[i + 2], inputs, 2);
        odd = vdotq_laneq_s32(odd, (int8x16_t)w[i + 3], inputs, 3);
    }
    return (Codes)(even + odd);
}
#if defined(__ARM_FEATURE_MATMUL_INT8)
// Products of two rows, of which pieces of eight inputs take turns, with two outputs; a last row is alone.
#define WITH_PAIRS
const int MANY_ROWS = 2;
template <Kind K, int PARTS, int ROWS>
inline void multiply_codes(const Codes* w, const int8_t* x, int rows, Codes (&sums)[PARTS][ROWS]) {
    const int lines = 4 / PARTS;  // of eight inputs
    int8x16_t lower[4], upper[4];  // outputs 0 and 1, 2 and 3
    for (int i = 0; i < 4; i++) {
        lower[i] = (int8x16_t)vzip1q_s32((int32x4_t)w[2 * i], (int32x4_t)w[2 * i + 1]);
        upper[i] = (int8x16_t)vzip2q_s32((int32x4_t)w[2 * i], (int32x4_t)w[2 * i + 1]);
    }
    for (int r = 0; r < rows - 1; r += 2)
        for (int p = 0; p < PARTS; p++) {
            int32x4_t first = vdupq_n_s32(0), second = vdupq_n_s32(0);
            for (int i = lines * p; i < lines * (p + 1); i++) {
                const int8x16_t inputs = vld1q_s8(x + 32 * r + 16 * i);
                first = vmmlaq_s32(first, inputs, lower[i]);
                second = vmmlaq_s32(second, inputs, upper[i]);
            }
            sums[p][r] = (Codes)vzip1q_s64((int64x2_t)first, (int64x2_t)second);
            sums[p][r + 1] = (Codes)vzip2q_s64((int64x2_t)first, (int64x2_t)second);
        }
    for (int p = 0; p < PARTS && rows % 2; p++)
        sums[p][rows - 1] = dot<K, 8 / PARTS>(w + 8 / PARTS * p, x + 32 * (rows - 1) + 32 / PARTS * p, 0);
}
#endif
#else
inline Codes add_products(Codes into, Codes codes, int four) {
    const int8x16_t w = (int8x16_t)codes, x = vreinterpretq_s8_s32(vdupq_n_s32(four));
    const int16x8_t first = vmull_s8(vget_low_s8(w), vget_low_s8(x)), second = vmull_s8(vget_high_s8(w), vget_high_s8(x));
    return into + (Codes)vpaddq_s32(vpaddlq_s16(first), vpaddlq_s16(second));
}
#endif

#else
const bool SIGNED_CODES = false;
inline Codes splat_code_values(const int8_t* values) { return load_codes(values); }
inline Codes looked_up(Codes values, Codes a) {
    uint8_t all[16], bytes[16];
    memcpy(all, &values, 16);
    memcpy(bytes, &a, 16);
    for (uint8_t& byte : bytes) byte = all[byte];
    return load_codes(bytes);
}
inline Register load_float16(const uint16_t* p) {
    return Register{from_float16(p[0]), from_float16(p[1]), from_float16(p[2]), from_float16(p[3])};
}
inline Register load_factors(const int8_t* p) { return Register{(float)p[0], (float)p[1], (float)p[2], (float)p[3]}; }
inline void store_codes(int8_t* p, const Lanes& a) {
    float whole[draftwood::LANES];
    store(whole, nearest(a));
    for (int i = 0; i < draftwood::LANES; i++) p[i] = whole[i] == whole[i] ? (int8_t)(int)whole[i] : 0;
}
inline Codes add_products(Codes into, Codes w, int x) {
    for (int i = 0; i < 32; i += 8) into += (w >> i & 255) * (uint32_t)(int8_t)(x >> i);
    return into;
}
#endif

#if defined(BY_PAIRS)
template <Kind K, int N>
inline Codes dot(const Codes* w, const int8_t* x, int bias) {
    Codes sums = splat_codes(bias);
    const int most = pairs_of_16_bits(K) < N ? pairs_of_16_bits(K) : N;
    for (int i = 0; i < N; i += most) {
        auto some = pair_sums(is_signed(K), w[i], four_inputs(x, i));
        for (int j = i + 1; j < i + most; j++)
            some = add_pair_sums(some, pair_sums(is_signed(K), w[j], four_inputs(x, j)));
        sums += in_32_bits(some);
    }
    return sums;
}
#elif !defined(WITH_OWN_DOT)
template <Kind K, int N>
inline Codes dot(const Codes* w, const int8_t* x, int bias) {
    Codes even = splat_codes(bias), odd = splat_codes(0);
    for (int i = 0; i < N; i += 2) {
        even = add_products(even, w[i], four_inputs(x, i));
        odd = add_products(odd, w[i + 1], four_inputs(x, i + 1));
    }
    return even + odd;
}
#endif
}  // namespace
