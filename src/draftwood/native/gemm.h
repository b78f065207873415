// Products of rows of inputs with two panels of weights (GEMM): tiles of rows whose sums stay in registers.
#pragma once
#include "formats.h"

namespace {
using namespace draftwood;

#if defined(__AVX512F__)
const int ROWS = 12;  // rows of a tile whose sums stay in registers
#elif defined(__AVX2__)
const int ROWS = 3;
#else
const int ROWS = 1;
#endif
const int AHEAD = 8192;  // bytes of a matrix that a tile fetches into the second cache before it needs them
const int FEW = 8;       // products of a step, up to which a processor reads far enough ahead by itself

inline int least(int a, int b) { return a < b ? a : b; }
inline int most(int a, int b) { return a > b ? a : b; }
inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Where the weights of two panels lie: distances are in numbers. Those of a matrix are followed by others, and keys and values by
// those of the next page, so many bytes further, if any; they are fetched before they are needed. Those made of codes are not.
struct TwoPanels {
    const Weight* weights;
    size_t next_step, next_panel;
    int inputs;
    bool of_matrix = false;
    ptrdiff_t next_page = 0;
};

// The products of R rows x[r] with two panels; ``more`` adds them to what out[r] holds. The sums stay in registers only if the
// loops over them are unrolled early, which a compiler does by itself for some of them.
template <int R>
void tile(const TwoPanels& a, const Input* x, size_t next_x, float* out, size_t next_out, bool more) {
    Lanes sums[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int p = 0; p < 2; p++) sums[r][p] = more ? load(out + r * next_out + p * LANES) : splat(0.f);
    const Weight* w = a.weights;
    constexpr bool few = R == 1 || 2 * R * sizeof(N::Vector) / sizeof(Register) <= FEW;
    const ptrdiff_t ahead = !a.of_matrix ? a.next_page : few ? 0 : AHEAD;
    for (int k = 0; k < a.inputs; k += N::step, w += a.next_step) {
        for (int p = 0; p < 2; p++)
            __builtin_prefetch((const char*)(w + p * a.next_panel) + ahead, 0, 2);
        const N::Vector first = N::load_vector(w), second = N::load_vector(w + a.next_panel);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            sums[r][0] = N::add_product(sums[r][0], first, x + r * next_x + k);
            sums[r][1] = N::add_product(sums[r][1], second, x + r * next_x + k);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int p = 0; p < 2; p++) store(out + r * next_out + p * LANES, sums[r][p]);
}

template <int R = 1>
auto tile_of(int rows) {
    if constexpr (R == ROWS) return tile<R>;
    else return rows == R ? tile<R> : tile_of<R + 1>(rows);
}

// The same for any number of rows.
inline void tiles(const TwoPanels& a, int rows, const Input* x, size_t next_x, float* out, size_t next_out, bool more) {
    const int size = ceil_div(rows, ceil_div(rows, ROWS));
    for (int r = 0; r < rows; r += size) tile_of(least(size, rows - r))(a, x + r * next_x, next_x, out + r * next_out, next_out, more);
}
}  // namespace
