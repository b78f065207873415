// Where numbers lie in a page of the KV cache (drawn in model.h). ``step`` is that of the format: 2 of bfloat16, 1 of float32.
#pragma once
#include "model.h"

namespace {
// The numbers of a head's keys in a page; its values follow.
inline size_t head_size(int dim) { return (size_t)draftwood::PAGE * dim; }

inline size_t head_at(const draftwood::Layer& layer, int head) { return layer.keys + 2 * head * head_size(layer.dim); }

inline size_t key_at(int slot, int number, int dim, int step) {
    using draftwood::LANES;
    return (size_t)(slot / LANES) * LANES * dim + (number / step * LANES + slot % LANES) * step + number % step;
}

inline size_t value_at(int slot, int number, int dim, int step) {
    return ((size_t)(slot / step) * dim + number) * step + slot % step;
}
}  // namespace
