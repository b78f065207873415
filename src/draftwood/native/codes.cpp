#include "codes.h"

#include <math.h>
#include <string.h>

namespace draftwood {
namespace {

float half(const uint8_t* from) {
    uint16_t bits;
    memcpy(&bits, from, 2);
    const int exponent = bits >> 10 & 31, digits = bits & 1023;
    const uint32_t normal = (uint32_t)(bits & 0x7fff) * 8192 + (112u << 23);
    float found = exponent == 31 ? (digits ? NAN : INFINITY) : ldexpf(digits, -24);
    if (exponent && exponent < 31) memcpy(&found, &normal, 4);
    return bits >> 15 ? -found : found;
}

// Halves of 16 bytes: the lower ones come first.
void nibbles(const uint8_t* from, int bytes, uint8_t* codes) {
    for (int i = 0; i < bytes; i++) codes[i] = from[i] & 15, codes[i + bytes] = from[i] >> 4;
}

void fifth_bits(const uint8_t* from, uint8_t* codes) {
    for (int i = 0; i < 32; i++) codes[i] |= (from[i / 8] >> i % 8 & 1) << 4;
}

void q4_0(const uint8_t* b, uint8_t* codes, float* scales, float*) {
    scales[0] = half(b);
    nibbles(b + 2, 16, codes);
}

void q4_1(const uint8_t* b, uint8_t* codes, float* scales, float* least) {
    scales[0] = half(b), least[0] = half(b + 2);
    nibbles(b + 4, 16, codes);
}

void q5_0(const uint8_t* b, uint8_t* codes, float* scales, float*) {
    scales[0] = half(b);
    nibbles(b + 6, 16, codes);
    fifth_bits(b + 2, codes);
}

void q5_1(const uint8_t* b, uint8_t* codes, float* scales, float* least) {
    scales[0] = half(b), least[0] = half(b + 2);
    nibbles(b + 8, 16, codes);
    fifth_bits(b + 4, codes);
}

void q8_0(const uint8_t* b, uint8_t* codes, float* scales, float*) {
    scales[0] = half(b);
    for (int i = 0; i < 32; i++) codes[i] = b[2 + i] ^ 128;  // signed to unsigned
}

// Scales and least numbers of 8 parts of 32: 6 bits each, in 12 bytes.
void scales_of_k(const uint8_t* b, float* scales, float* least) {
    const float d = half(b), m = half(b + 2);
    const uint8_t* s = b + 4;
    for (int j = 0; j < 8; j++) {
        int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        int low = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
        scales[j] = d * scale, least[j] = -(m * low);
    }
}

void q4_k(const uint8_t* b, uint8_t* codes, float* scales, float* least) {
    scales_of_k(b, scales, least);
    for (int i = 0; i < 4; i++) nibbles(b + 16 + 32 * i, 32, codes + 64 * i);
}

void q5_k(const uint8_t* b, uint8_t* codes, float* scales, float* least) {
    scales_of_k(b, scales, least);
    for (int i = 0; i < 4; i++) nibbles(b + 48 + 32 * i, 32, codes + 64 * i);
    for (int i = 0; i < 256; i++) codes[i] |= (b[16 + i % 32] >> i / 32 & 1) << 4;
}

void q6_k(const uint8_t* b, uint8_t* codes, float* scales, float*) {
    const float d = half(b + 208);
    for (int j = 0; j < 16; j++) scales[j] = d * (int8_t)b[192 + j];
    for (int i = 0; i < 2; i++) nibbles(b + 64 * i, 64, codes + 128 * i);
    for (int i = 0; i < 256; i++) codes[i] |= (b[128 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) << 4;
}

const CodeKind KINDS[] = {
    {2, 32, 18, 4, 32, 8, q4_0},      {3, 32, 20, 4, 32, 0, q4_1},      {6, 32, 22, 8, 32, 16, q5_0},
    {7, 32, 24, 8, 32, 0, q5_1},      {8, 32, 34, 8, 32, 128, q8_0},    {12, 256, 144, 4, 32, 0, q4_k},
    {13, 256, 176, 8, 32, 0, q5_k},   {14, 256, 210, 8, 16, 32, q6_k},
};

}  // namespace

void expand_codes(const CodeKind& kind, const void* from, int count, float* to) {
    const uint8_t* block = (const uint8_t*)from;
    uint8_t codes[256];
    float scales[16], least[16];
    for (int i = 0; i < count; i += kind.block, block += kind.bytes) {
        kind.unpack(block, codes, scales, least);
        for (int j = 0; j < kind.block; j++) {
            const int part = j / kind.span;
            to[i + j] = codes[j] * scales[part] + (kind.center ? -kind.center * scales[part] : least[part]);
        }
    }
}

float plain_number(int kind, const void* data, size_t at) {
    if (kind == FLOAT16) return half((const uint8_t*)data + 2 * at);
    uint32_t bits = kind == BFLOAT16 ? (uint32_t)((const uint16_t*)data)[at] << 16 : ((const uint32_t*)data)[at];
    float found;
    memcpy(&found, &bits, 4);
    return found;
}

const CodeKind* code_kind(int kind) {
    for (const CodeKind& one : KINDS)
        if (one.kind == kind) return &one;
    return nullptr;
}

}  // namespace draftwood
