// Layers with a running state: their weights, and what rows keep for them.
#include "states.h"

#include <string.h>

#include <algorithm>

#include "engine.h"

namespace draftwood {
void Engine::lay_out_states() {
    const Facts& f = model_.facts;
    if (f.taps_of_convolution > MAX_TAPS) throw std::invalid_argument("a convolution over more than 8 tokens");
    model_.padded_key = padded_to(f.key_size, STRIP), model_.padded_value = padded_to(f.value_size, STRIP);
    if (model_.padded_value > MAX_STATE) throw std::invalid_argument("states with values of more than 256 numbers");
    if (f.value_heads && (f.key_heads < 1 || f.key_size < 1 || f.value_size < 1 || f.value_heads % f.key_heads))
        throw std::invalid_argument("numbers of heads of a state that do not fit together");
    model_.channels = 2 * f.key_heads * model_.padded_key + f.value_heads * model_.padded_value;
    if (!f.value_heads) model_.channels = model_.padded_width;
}

// Where the memory of a layer lies.
void Engine::place_layer(const LayerSource& from, Layer& layer) {
    if (layer.kind == ATTENTION) return place_keys(from, layer);
    layer.entries = model_.block_numbers;
    model_.block_numbers += INTERVAL * kept_numbers(model_);
    if (!has_state(layer)) return;
    layer.number = model_.stateful++;
    model_.block_numbers += INTERVAL * model_.facts.value_heads * entry_numbers(model_);
}

// The channels of the convolution, then gates, then what shares and decays are made of: rows of several matrices for the delta
// rule, of one for Mamba-2.
void Engine::pack_state(const LayerSource& from, Layer& to) {
    const Facts& f = model_.facts;
    const int key = model_.padded_key, value = model_.padded_value, taps = f.taps_of_convolution, values = f.value_heads * f.value_size;
    const int heads = padded_to(f.value_heads, LANES), keys = f.key_heads * f.key_size;
    const bool mamba = to.kind == MAMBA;
    const Matrix *mixed = &from.mixed, *gate = mamba ? mixed : &from.mixed_gate;
    const int first = mamba ? values : 0;  // row of the convolution's first channel
    auto of_keys = [&](size_t row) { return Segment{mixed, nullptr, row, f.key_heads, f.key_size, key, f.key_size}; };
    auto of_values = [&](const Matrix* matrix, size_t row) {
        return Segment{matrix, nullptr, row, f.value_heads, f.value_size, value, f.value_size};
    };
    const Segments channels = mamba ? Segments{of_keys(2 * values + keys), of_keys(2 * values), of_values(mixed, values)}
                                    : Segments{of_keys(0), of_keys(keys), of_values(mixed, 2 * keys)};
    Segments all = channels;
    all.push_back(of_values(gate, 0));
    auto of_heads = [&](const Matrix* matrix, size_t row) { all.push_back({matrix, nullptr, row, 1, f.value_heads, heads}); };
    if (mamba) of_heads(mixed, 2 * values + 2 * keys);
    else of_heads(&from.share, 0), of_heads(&from.decay, 0);
    to.qkv = packer_.pack(all, {f.width});
    to.out = pack_rows(from.out, f.width, {f.value_size, f.value_heads});
    const Outputs outputs = outputs_of(channels);
    auto channel_of = [&](int i) {  // as the convolution numbers it; below 0 for padding
        return outputs[i].segment ? (int)outputs[i].segment->first - first + outputs[i].number : -1;
    };
    to.convolution = packer_.fill(taps * model_.channels, [&](int i) {
        const int channel = channel_of(i % model_.channels);
        return channel < 0 ? 0.f : from.convolution[channel * taps + i / model_.channels];
    });
    if (from.convolution_bias) to.convolution_bias = packer_.fill(model_.channels, [&](int i) {
        return channel_of(i) < 0 ? 0.f : from.convolution_bias[channel_of(i)];
    });
    to.decay = packer_.copy(from.decay_rate, f.value_heads);
    to.decay_bias = packer_.copy(from.decay_bias, f.value_heads);
    to.skip = packer_.copy(from.skip, f.value_heads);
    to.state_norm = packer_.copy(from.state_norm, f.value_size, mamba ? f.value_heads : 1);
}

// Inputs of the convolution and what they are multiplied by take turns, panel by panel; factors of the outputs follow.
void Engine::pack_short_convolution(const LayerSource& from, Layer& to) {
    const int width = model_.facts.width, size = model_.channels, taps = model_.facts.taps_of_convolution;
    auto part = [&](size_t number) { return Segment{&from.mixed, nullptr, number * width, 1, width, size}; };
    to.qkv = packer_.pack({part(0), part(2), part(1)}, {width}, true);
    to.out = pack_rows(from.out, width, {width});
    to.convolution = packer_.fill(taps * size, [&](int i) {
        return i % size < width ? from.convolution[i % size * taps + i / size] : 0.f;
    });
}

// The state before the first token is zero.
States::States(Engine& engine, int checkpoint, const States* other) : engine_(engine) {
    const Model& m = engine.model();
    const int turn = turn_of(checkpoint);
    checkpoints_.resize((size_t)m.stateful * m.facts.value_heads * 2, -1);
    for (size_t i = turn; i < checkpoints_.size(); i += 2) checkpoints_[i] = checkpoint;
    states_[turn] = reserve(bytes(m), other ? other->states_[turn] : nullptr);
    for (int b = 0; b < 2; b++) add_block(other ? other->blocks_[b] : nullptr);  // of text
}

long States::bytes(const Model& m) {
    return sizeof(float) * m.stateful * m.facts.value_heads * m.padded_key * m.padded_value;
}

long States::block_bytes(const Model& m) { return sizeof(float) * m.block_numbers; }

long Engine::row_bytes() const {
    const long blocks = 2 + ROUND / INTERVAL;
    return model_.block_numbers ? 2 * Buffer::whole(States::bytes(model_)) + blocks * Buffer::whole(States::block_bytes(model_)) : 0;
}

// New memory, of zeros or of what is elsewhere: also what no text has written may go to a file.
float* States::reserve(long bytes, const float* from) {
    memory_.push_back(std::make_unique<Buffer>());
    float* found = (float*)memory_.back()->reserve(std::max(bytes, 1L));
    if (from) memcpy(found, from, bytes);
    else memset(found, 0, bytes);
    taken_ += Buffer::whole(bytes), engine_.state_bytes += Buffer::whole(bytes);
    return found;
}

RowStates States::reserve(int nodes) {
    while ((int)(blocks_.size() - 2) * INTERVAL < nodes) add_block(nullptr);
    for (float*& state : states_)
        if (!state) state = reserve(bytes(engine_.model()), nullptr);
    return {{states_[0], states_[1]}, checkpoints_.data(), blocks_.data()};
}

// Every token of text needs the state at its checkpoint once the entries before that are overwritten.
void States::commit(int text, const int* nodes, int count) {
    const Model& m = engine_.model();
    const RowStates row = reserve(0);
    for (int i = 0; i < count; i++) {
        if (i == 0 || (text + i) % INTERVAL == 0) kernels().advance(m, row, checkpoint_of(text + i));
        const Place from(row, text, text + nodes[i]), to(row, text + count, text + i);
        for (int l = 0; l < m.facts.layers; l++) {
            const Layer& layer = m.layer[l];
            if (layer.kind == ATTENTION) continue;
            memcpy(to.inputs(m, layer), from.inputs(m, layer), sizeof(float) * kept_numbers(m));
            for (int h = 0; has_state(layer) && h < m.facts.value_heads; h++) {
                *to.decay(m, layer, h) = *from.decay(m, layer, h);
                memcpy(to.update(m, layer, h), from.update(m, layer, h), sizeof(float) * m.padded_value);
            }
        }
    }
}

std::pair<void*, long> States::part(int text, int index) {
    const Model& m = engine_.model();
    if (index == 0) return {states_[turn_of(checkpoint_of(text - 1))], bytes(m)};
    return {blocks_[index - 1], block_bytes(m)};
}

int States::source(int text, int length) const {
    const int oldest = text - 2 * INTERVAL, wanted = checkpoint_of(length);
    if (checkpoints_.empty()) return std::max(0, length - MAX_TAPS) >= oldest ? wanted : -1;
    for (int checkpoint : {wanted - INTERVAL, wanted})
        if (checkpoint >= std::max(0, oldest) && checkpoints_[turn_of(checkpoint)] == checkpoint) return checkpoint;
    return -1;
}
}  // namespace draftwood
