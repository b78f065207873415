// Codes of GGUF files: https://github.com/ggml-org/ggml, ggml-common.h and ggml-quants.c.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace draftwood {

// A type of codes. A number is code * scale + least, which float32 holds exactly but for the sum's rounding.
struct CodeKind {
    int kind;           // GGML's number
    int block, bytes;   // numbers of a block, and its size
    int bits;           // 4, or 8 for codes of up to 8
    int span;           // numbers that share a scale
    int center;         // least is -center * scale; 0: it is a number of its own
    void (*unpack)(const uint8_t* block, uint8_t* codes, float* scales, float* least);
};

// The numbers of so many codes.
void expand_codes(const CodeKind& kind, const void* codes, int count, float* to);
// Null for one that is not known.
const CodeKind* code_kind(int kind);

const int FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 30;  // types of plain numbers
// A number of these.
float plain_number(int kind, const void* data, size_t at);

}  // namespace draftwood
