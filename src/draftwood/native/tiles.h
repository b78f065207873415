// Products by AMX: 16 rows of 32 inputs with 32 inputs of 16 outputs in one instruction.
#pragma once
#include "integers.h"

namespace {
struct __attribute__((packed)) TileConfig {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

struct TileShape {
    uint8_t rows, bytes;
};

__attribute__((noinline)) void configure(const TileShape (&tiles)[8]) {
    alignas(64) TileConfig config;
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int i = 0; i < 8; i++) config.bytes[i] = tiles[i].bytes, config.rows[i] = tiles[i].rows;
    asm volatile("" ::: "memory");  // gcc drops these stores otherwise
    _tile_loadconfig(&config);
    asm volatile("" ::: "memory");
}

// Of numbers: tiles 0 to 3 are sums, 4 and 5 inputs; 6 and 7 are weights, of always 16 rows.
inline void configure(uint8_t rows) {
    configure({{rows, 64}, {rows, 64}, {rows, 64}, {rows, 64}, {rows, 64}, {rows, 64}, {16, 64}, {16, 64}});
}

// Of codes: tile 0 has sums, 1 and 2 inputs and weights of a quantisation group, 3 and 4 those of half a group.
inline void configure_for_codes(int& configured) {
    if (configured < 0) return;
    configure({{16, 64}, {16, 32}, {8, 64}, {16, 16}, {4, 64}, {}, {}, {}});
    configured = -1;
}

const int MANY_ROWS = 12;  // fewer wait for their sums to go through memory

// The sums of the products of a group's codes with rows of inputs, [part][row]; those of rows up to the next multiple of TILE are
// made too, of what follows the inputs.
template <Kind K, int PARTS, int ROWS>
inline void multiply_codes(const Codes* w, const int8_t* x, int rows, Codes (&sums)[PARTS][ROWS]) {
    const int part = draftwood::QUANT / PARTS;
    asm volatile("" ::: "memory");  // gcc does not know what tiles are loaded from and stored to
    for (int p = 0; p < PARTS; p++) {
        if constexpr (PARTS == 1) _tile_loadd(2, w, sizeof *w);
        else _tile_loadd(4, w + 4 * p, sizeof *w);
        for (int r = 0; r < rows; r += draftwood::TILE) {
            const int8_t* from = x + r * draftwood::QUANT + p * part;
            _tile_zero(0);
            if constexpr (PARTS == 1) {
                _tile_loadd(1, from, draftwood::QUANT);
                _tile_dpbsud(0, 1, 2);
            } else {
                _tile_loadd(3, from, draftwood::QUANT);
                _tile_dpbsud(0, 3, 4);
            }
            _tile_stored(0, sums[p] + r, sizeof(Codes));
        }
    }
    asm volatile("" ::: "memory");
}

const int TILES_AHEAD = 12 << 10;  // bytes of weights that are fetched before they are needed, also those of the next strips

// As ``tiles``; inputs are a multiple of 32. The tiles of more than TILE rows are alike, so ``x`` and ``out`` have room for whole
// ones.
void tiles_of_amx(const TwoPanels& a, int rows, const uint16_t* x, size_t next_x, float* out, size_t next_out, bool more,
                  int& configured) {
    const int count = (rows + draftwood::TILE - 1) / draftwood::TILE, size = (rows + count - 1) / count;
    if (configured != size) configure(configured = size);
    asm volatile("" ::: "memory");  // gcc does not know that tiles are loaded from memory
    const size_t step = a.next_step * sizeof(uint16_t), next = next_out * sizeof(float);  // bytes
    for (int r = 0; r < rows; r += 2 * size) {
        const bool two = r + size < rows;
        const uint16_t *weights = (const uint16_t*)a.weights, *row = x + r * next_x, *other = row + size * next_x;
        float *sums = out + r * next_out, *others = sums + size * next_out;
        if (more) {
            _tile_loadd(0, sums, next);
            _tile_loadd(1, sums + draftwood::LANES, next);
            if (two) _tile_loadd(2, others, next);
            if (two) _tile_loadd(3, others + draftwood::LANES, next);
        } else {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
        }
        for (int k = 0; k < a.inputs; k += 32, weights += 16 * a.next_step) {
            for (int line = 0; line < 32 && a.of_matrix && !r; line++)
                __builtin_prefetch((const char*)weights + TILES_AHEAD + 64 * line);
            _tile_loadd(4, row + k, next_x * sizeof(uint16_t));
            _tile_loadd(6, weights, step);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, weights + a.next_panel, step);
            _tile_dpbf16ps(1, 4, 7);
            if (!two) continue;
            _tile_loadd(5, other + k, next_x * sizeof(uint16_t));
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, sums, next);
        _tile_stored(1, sums + draftwood::LANES, next);
        if (two) _tile_stored(2, others, next);
        if (two) _tile_stored(3, others + draftwood::LANES, next);
    }
}
}  // namespace
