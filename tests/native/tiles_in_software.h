// The instructions of AMX in software, to test what surrounds them on a processor that lacks them: a file to include before all.
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace {

__attribute__((no_sanitize("address", "undefined"), optimize("O2"))) inline float widened_number(uint16_t bfloat16) {
    const uint32_t bits = (uint32_t)bfloat16 << 16;
    float number;
    memcpy(&number, &bits, 4);
    return number;
}

struct EmulatedTile {
    uint8_t bytes[16][64];
};
thread_local EmulatedTile emulated[8];
thread_local int emulated_rows[8], emulated_width[8];

inline void load_tile(int tile, const void* from, size_t step) {
    memset(&emulated[tile], 0, sizeof emulated[tile]);
    for (int r = 0; r < emulated_rows[tile]; r++)
        memcpy(emulated[tile].bytes[r], (const uint8_t*)from + r * step, emulated_width[tile]);
}
inline void store_tile(int tile, void* to, size_t step) {
    for (int r = 0; r < emulated_rows[tile]; r++)
        memcpy((uint8_t*)to + r * step, emulated[tile].bytes[r], emulated_width[tile]);
}
// Products touch tiles alone, and are as fast as they can be: all else is compiled for a sanitizer.
#pragma GCC push_options
#pragma GCC optimize("O2")
#define OF_TILES __attribute__((no_sanitize("address", "undefined"))) inline void
// A processor refuses products of other shapes.
OF_TILES check_shapes(int sums, int x, int w) {
    const bool fit = emulated_rows[sums] == emulated_rows[x] && emulated_width[sums] == emulated_width[w];
    if (!fit || !emulated_rows[x] || emulated_width[x] != 4 * emulated_rows[w]) abort();
}
OF_TILES add_tile_products_of_codes(int sums, int x, int w) {
    check_shapes(sums, x, w);
    for (int r = 0; r < emulated_rows[sums]; r++)
        for (int n = 0; n < 16; n++) {
            int sum;
            memcpy(&sum, &emulated[sums].bytes[r][4 * n], 4);
            for (int k = 0; k < emulated_width[x]; k++)
                sum += (int8_t)emulated[x].bytes[r][k] * emulated[w].bytes[k / 4][4 * n + k % 4];
            memcpy(&emulated[sums].bytes[r][4 * n], &sum, 4);
        }
}
OF_TILES add_tile_products(int sums, int x, int w) {
    check_shapes(sums, x, w);
    for (int r = 0; r < emulated_rows[sums]; r++)
        for (int n = 0; n < 16; n++) {
            float sum, parts[2] = {0, 0};  // of even and of odd inputs
            memcpy(&sum, &emulated[sums].bytes[r][4 * n], 4);
            for (int k = 0; k < 32; k++) {
                uint16_t a, b;
                memcpy(&a, &emulated[x].bytes[r][2 * k], 2);
                memcpy(&b, &emulated[w].bytes[k / 2][4 * n + 2 * (k % 2)], 2);
                parts[k % 2] += widened_number(a) * widened_number(b);
            }
            sum += parts[0] + parts[1];
            memcpy(&emulated[sums].bytes[r][4 * n], &sum, 4);
        }
}
#pragma GCC pop_options

}  // namespace

#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbsud
#undef _tile_zero
#undef _tile_loadconfig
#define _tile_loadd(tile, from, step) load_tile(tile, from, step)
#define _tile_stored(tile, to, step) store_tile(tile, to, step)
#define _tile_dpbf16ps(sums, x, w) add_tile_products(sums, x, w)
#define _tile_dpbsud(sums, x, w) add_tile_products_of_codes(sums, x, w)
#define _tile_zero(tile) memset(&emulated[tile], 0, sizeof emulated[tile])
#define _tile_loadconfig(config) \
    for (int i = 0; i < 8; i++) emulated_rows[i] = (config)->rows[i], emulated_width[i] = (config)->bytes[i]
