// Products of panels of codes with inputs that are rounded to 8 bits, by quantisation groups of 32 inputs.
//
// The sum of a group is an integer; what follows is float32 in one order, so that scores have the same bits everywhere.
#pragma once
#include "formats.h"
#include "integers.h"
#if defined(DRAFTWOOD_AMX)
#include "tiles.h"
#endif

namespace {
using draftwood::LANES, draftwood::PANEL, draftwood::QUANT;

// A quantisation group of an input: its scale, times the sum of its codes, and that sum, of all and of the first half.
struct InputGroup {
    float scale, total;
    int sum, half;
};

const int PANEL_ROWS = 32;  // rows that are multiplied with a panel together, at most

// Rows of inputs as codes. Those that are multiplied together are a tile: [tile][group][row of the tile].
struct Inputs {
    int8_t* codes;
    InputGroup* groups;
    int size, rows;

    Inputs tile(int first) const {
        const size_t at = (size_t)first * size;
        return {codes + at, groups + at / QUANT, size, rows - first < PANEL_ROWS ? rows - first : PANEL_ROWS};
    }
};

// A row of a tile as codes: of each group the largest magnitude is 127, halves are rounded to even. A group that holds a NaN
// or an infinity has the scale NaN; one of numbers below 1e-30 is zero.
inline void quantise_row(const float* from, int row, const Inputs& to) {
#if defined(WITH_PAIRS)
    const bool paired = (row | 1) < to.rows;
#else
    const bool paired = false;
#endif
    int8_t alone[QUANT], *codes = to.codes + (paired ? row / 2 * 2 * QUANT + row % 2 * 8 : row * QUANT);
    InputGroup* group = to.groups + row;
    for (int g = 0; g < to.size / QUANT; g++, from += QUANT, codes += to.rows * QUANT, group += to.rows) {
        const Lanes a = load(from), b = load(from + LANES), zero = splat(0.f);
        const float top = greatest(greater(greater(a, zero - a), greater(b, zero - b)));
        const float invalid = sum(a * zero + b * zero);  // NaN, or zero
        const bool empty = !(top >= 1e-30f) || invalid != 0;
        const Lanes factor = splat(empty ? 0.f : 127 / top);
        int8_t* own = paired ? alone : codes;
        store_codes(own, a * factor);
        store_codes(own + LANES, b * factor);
        for (int i = 0; paired && i < QUANT; i += 8) memcpy(codes + 2 * i, own + i, 8);
        auto total = [&](const Lanes& some) { return invalid == 0 ? (int)sum(nearest(some)) : 0; };
        const int half = total(a * factor), rest = total(b * factor);
        const float scale = empty ? invalid : top / 127;
        *group = {scale, (half + rest) * scale, half + rest, half};
    }
}

inline void quantise(const float* from, const Inputs& to) {
    for (int r = 0; r < to.rows; r++)
        quantise_row(from + (size_t)r * to.size, r % PANEL_ROWS, to.tile(r - r % PANEL_ROWS));
}

// A word that is a byte four times.
inline constexpr uint32_t four_times(uint32_t byte) { return byte * 0x01010101u; }

// The codes of a group, from line ``p`` on, of the outputs of a register; those of VALUES are values. Those of EIGHT and VALUES
// have a sign or an offset of 128, as SIGNED_CODES says.
template <Kind K>
inline void read_codes(const uint8_t* p, const int8_t* values, Codes* w) {
    if constexpr (K == EIGHT) {
        for (int i = 0; i < 8; i++) w[i] = SIGNED_CODES ? load_codes(p + 64 * i) ^ four_times(128) : load_codes(p + 64 * i);
        return;
    }
    for (int i = 0; i < 4; i++) {
        const Codes both = load_codes(p + 64 * i);
        w[2 * i] = both & four_times(15);
        w[2 * i + 1] = (both >> 4) & four_times(15);
    }
    if constexpr (K == FIVE) {
        const Codes upper = load_codes(p + 256);
        for (int i = 0; i < 8; i++) w[i] = w[i] | ((i < 4 ? upper << (4 - i) : upper >> (i - 4)) & four_times(16));
    }
    if constexpr (K == SIX)
        for (int i = 0; i < 8; i++) {
            const Codes upper = load_codes(p + 256 + i / 4 * 64);
            w[i] = w[i] | ((i % 4 < 3 ? upper << (4 - i % 4 * 2) : upper >> 2) & four_times(48));
        }
    if constexpr (K == VALUES) {
        const Codes table = splat_code_values(values);
        for (int i = 0; i < 8; i++) w[i] = looked_up(SIGNED_CODES ? table : table ^ four_times(128), w[i]);
    }
}

// ``some(kind)`` for the kind of a format's codes, whose value is a constant.
template <auto V>
struct Constant {
    static const auto value = V;
};
template <class F>
inline void by_kind(const draftwood::Format& format, F some) {
    if (format.values) some(Constant<VALUES>());
    else if (format.bits == 8) some(Constant<EIGHT>());
    else if (format.bits == 6) some(Constant<SIX>());
    else if (format.bits == 5) some(Constant<FIVE>());
    else some(Constant<FOUR>());
}

// The scales and lows of a part of group ``group`` of a superblock, of the outputs from ``output`` on.
inline void read_scales(const draftwood::Format& format, const uint8_t* head, int group, int part, int output, Register& scale,
                        Register& low) {
    const uint16_t* simple = (const uint16_t*)head;
    if (format.scales == draftwood::FLOATS) scale = load_register((const float*)head + output);
    if (format.scales == draftwood::HALVES) {
        scale = load_float16(simple + group * PANEL + output);
        if (format.low) low = load_float16(simple + PANEL + output);
    }
    if (format.scales != draftwood::BYTES) return;
    const int8_t* own = (const int8_t*)head + 64 + (group * format.parts + part) * PANEL + output;
    scale = load_float16(simple + output) * load_factors(own);
    if (format.low) low = load_float16(simple + PANEL + output) * load_factors(own + format.groups() * format.parts * PANEL);
}

const int CODES_AHEAD = 4096;  // bytes of a panel that are fetched before they are needed

// The sum of an output and a group: float(dot) * scale_w * scale_x after low_w * (scale_x * sum_x), each a fused product.
// ``dot_of(part, bias)`` is ``bias`` and the sum of products of a part.
template <int PARTS, class D>
inline Register add_group(Register sum, const Register* scale, const Register* low, bool has_low, int center, const InputGroup& input,
                        D dot_of) {
    for (int p = 0; p < PARTS; p++) {
        const int total = PARTS == 1 ? input.sum : p == 0 ? input.half : input.sum - input.half;
        if (has_low) sum = fused(low[p], splat_register(PARTS == 1 ? input.total : total * input.scale), sum);
        sum = fused(to_floats(dot_of(p, -center * total)), scale[p] * splat_register(input.scale), sum);
    }
    return sum;
}

// The products of a tile of rows, or of ONE, with a panel: the weights of a group are read once for all rows.
template <Kind K, int PARTS, bool ONE>
void panel_product(const draftwood::Format& format, const uint8_t* at, const Inputs& x, float* out, size_t next_out) {
    const int rows = ONE ? 1 : x.rows, groups = x.size / QUANT, center = SIGNED_CODES && is_signed(K) ? 0 : K == VALUES ? 128 : format.center;
    const int8_t* codes = x.codes;
    const InputGroup* inputs = x.groups;
    const bool has_low = format.low;
    // Few instructions lie between the loads of one row: a processor has enough of them under way by itself, and sooner so.
    constexpr bool fetches = !ONE || REGISTERS * PARTS > 2;
    Lanes sums[ONE ? 1 : PANEL_ROWS];
    for (int r = 0; r < rows; r++) sums[r] = splat(0);
    for (int g = 0; g < groups;) {
        const uint8_t* head = at;
        at += format.head_bytes();
        for (int in = 0; in < format.groups() && g < groups; in++, g++, at += format.group_bytes()) {
            for (int side = 0; side < REGISTERS; side++) {
                for (int i = side; fetches && i < (K == EIGHT ? 8 : K == SIX ? 6 : K == FIVE ? 5 : 4); i += REGISTERS)
                    __builtin_prefetch(at + CODES_AHEAD + 64 * i);
                Codes w[8];
                read_codes<K>(at + 4 * REGISTER * side, format.values, w);
                Register scale[PARTS], low[PARTS];
                for (int p = 0; p < PARTS; p++) read_scales(format, head, in, p, REGISTER * side, scale[p], low[p]);
                auto add = [&](int r, auto dot_of) {
                    sums[r].v[side] = add_group<PARTS>(sums[r].v[side], scale, low, has_low, center, inputs[r], dot_of);
                };
#if defined(DRAFTWOOD_AMX) || defined(WITH_PAIRS)
                if (rows >= MANY_ROWS) {
                    Codes dots[PARTS][PANEL_ROWS];
                    multiply_codes<K>(w, codes, rows, dots);
                    for (int r = 0; r < rows; r++) add(r, [&](int p, uint32_t bias) { return dots[p][r] + bias; });
                    continue;
                }
#endif
                for (int r = 0; r < rows; r++)
                    add(r, [&](int p, int bias) {
                        return dot<K, 8 / PARTS>(w + 8 / PARTS * p, codes + r * QUANT + QUANT / PARTS * p, bias);
                    });
            }
            codes += rows * QUANT;
            inputs += rows;
        }
    }
    for (int r = 0; r < rows; r++) store(out + r * next_out, sums[r]);
}

template <Kind K, int PARTS>
void panel_products(const draftwood::Format& format, const uint8_t* at, const Inputs& x, float* out, size_t next_out) {
    for (int r = 0; r < x.rows; r += PANEL_ROWS) {
        const Inputs some = x.tile(r);
        auto product = some.rows == 1 ? panel_product<K, PARTS, true> : panel_product<K, PARTS, false>;
        product(format, at, some, out + r * next_out, next_out);
    }
}

// The products of rows with a panel.
inline void multiply_panel(const draftwood::Panel& a, const Inputs& x, float* out, size_t next_out) {
    const draftwood::Format& format = *a.format;
    by_kind(format, [&](auto of) {
        constexpr Kind kind = decltype(of)::value;
        if constexpr (kind == SIX) panel_products<kind, 2>(format, a.codes, x, out, next_out);
        else if (kind == FOUR && format.parts == 2) panel_products<FOUR, 2>(format, a.codes, x, out, next_out);
        else panel_products<kind, 1>(format, a.codes, x, out, next_out);
    });
}

// The numbers of a group of a panel, rounded to bfloat16: [pair of inputs][output][input of the pair], pairs ``next`` apart.
inline void expand_group(const draftwood::Panel& panel, int group, uint16_t* to, size_t next) {
    const draftwood::Format& format = *panel.format;
    const uint8_t* head = panel.codes + format.superblock_bytes() * (group / format.groups());
    group %= format.groups();
    const uint8_t* at = head + format.head_bytes() + group * format.group_bytes();
    const Lanes center = splat(format.values ? -128.f : (float)-format.center);
    const bool with_sign = SIGNED_CODES && (format.values || format.bits == 8);
    Codes w[REGISTERS][8];
    for (int side = 0; side < REGISTERS; side++) {
        by_kind(format, [&](auto of) { read_codes<decltype(of)::value>(at + 4 * REGISTER * side, format.values, w[side]); });
        for (int i = 0; i < 8 && with_sign; i++) w[side][i] = w[side][i] ^ four_times(128);
    }
    for (int part = 0; part < format.parts; part++) {
        Lanes scale, low;
        for (int side = 0; side < REGISTERS; side++)
            read_scales(format, head, group, part, REGISTER * side, scale.v[side], low.v[side]);
        if (!format.low) low = center * scale;
        auto number = [&](int k) {
            return fma(each([&](int side) { return to_floats((w[side][k / 4] >> 8 * (k % 4)) & 255); }), scale, low);
        };
        for (int k = part * QUANT / format.parts; k < (part + 1) * QUANT / format.parts; k += 2)
            Bfloat16::store_pairs(to + k / 2 * next, number(k), number(k + 1));
    }
}
}  // namespace
