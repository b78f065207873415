// Codes of GGUF files, and how they are packed for products: https://github.com/ggml-org/ggml, ggml-common.h and ggml-quants.c.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace draftwood {
const int PANEL = 16;  // outputs of a panel
const int QUANT = 32;  // inputs of a quantisation group, which an input of a product shares a scale with

// Where a panel has the scales of its groups.
enum Scales {
    HALVES,  // float16, for each group
    FLOATS,  // float32, for each group
    BYTES    // float16 for eight groups, and a factor of 8 bits for each part of a group
};

// How a panel holds codes. A number is (code - center) * scale + low, or values[code] * scale. Superblocks of groups follow each other:
//
//     scales of its groups | codes of its first group | ... | codes of its last group
//
// Scales are [group][output] or, as BYTES: float16 [scale, low][output], then [group][part][output] factors of scales, and of lows.
// Codes of a group are lines of 64 bytes, which hold four successive inputs of each output: line j has inputs 8j to 8j + 3 in the
// lower halves of its bytes and the next four in the upper ones. The upper bits of codes of 5 and 6 bits are in further lines,
// of which each byte has those of eight and of four inputs that lie four apart. Codes of 8 bits have eight lines.
struct Format {
    int bits;    // of a code as it is packed: 4, 5, 6 or 8
    int parts;   // of a group, each with a scale of its own
    int center;
    bool low;
    Scales scales;
    const int8_t* values;  // of sixteen codes, or null

    int groups() const { return scales == BYTES ? 8 : scales == HALVES && !low ? 2 : 1; }  // of a superblock
    size_t head_bytes() const { return 64 + (scales == BYTES ? (size_t)groups() * parts * PANEL * (low ? 2 : 1) : 0); }
    size_t group_bytes() const { return (size_t)bits * 64; }
    size_t superblock_bytes() const { return head_bytes() + groups() * group_bytes(); }
    size_t panel_bytes(int inputs) const {
        const int count = inputs / QUANT;
        return (count + groups() - 1) / groups() * head_bytes() + count * group_bytes();
    }
};

struct Panel {
    const uint8_t* codes;
    const Format* format;  // null: it and its strip's other panel are numbers, which lie in the first one
};

// A block of codes as a file has it. Scales and lows of a part are products: scale * scales[part], low * lows[part].
struct CodeBlock {
    uint8_t codes[256];
    uint16_t scale, low;  // bits of float16
    float wide;           // the scale as a number
    int8_t scales[16], lows[16];
};

// A type of codes.
struct CodeKind {
    int kind;          // GGML's number
    int block, bytes;  // numbers of a block, and its size
    Format format;
    void (*unpack)(const uint8_t* from, CodeBlock& to);
};

// The numbers of so many codes.
void expand_codes(const CodeKind& kind, const void* codes, int count, float* to);
// Pack rows of a matrix, null for those of zeros, as a panel.
void pack_panel(const CodeKind& kind, const uint8_t* const rows[PANEL], int inputs, uint8_t* to);
// Null for one that is not known.
const CodeKind* code_kind(int kind);

const int FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 30;  // types of plain numbers
// A number of these.
float plain_number(int kind, const void* data, size_t at);
}  // namespace draftwood
