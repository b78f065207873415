// Layers with a running state: where entries of tokens and states lie, without templates.
//
// The checkpoint of a token at position p is INTERVAL * (p / INTERVAL - 1), at least 0. A layer of the delta rule or of Mamba-2
// keeps the state of the text before a checkpoint, and an entry of each later token: what the token adds, and by how much it makes
// all before it decay. A token reads the state at its checkpoint, then the entries of its path in their order:
//
//     text ... | state of all before | entry entry ...      | entry ... | entries of nodes
//              checkpoint            interval of 16 tokens  the next one
//
// So a token computes the same whether its path is text or nodes, all nodes of a tree read a state once, and nodes that are
// refused leave no trace. Two states of a row are alive, of which a copy has one. Text keeps the last two intervals of entries, in
// two blocks that take turns; nodes have blocks of their own behind them. A block has, layer by layer:
//
//     [token][inputs of the convolution, keys that value heads share]      with a state: [head][decays of tokens, their updates]
#pragma once
#include "model.h"

namespace draftwood {
inline bool has_state(const Layer& layer) { return layer.kind == DELTA_RULE || layer.kind == MAMBA; }

inline int checkpoint_of(int position) {
    return position < 2 * INTERVAL ? 0 : (position / INTERVAL - 1) * INTERVAL;
}

// Numbers of a token in a block: those that are kept of it, whatever the head, and those of a head.
inline size_t kept_numbers(const Model& m) { return m.channels + (size_t)m.facts.key_heads * m.padded_key; }
inline size_t entry_numbers(const Model& m) { return m.padded_value + 1; }

// A token's place in its blocks: text is in slots below ``text``.
struct Place {
    Place(const RowStates& row, int text, int slot)
        : block(row.blocks[slot < text ? slot / INTERVAL % 2 : 2 + (slot - text) / INTERVAL]),
          token(slot < text ? slot % INTERVAL : (slot - text) % INTERVAL) {}
    float* inputs(const Model& m, const Layer& layer) const { return block + layer.entries + token * kept_numbers(m); }
    float* key(const Model& m, const Layer& layer, int head) const { return inputs(m, layer) + m.channels + head * m.padded_key; }
    float* decay(const Model& m, const Layer& layer, int head) const {
        return block + layer.entries + INTERVAL * (kept_numbers(m) + head * entry_numbers(m)) + token;
    }
    float* update(const Model& m, const Layer& layer, int head) const {
        return decay(m, layer, head) - token + INTERVAL + (size_t)token * m.padded_value;
    }

    float* block;
    int token;
};

// The key head of a value head.
inline int key_head(const Facts& f, int head) { return f.tiled ? head % f.key_heads : head / (f.value_heads / f.key_heads); }

// Two states take turns: that of a head before a checkpoint, and the checkpoint that lies there now.
inline int turn_of(int checkpoint) { return checkpoint / INTERVAL % 2; }
inline float* state_of(const Model& m, const Layer& layer, const RowStates& row, int head, int checkpoint) {
    const size_t at = (size_t)layer.number * m.facts.value_heads + head;
    return row.states[turn_of(checkpoint)] + at * m.padded_key * m.padded_value;
}
inline int& checkpoint_at(const Model& m, const Layer& layer, const RowStates& row, int head, int checkpoint) {
    return row.checkpoints[((size_t)layer.number * m.facts.value_heads + head) * 2 + turn_of(checkpoint)];
}
}  // namespace draftwood
