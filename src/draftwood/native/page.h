// Where numbers lie in a page of the KV cache (drawn in model.h). ``step`` is that of the format: 2 of bfloat16, 1 of float32.
#pragma once
#include "model.h"

namespace {
// The numbers of a head's keys in a page; its values follow.
inline size_t head_size(int dim) { return (size_t)draftwood::PAGE * dim; }

// ``layer`` is the number among those of attention.
inline size_t head_at(const draftwood::Facts& facts, int layer, int head, int dim) {
    return ((size_t)layer * facts.kv_heads + head) * 2 * head_size(dim);
}

inline size_t key_at(int slot, int number, int dim, int step) {
    using draftwood::LANES;
    return (size_t)(slot / LANES) * LANES * dim + (number / step * LANES + slot % LANES) * step + number % step;
}

inline size_t value_at(int slot, int number, int dim, int step) {
    return ((size_t)(slot / step) * dim + number) * step + slot % step;
}
}  // namespace
