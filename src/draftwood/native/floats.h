// Numbers of 16 bits, one at a time. Functions here are a file's own: each file is compiled with its own instructions.
#pragma once
#include <stdint.h>
#include <string.h>

namespace {
inline float from_bits(uint32_t bits) {
    float number;
    memcpy(&number, &bits, 4);
    return number;
}

inline float to_float(float number) { return number; }
inline float to_float(uint16_t bfloat16) { return from_bits((uint32_t)bfloat16 << 16); }

// The nearest bfloat16, halves to even; of every NaN the same one.
inline uint16_t to_bfloat16(float number) {
    uint32_t bits;
    memcpy(&bits, &number, 4);
    const uint32_t up = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (uint16_t)up;
}

inline float from_float16(uint16_t bits) {
    const uint32_t exponent = bits >> 10 & 31, digits = bits & 1023, sign = (uint32_t)(bits >> 15) << 31;
    if (exponent == 31) return from_bits(sign | 0x7f800000u | digits << 13);
    const float small = digits * (1.f / (1 << 24));
    return exponent ? from_bits(sign | (exponent + 112) << 23 | digits << 13) : sign ? -small : small;
}
}  // namespace
