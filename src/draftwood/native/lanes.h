// Sixteen lanes of floats, whatever the instruction set's registers hold, and the functions of a network in them.
//
// Every sum has one order: along the inputs of one output, or over fixed lanes. It never depends on other outputs.
#pragma once
#include "model.h"
#include "registers.h"

namespace {
const int REGISTERS = draftwood::LANES / REGISTER;

struct Lanes {
    Register v[REGISTERS];
};

// Sixteen pairs of numbers of bfloat16: two successive inputs of each output.
struct Pairs {
    Words v[REGISTERS];
};

template <class F>
inline Lanes each(F one) {
    if constexpr (REGISTERS == 1) return {{one(0)}};
    else if constexpr (REGISTERS == 2) return {{one(0), one(1)}};
    else return {{one(0), one(1), one(2), one(3)}};
}

inline Register as_floats(const Words& words) {
    Register floats;
    memcpy(&floats, &words, sizeof floats);
    return floats;
}

inline Lanes load(const float* p) { return each([&](int i) { return load_register(p + REGISTER * i); }); }
inline void store(float* p, const Lanes& a) {
    for (int i = 0; i < REGISTERS; i++) store_register(p + REGISTER * i, a.v[i]);
}
inline Lanes splat(float a) { return each([&](int) { return splat_register(a); }); }
inline Lanes operator+(const Lanes& a, const Lanes& b) { return each([&](int i) { return a.v[i] + b.v[i]; }); }
inline Lanes operator-(const Lanes& a, const Lanes& b) { return each([&](int i) { return a.v[i] - b.v[i]; }); }
inline Lanes operator*(const Lanes& a, const Lanes& b) { return each([&](int i) { return a.v[i] * b.v[i]; }); }
inline Lanes operator/(const Lanes& a, const Lanes& b) { return each([&](int i) { return a.v[i] / b.v[i]; }); }
inline Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
    return each([&](int i) { return fused(a.v[i], b.v[i], c.v[i]); });
}
// As fma; rounded twice where a processor has none.
inline Lanes added_product(const Lanes& a, const Lanes& b, const Lanes& c) { return WITH_FMA ? fma(a, b, c) : a * b + c; }
inline Lanes greater(const Lanes& a, const Lanes& b) { return each([&](int i) { return larger(a.v[i], b.v[i]); }); }
inline Lanes lesser(const Lanes& a, const Lanes& b) { return each([&](int i) { return smaller(a.v[i], b.v[i]); }); }
inline Lanes nearest(const Lanes& a) { return each([&](int i) { return nearest(a.v[i]); }); }
inline Lanes times_power(const Lanes& a, const Lanes& n) {
    return each([&](int i) { return times_power(a.v[i], n.v[i]); });
}

// The halves together, then theirs, until one number is left.
template <class F>
inline float folded(Lanes a, F both) {
    for (int half = REGISTERS / 2; half; half /= 2)
        for (int i = 0; i < half; i++) a.v[i] = both(a.v[i], a.v[i + half]);
    return fold_register(a.v[0], both);
}
inline float sum(const Lanes& a) { return folded(a, [](auto p, auto q) { return p + q; }); }
inline float greatest(const Lanes& a) { return folded(a, [](auto p, auto q) { return larger(p, q); }); }

inline Pairs load_pairs(const uint16_t* p) {
    Pairs pairs;  // a compiler copies all of several registers in smaller pieces, which must then be put together
    for (int i = 0; i < REGISTERS; i++) memcpy(&pairs.v[i], p + 2 * REGISTER * i, sizeof pairs.v[i]);
    return pairs;
}
inline Lanes low(const Pairs& a) { return each([&](int i) { return as_floats(a.v[i] << 16); }); }
inline Lanes high(const Pairs& a) { return each([&](int i) { return as_floats(a.v[i] & 0xffff0000u); }); }
inline Lanes load_bfloat16(const uint16_t* p) { return each([&](int i) { return widened(p + REGISTER * i); }); }
inline void store_bfloat16(uint16_t* p, const Lanes& a) {
    float numbers[draftwood::LANES];
    store(numbers, a);
    for (int i = 0; i < draftwood::LANES; i++) p[i] = to_bfloat16(numbers[i]);  // one loop of vectors
}

// e to the power of each lane, as a power of two; below -87 that of -87, never 0: callers put 0 where nothing is seen.
inline Lanes exponential(Lanes x) {
    x = lesser(splat(88.f), greater(splat(-87.f), x));  // in this order NaN stays NaN
    const float terms[] = {1.3398874e-3f, 9.6184374e-3f, 5.5503325e-2f, 2.4022648e-1f, 6.9314720e-1f, 1.f};
    const Lanes factor = splat(1.44269504f), whole = nearest(x * factor), part = fma(x, factor, splat(0.f) - whole);
    Lanes p = splat(1.5353362e-4f);
    for (float term : terms) p = fma(p, part, splat(term));
    return times_power(p, whole);
}

// Natural logarithms of numbers above 0, by the polynomial of Cephes. No step is fused, so every processor has the same bits.
template <int SIZE>
inline void logarithms(const float* from, float* to) {
    for (int i = 0; i < SIZE; i++) {
        int32_t bits;
        float x, p = 7.0376836292e-2f;
        memcpy(&bits, from + i, 4);
        const int32_t exponent = (bits - 0x3f3504f3) >> 23;  // of the power of two that leaves sqrt(1/2) to sqrt(2)
        bits -= exponent * (1 << 23);
        memcpy(&x, &bits, 4);
        const float rest = x - 1.f, square = rest * rest, power = (float)exponent;
        p = p * rest - 1.1514610310e-1f, p = p * rest + 1.1676998740e-1f, p = p * rest - 1.2420140846e-1f;
        p = p * rest + 1.4249322787e-1f, p = p * rest - 1.6668057665e-1f, p = p * rest + 2.0000714765e-1f;
        p = p * rest - 2.4999993993e-1f, p = p * rest + 3.3333331174e-1f;
        to[i] = rest + (rest * square * p - 2.12194440e-4f * power - 0.5f * square) + 0.693359375f * power;
    }
}

// ``cap`` times the hyperbolic tangent of each lane over ``cap``: a soft cap of scores.
inline Lanes capped(Lanes x, float cap) {
    return splat(cap) * (splat(1.f) - splat(2.f) / (exponential(x * splat(2.f / cap)) + splat(1.f)));
}

inline Lanes sigmoid(Lanes x) { return splat(1.f) / (splat(1.f) + exponential(splat(0.f) - x)); }

// SiLU, x times its sigmoid; or GELU by tanh, x times the sigmoid of 2 sqrt(2 / pi) (x + 0.044715 x^3).
inline Lanes activated(Lanes x, bool gelu) {
    Lanes minus = splat(0.f) - x;
    if (gelu) minus = minus * fma(x * x, splat(0.0713548162726f), splat(1.59576912161f));
    return x / (splat(1.f) + exponential(minus));
}
}  // namespace
