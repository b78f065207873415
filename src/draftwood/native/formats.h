// The formats of weights, and of keys and values. A file is compiled for one of them, DRAFTWOOD_FORMAT.
//
// ``Input`` is what is multiplied with weights. A vector of weights holds ``step`` successive inputs of sixteen outputs.
#pragma once
#include "lanes.h"

namespace {
struct Float32 {
    typedef float Weight;
    typedef float Input;
    typedef Lanes Vector;
    static const int step = 1;
    static const bool tiles = false;    // products by AMX
    static const bool integers = false;  // products with codes are of integers
    static Vector load_vector(const Weight* w) { return load(w); }
    static Lanes add_product(const Lanes& into, const Vector& w, const Input* x) {
        return added_product(w, splat(*x), into);
    }
    static void store_input(Input* p, const Lanes& a) { store(p, a); }
    static Lanes load_weight(const Weight* p) { return load(p); }
    static void store_weight(Weight* p, const Lanes& a) { store(p, a); }
};

// Weights, keys and values are bfloat16; inputs stay float32, so that bits are the same on every instruction set.
struct Portable {
    typedef uint16_t Weight;
    typedef float Input;
    struct Vector {
        Lanes first, second;
    };
    static const int step = 2;
    static const bool tiles = false, integers = true;
    static Vector load_vector(const Weight* w) {
        const Pairs both = load_pairs(w);
        return {low(both), high(both)};
    }
    static Lanes add_product(const Lanes& into, const Vector& w, const Input* x) {
        return fma(w.second, splat(x[1]), fma(w.first, splat(x[0]), into));
    }
    static void store_input(Input* p, const Lanes& a) { store(p, a); }
    static Lanes load_weight(const Weight* p) { return load_bfloat16(p); }
    static void store_weight(Weight* p, const Lanes& a) { store_bfloat16(p, a); }
    // Pairs of two numbers of each lane.
    static void store_pairs(Weight* p, const Lanes& a, const Lanes& b) {
        Weight first[16], second[16];
        store_bfloat16(first, a);
        store_bfloat16(second, b);
        for (int i = 0; i < 16; i++) p[2 * i] = first[i], p[2 * i + 1] = second[i];
    }
};

// The same with inputs that are rounded to bfloat16.
struct Bfloat16 : Portable {
    static const bool integers = false;
#if defined(DRAFTWOOD_AMX)
    static const bool tiles = true;
#endif
#if defined(__AVX512BF16__)
    typedef uint16_t Input;
    typedef Pairs Vector;
    static Vector load_vector(const Weight* w) { return load_pairs(w); }
    static Lanes add_product(const Lanes& into, const Vector& w, const Input* x) {
        int pair;
        memcpy(&pair, x, 4);
        return {{_mm512_dpbf16_ps(into.v[0], (__m512bh)w.v[0], (__m512bh)_mm512_set1_epi32(pair))}};
    }
    static void store_input(Input* p, const Lanes& a) { store_weight(p, a); }
    static void store_weight(Weight* p, const Lanes& a) {
        _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(a.v[0]));
    }
    static void store_pairs(Weight* p, const Lanes& a, const Lanes& b) {
        const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(b.v[0], a.v[0]);
        const __m512i first = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(both));
        const __m512i second = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(both, 1));
        _mm512_storeu_si512(p, _mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
    }
#else
    static Lanes add_product(const Lanes& into, const Vector& w, const Input* x) {
        return added_product(w.second, splat(x[1]), added_product(w.first, splat(x[0]), into));
    }
    static void store_input(Input* p, const Lanes& a) {
        Weight rounded[16];
        store_bfloat16(rounded, a);
        store(p, load_bfloat16(rounded));
    }
#endif
};

typedef DRAFTWOOD_FORMAT N;
typedef N::Input Input;
typedef N::Weight Weight;
}  // namespace
