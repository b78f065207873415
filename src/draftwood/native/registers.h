// A register of floats of the instruction set that a file is compiled for.
//
// The contract: each block below supplies, for one instruction set,
//   REGISTER, Register                 floats of a register, a vector of so many with the operators + - * /
//   fused(a, b, c)                     a * b + c, rounded once
//   larger, smaller                    of NaN the second operand
//   nearest                            the nearest integer, halves to even
//   times_power(a, n)                  a times two to the power of n, a whole number from -126 to 127
//   widened(p)                         REGISTER numbers of bfloat16
//   fold_register(a, both)             one number of a register: its halves together, then theirs, until one is left
//   WITH_FMA                           whether ``fused`` is an instruction
// All of these have the same bits on all instruction sets; only NaNs may differ in kind. Integers of codes: integers.h.
#pragma once
#include <math.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "floats.h"

namespace {
#if defined(__AVX2__) && defined(__FMA__)
const bool WITH_FMA = true;
inline __m128 larger(__m128 a, __m128 b) { return _mm_max_ps(a, b); }
inline __m256 larger(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
template <class F>
inline float fold_register(__m256 a, F both) {
    __m128 four = both(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    four = both(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(both(four, _mm_shuffle_ps(four, four, 1)));
}
#endif

#if defined(__AVX512F__)
const int REGISTER = 16;
typedef __m512 Register;
inline Register fused(Register a, Register b, Register c) { return _mm512_fmadd_ps(a, b, c); }
inline Register larger(Register a, Register b) { return _mm512_max_ps(a, b); }
inline Register smaller(Register a, Register b) { return _mm512_min_ps(a, b); }
inline Register nearest(Register a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Register times_power(Register a, Register n) { return _mm512_scalef_ps(a, n); }
inline Register widened(const uint16_t* p) {
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}
template <class F>
inline float fold_register(Register a, F both) {
    return fold_register(both(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)), both);
}

#elif defined(__AVX2__) && defined(__FMA__)
const int REGISTER = 8;
typedef __m256 Register;
inline Register fused(Register a, Register b, Register c) { return _mm256_fmadd_ps(a, b, c); }
inline Register smaller(Register a, Register b) { return _mm256_min_ps(a, b); }
inline Register nearest(Register a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Register times_power(Register a, Register n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
inline Register widened(const uint16_t* p) {
    const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}

#elif defined(__aarch64__)
const bool WITH_FMA = true;
const int REGISTER = 4;
typedef float32x4_t Register;
inline Register fused(Register a, Register b, Register c) { return vfmaq_f32(c, a, b); }
inline Register larger(Register a, Register b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline Register smaller(Register a, Register b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
inline Register nearest(Register a) { return vrndnq_f32(a); }
inline Register times_power(Register a, Register n) {
    const int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
    return vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
}
inline Register widened(const uint16_t* p) { return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(p)), 16)); }
template <class F>
inline float fold_register(Register a, F both) {
    a = both(a, vextq_f32(a, a, 2));
    return vgetq_lane_f32(both(a, vextq_f32(a, a, 1)), 0);
}

#else
// Any processor: the compiler makes vectors of what there is.
const bool WITH_FMA = false;
const int REGISTER = 4;
typedef float Register __attribute__((vector_size(16)));
// The sum of float64 is rounded to odd, so that float32 rounds it rightly.
inline Register fused(Register a, Register b, Register c) {
    typedef double Doubles __attribute__((vector_size(32)));
    typedef int64_t Longs __attribute__((vector_size(32)));
    typedef uint64_t Bits __attribute__((vector_size(32)));
    const Doubles added = __builtin_convertvector(c, Doubles);
    const Doubles product = __builtin_convertvector(a, Doubles) * __builtin_convertvector(b, Doubles), sum = product + added;
    const Doubles part = sum - product, error = (product - (sum - part)) + (added - part);
    const Longs bits = (Longs)sum, step = 1 - 2 * (Longs)((Bits)(bits ^ (Longs)error) >> 63), even = (bits & 1) - 1;
    const Longs inexact = (Longs)(error > 0.) | (Longs)(error < 0.);
    return __builtin_convertvector((Doubles)(bits + (step & even & inexact)), Register);
}
inline Register larger(Register a, Register b) { return a > b ? a : b; }
inline Register smaller(Register a, Register b) { return a < b ? a : b; }
inline Register nearest(Register a) {
    const float whole = 12582912.f;  // 1.5 * 2 ** 23: what is added to it has no fraction
    return (a + whole) - whole;
}
inline Register times_power(Register a, Register n) {
    typedef int32_t Integers __attribute__((vector_size(16)));
    return a * (Register)((__builtin_convertvector(n, Integers) + 127) << 23);
}
inline Register widened(const uint16_t* p) { return Register{to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])}; }
template <class F>
inline float fold_register(Register a, F both) {
    a = both(a, Register{a[2], a[3], a[0], a[1]});
    return both(a, Register{a[1], a[0], a[3], a[2]})[0];
}
#endif

typedef uint32_t Words __attribute__((vector_size(4 * REGISTER)));  // the bits of a register
inline Register load_register(const float* p) {
    Register a;
    memcpy(&a, p, sizeof a);
    return a;
}
inline void store_register(float* p, const Register& a) { memcpy(p, &a, sizeof a); }
inline Register splat_register(float a) { return a - Register{}; }  // also of -0
}  // namespace
