// The types of codes of GGUF files, one row each, and how their blocks become panels.
#include "codes.h"

#include <math.h>
#include <string.h>

#include "floats.h"

namespace draftwood {
namespace {
const int8_t IQ4_VALUES[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const int8_t MXFP4_VALUES[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // twice the numbers of E2M1
const uint16_t SIGN = 0x8000;

uint16_t bits_at(const uint8_t* from) {
    uint16_t bits;
    memcpy(&bits, from, 2);
    return bits;
}

// Lower halves of bytes, then upper ones.
void nibbles(const uint8_t* from, int bytes, uint8_t* codes) {
    for (int i = 0; i < bytes; i++) codes[i] = from[i] & 15;
    for (int i = 0; i < bytes; i++) codes[i + bytes] = from[i] >> 4;
}

// The two bits of number ``i`` of a block of 256, of which 32 lie together four times.
int two_bits(const uint8_t* from, int i) { return from[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3; }

void fifth_bits(const uint8_t* from, uint8_t* codes) {
    for (int i = 0; i < 32; i++) codes[i] |= (from[i / 8] >> i % 8 & 1) << 4;
}

// One scale for all numbers of a block, and perhaps a least number.
void simple(const uint8_t* scale, const uint8_t* low, CodeBlock& to) {
    to.scale = bits_at(scale), to.low = low ? bits_at(low) : 0;
    to.scales[0] = to.lows[0] = 1;
}

// Q4_0, Q4_1, Q5_0, Q5_1: scale, low, fifth bits, nibbles.
template <int BITS, bool LOW>
void q4_or_q5(const uint8_t* b, CodeBlock& to) {
    const uint8_t *fifths = b + (LOW ? 4 : 2), *fours = fifths + (BITS == 5 ? 4 : 0);
    simple(b, LOW ? b + 2 : nullptr, to);
    nibbles(fours, 16, to.codes);
    if (BITS == 5) fifth_bits(fifths, to.codes);
}

void q8_0(const uint8_t* b, CodeBlock& to) {
    simple(b, nullptr, to);
    for (int i = 0; i < 32; i++) to.codes[i] = b[2 + i] ^ 128;  // signed to unsigned
}

void mxfp4(const uint8_t* b, CodeBlock& to) {
    to.wide = ldexpf(1.f, b[0] - 128);
    to.scales[0] = to.lows[0] = 1;
    nibbles(b + 1, 16, to.codes);
}

void q2_k(const uint8_t* b, CodeBlock& to) {
    to.scale = bits_at(b + 80), to.low = bits_at(b + 82) ^ SIGN;
    for (int j = 0; j < 16; j++) to.scales[j] = b[j] & 15, to.lows[j] = b[j] >> 4;
    for (int i = 0; i < 256; i++) to.codes[i] = two_bits(b + 16, i);
}

void q3_k(const uint8_t* b, CodeBlock& to) {
    const uint8_t *high = b, *low = b + 32, *scales = b + 96;
    to.scale = bits_at(b + 108), to.low = 0;
    for (int j = 0; j < 16; j++) {
        const int lower = j < 8 ? scales[j] & 15 : scales[j - 8] >> 4, upper = scales[8 + j % 4] >> j / 4 * 2 & 3;
        to.scales[j] = (lower | upper << 4) - 32;
    }
    for (int i = 0; i < 256; i++) to.codes[i] = two_bits(low, i) | (high[i % 32] >> i / 32 & 1) << 2;
}

// Scales and least numbers of 8 parts of 32: 6 bits each, in 12 bytes.
void scales_of_k(const uint8_t* b, CodeBlock& to) {
    to.scale = bits_at(b), to.low = bits_at(b + 2) ^ SIGN;
    const uint8_t* s = b + 4;
    for (int j = 0; j < 8; j++) {
        to.scales[j] = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        to.lows[j] = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
    }
}

void q4_k(const uint8_t* b, CodeBlock& to) {
    scales_of_k(b, to);
    for (int i = 0; i < 4; i++) nibbles(b + 16 + 32 * i, 32, to.codes + 64 * i);
}

void q5_k(const uint8_t* b, CodeBlock& to) {
    scales_of_k(b, to);
    for (int i = 0; i < 4; i++) nibbles(b + 48 + 32 * i, 32, to.codes + 64 * i);
    for (int i = 0; i < 256; i++) to.codes[i] |= (b[16 + i % 32] >> i / 32 & 1) << 4;
}

void q6_k(const uint8_t* b, CodeBlock& to) {
    to.scale = bits_at(b + 208), to.low = 0;
    memcpy(to.scales, b + 192, 16);
    for (int i = 0; i < 2; i++) nibbles(b + 64 * i, 64, to.codes + 128 * i);
    for (int i = 0; i < 256; i++) to.codes[i] |= two_bits(b + 128, i) << 4;
}

void iq4_xs(const uint8_t* b, CodeBlock& to) {
    to.scale = bits_at(b), to.low = 0;
    const uint16_t upper = bits_at(b + 2);
    for (int j = 0; j < 8; j++) to.scales[j] = ((b[4 + j / 2] >> j % 2 * 4 & 15) | (upper >> 2 * j & 3) << 4) - 32;
    for (int i = 0; i < 8; i++) nibbles(b + 8 + 16 * i, 16, to.codes + 32 * i);
}

const CodeKind KINDS[] = {
    {2, 32, 18, {4, 1, 8, false, HALVES, nullptr}, q4_or_q5<4, false>},      {3, 32, 20, {4, 1, 0, true, HALVES, nullptr}, q4_or_q5<4, true>},
    {6, 32, 22, {5, 1, 16, false, HALVES, nullptr}, q4_or_q5<5, false>},     {7, 32, 24, {5, 1, 0, true, HALVES, nullptr}, q4_or_q5<5, true>},
    {8, 32, 34, {8, 1, 128, false, HALVES, nullptr}, q8_0},    {10, 256, 84, {4, 2, 0, true, BYTES, nullptr}, q2_k},
    {11, 256, 110, {4, 2, 4, false, BYTES, nullptr}, q3_k},    {12, 256, 144, {4, 1, 0, true, BYTES, nullptr}, q4_k},
    {13, 256, 176, {5, 1, 0, true, BYTES, nullptr}, q5_k},     {14, 256, 210, {6, 2, 32, false, BYTES, nullptr}, q6_k},
    {20, 32, 18, {4, 1, 0, false, HALVES, IQ4_VALUES}, q4_or_q5<4, false>}, {23, 256, 136, {4, 1, 0, false, BYTES, IQ4_VALUES}, iq4_xs},
    {39, 32, 17, {4, 1, 0, false, FLOATS, MXFP4_VALUES}, mxfp4},
};

// The codes of a group of one output, 32 bytes, into its lines.
void pack_codes(const Format& format, int output, const uint8_t* codes, uint8_t* lines) {
    auto word = [&](size_t at) { return lines + at + 4 * output; };
    for (int i = 0; i < 8; i++) {  // four inputs in each word
        uint32_t four, there;
        memcpy(&four, codes + 4 * i, 4);
        auto add = [&](size_t line, uint32_t bits) {
            memcpy(&there, word(64 * line), 4);
            there |= bits;
            memcpy(word(64 * line), &there, 4);
        };
        if (format.bits == 8) {
            add(i, four);
            continue;
        }
        add(i / 2, (four & 0x0f0f0f0fu) << i % 2 * 4);
        if (format.bits == 5) add(4, (four >> 4 & 0x01010101u) << i);
        if (format.bits == 6) add(4 + i / 4, (four >> 4 & 0x03030303u) << i % 4 * 2);
    }
}

// The scales of group ``group`` of a superblock, from group ``of`` of a block of the file.
void pack_scales(const Format& format, int output, int group, int of, const CodeBlock& from, uint8_t* head) {
    if (format.scales == FLOATS) memcpy(head + 4 * output, &from.wide, 4);
    if (format.scales == HALVES) {
        memcpy(head + 2 * (group * PANEL + output), &from.scale, 2);
        if (format.low) memcpy(head + 2 * (PANEL + output), &from.low, 2);
    }
    if (format.scales != BYTES) return;
    memcpy(head + 2 * output, &from.scale, 2);
    memcpy(head + 2 * (PANEL + output), &from.low, 2);
    const size_t all = (size_t)format.groups() * format.parts * PANEL;
    for (int part = 0; part < format.parts; part++) {
        const int at = (group * format.parts + part) * PANEL + output;
        head[64 + at] = (uint8_t)from.scales[of * format.parts + part];
        if (format.low) head[64 + all + at] = (uint8_t)from.lows[of * format.parts + part];
    }
}
}  // namespace

void pack_panel(const CodeKind& kind, const uint8_t* const rows[PANEL], int inputs, uint8_t* to) {
    const Format& format = kind.format;
    memset(to, 0, format.panel_bytes(inputs));
    const int groups = inputs / QUANT, of_block = kind.block / QUANT;
    CodeBlock block;
    for (int output = 0; output < PANEL; output++) {
        if (!rows[output]) continue;
        uint8_t *head = to, *lines = to + format.head_bytes();
        for (int g = 0, in = 0; g < groups; g++, in++, lines += format.group_bytes()) {
            if (g % of_block == 0) kind.unpack(rows[output] + (size_t)g / of_block * kind.bytes, block);
            if (in == format.groups()) in = 0, head = lines, lines += format.head_bytes();
            pack_scales(format, output, in, g % of_block, block, head);
            pack_codes(format, output, block.codes + g % of_block * QUANT, lines);
        }
    }
}

void expand_codes(const CodeKind& kind, const void* from, int count, float* to) {
    const uint8_t* at = (const uint8_t*)from;
    const Format& format = kind.format;
    CodeBlock block;
    for (int i = 0; i < count; i += kind.block, at += kind.bytes) {
        kind.unpack(at, block);
        const float scale = format.scales == FLOATS ? block.wide : from_float16(block.scale);
        const float low = format.low ? from_float16(block.low) : 0;
        for (int j = 0; j < kind.block; j++) {
            const int part = j * format.parts / QUANT, code = block.codes[j];
            const int number = format.values ? format.values[code] : code - format.center;
            const float product = number * (scale * block.scales[part]);
            to[i + j] = format.low ? product + low * block.lows[part] : product;
        }
    }
}

float plain_number(int kind, const void* data, size_t at) {
    if (kind == FLOAT32) return ((const float*)data)[at];
    const uint16_t bits = ((const uint16_t*)data)[at];
    return kind == FLOAT16 ? from_float16(bits) : to_float(bits);
}

const CodeKind* code_kind(int kind) {
    for (const CodeKind& one : KINDS)
        if (one.kind == kind) return &one;
    return nullptr;
}
}  // namespace draftwood
