// Products of panels of codes by AMX: 16 rows of 32 inputs in 8 bits with those of 16 outputs in one instruction.
//
// A tile's sums are those of one quantisation group, the integers of ``dot``, and ``add_sum`` adds them up as everywhere. Tiles wait
// for memory that was just written, so codes are unpacked a span of groups ahead, and the sums of a tile of rows are added while
// those of the next one are made.
#pragma once
#include "panels.h"
#include "tiles.h"

namespace {
using draftwood::Panel, draftwood::TILE;

const int SPAN = 8;  // quantisation groups
const int GROUP_CODES = QUANT * PANEL;
const int GROUP_SUMS = TILE * PANEL;
const int FOR_CODES = -1;  // how the tiles are configured

// The codes of groups [from, to), less their center.
template <Kind K>
inline void unpack_groups(const Panel& panel, int from, int to, uint8_t* codes) {
    const __m512i center = _mm512_set1_epi8((char)(K == VALUES ? 128 : panel.format->center));
    for (int g = from; g < to; g++, codes += GROUP_CODES) {
        const uint8_t* at = panel.codes + panel.format->group_at(g);
        for (int i = 0; i < panel.format->bits; i++) __builtin_prefetch(at + CODES_AHEAD + 64 * i);
        Codes w[8];
        read_codes<K>(at, panel.format->values, w);
        for (int i = 0; i < 8; i++) _mm512_store_si512(codes + 64 * i, _mm512_sub_epi8((__m512i)w[i], center));
    }
}

// The sums of groups [from, to) of a tile of rows.
inline void multiply_groups(const uint8_t* codes, const Inputs& x, int row, int from, int to, int* sums) {
    asm volatile("" ::: "memory");  // gcc does not know that tiles are loaded from memory
    for (int g = from; g < to; g++, codes += GROUP_CODES, sums += GROUP_SUMS) {
        _tile_loadd(4, x.codes + (size_t)row * x.size + g * QUANT, x.size);
        _tile_loadd(6, codes, 4 * PANEL);
        _tile_zero(0);
        _tile_dpbssd(0, 4, 6);
        _tile_stored(0, sums, sizeof(int) * PANEL);
    }
    asm volatile("" ::: "memory");
}

inline void add_groups(const Panel& panel, const Inputs& x, int row, int from, int to, const int* sums, float* out, size_t next_out) {
    const draftwood::Format& format = *panel.format;
    const int groups = x.groups_of_row();
    const InputGroup* inputs = x.groups + (size_t)row * groups;
    Floats all[TILE];
    for (int r = 0; r < TILE; r++) all[r] = from ? load_floats(out + r * next_out) : splat_floats(0);
    for (int g = from; g < to; g++, sums += GROUP_SUMS) {
        Floats scale, low;
        read_scales(format, panel.codes + format.superblock_at(g), g % format.groups(), 0, 0, scale, low);
        for (int r = 0; r < TILE; r++)
            all[r] = add_sum(all[r], load_codes(sums + r * PANEL), scale, low, format.low, inputs[r * groups + g]);
    }
    for (int r = 0; r < TILE; r++) store_floats(out + r * next_out, all[r]);
}

template <Kind K>
void multiply_tiles(const Panel& panel, const Inputs& x, int tiles, float* out, size_t next_out) {
    const int groups = x.groups_of_row(), spans = (groups + SPAN - 1) / SPAN;
    alignas(64) uint8_t codes[2][SPAN * GROUP_CODES];
    alignas(64) int sums[2][SPAN * GROUP_SUMS];
    auto end_of = [&](int span) { return span + 1 < spans ? (span + 1) * SPAN : groups; };
    auto unpack = [&](int span) { unpack_groups<K>(panel, span * SPAN, end_of(span), codes[span % 2]); };
    unpack(0);
    for (int i = 0; i <= spans * tiles; i++) {
        const int span = i / tiles, before = (i - 1) / tiles, row = (i - 1) % tiles * TILE;
        if (i % tiles == 0 && span + 1 < spans) unpack(span + 1);
        if (span < spans) multiply_groups(codes[span % 2], x, i % tiles * TILE, span * SPAN, end_of(span), sums[i % 2]);
        if (i) add_groups(panel, x, row, before * SPAN, end_of(before), sums[(i - 1) % 2], out + row * next_out, next_out);
    }
}

// The products of whole tiles of rows with a panel; returns how many rows these are.
inline int multiply_panel_by_amx(const Panel& panel, const Inputs& x, int rows, float* out, size_t next_out, int& configured) {
    // Codes of 8 bits, and those with two scales of a group, are as fast without tiles.
    if (rows < TILE || panel.format->bits == 8 || panel.format->parts > 1) return 0;
    if (configured != FOR_CODES) configure(TILE, QUANT, QUANT / 4), configured = FOR_CODES;
    by_kind(*panel.format, [&](auto of) {
        constexpr Kind kind = decltype(of)::value;
        if constexpr (kind != SIX && kind != EIGHT) multiply_tiles<kind>(panel, x, rows / TILE, out, next_out);
    });
    return rows / TILE * TILE;
}
}  // namespace
