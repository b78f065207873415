// A model's facts and weights, layer by layer, in the order in which the forward reads them.
#include "engine.h"

#include <algorithm>

#include "page.h"
#include "states.h"

namespace draftwood {
namespace {
// A matrix in the model's format.
Matrix plain(const void* from) { return {from, -1, 0, 0}; }

// Where an output of an interleaved head lies: llama.cpp rotates neighbours, this engine numbers half a head apart.
int interleaved(int output, int head_dim) {
    const int half = head_dim / 2;
    return output / (2 * half) * 2 * half + output % half * 2 + output / half % 2;
}

// Gates and ups take turns, panel by panel: the number of an output, and whether it is a gate.
int unit_of(int output) { return output / STRIP * LANES + output % LANES; }
bool is_gate(int output) { return output % STRIP < LANES; }
}  // namespace

Engine::Engine(const Facts& facts, const int* taps, const Matrix& embedding, const Matrix& head, const float* norm, int threads)
    : packer_(facts.bfloat16, threads), taps_(taps, taps + facts.taps) {
    take_facts(facts);
    const int width = model_.padded_width;
    model_.norm = packer_.copy(norm, facts.width, width);
    if (head.data) model_.head = packer_.pack(head, facts.vocab, columns_in_parts(1, facts.width, width));
    model_.embedding = take_table(embedding, facts.width);
}

void Engine::add(const LayerSource& from) {
    const Facts& facts = model_.facts;
    if ((int)layers_.size() == facts.layers) throw std::invalid_argument("more layers than the facts say");
    Layer layer{};
    layer.kind = from.kind;
    place_layer(from, layer);
    if (has_state(layer)) pack_state(from, layer);
    else if (layer.kind == SHORT_CONVOLUTION) pack_short_convolution(from, layer);
    else pack_attention(from, layer);
    pack_feed_forward(from, layer);
    pack_norms(from, layer);
    if (from.input_gate.data) pack_layer_input(from, layer);
    layer.scalar = packer_.copy(from.scalar, 1, 1);
    layer.window = from.window, layer.rotary = from.rotary;
    layers_.push_back(layer);
    if (!layer.borrows) model_.keeping = layers_.size();
    model_.layer = layers_.data();
}

// Heads of a layer, and the place of their keys and values in a page: its own, or an earlier layer's.
void Engine::place_keys(const LayerSource& from, Layer& layer) {
    const Facts& facts = model_.facts;
    layer.kv_heads = from.kv_heads ? from.kv_heads : facts.kv_heads;
    layer.head_dim = from.head_dim ? from.head_dim : facts.head_dim, layer.dim = padded_to(layer.head_dim, STRIP);
    if (layer.kv_heads < 1 || facts.heads % layer.kv_heads || layer.head_dim < 1 || layer.head_dim > facts.head_dim)
        throw std::invalid_argument("numbers of heads of a layer that do not fit together");
    layer.keys = model_.page_numbers, layer.borrows = from.lender;
    if (!layer.borrows) {
        model_.page_numbers += head_at(layer, layer.kv_heads) - layer.keys;
        return;
    }
    const int number = (int)layers_.size() - from.lender;
    const Layer* lender = number >= 0 && from.lender > 0 ? &layers_[number] : nullptr;
    if (!lender || lender->kind != ATTENTION || lender->kv_heads != layer.kv_heads || lender->head_dim != layer.head_dim)
        throw std::invalid_argument("keys and values of a layer that has other ones");
    layer.keys = lender->keys;
}

void Engine::take_facts(const Facts& facts) {
    Model& m = model_;
    if (facts.experts > EXPERTS) throw std::invalid_argument("a mixture of more than 512 experts");
    const bool fit = facts.kv_heads >= 1 && facts.heads % facts.kv_heads == 0 && facts.rotary_dim <= facts.head_dim;
    if (!fit || facts.experts_per_token > facts.experts)
        throw std::invalid_argument("numbers of heads, of rotated numbers or of experts that do not fit together");
    m.facts = facts;
    for (float* factor : {&m.facts.embedding_scale, &m.facts.residual_scale, &m.facts.logit_divisor})
        if (!*factor) *factor = 1;
    m.padded_width = padded_to(facts.width, STRIP), m.padded_dim = padded_to(facts.head_dim, STRIP);
    const int experts_inner = facts.experts_per_token * padded_to(facts.expert_inner, STRIP);
    m.padded_inner = std::max(padded_to(facts.inner, STRIP), experts_inner);
    m.tap = taps_.data();
    lay_out_states();
}

// A table stays where it is, unless it is in another format.
Table Engine::take_table(const Matrix& table, int numbers) {
    const Facts& facts = model_.facts;
    if (code_kind(table.kind) && table.flags & CODED && facts.bfloat16) return {table.data, code_kind(table.kind)};
    if (table.kind < 0 || table.kind == (facts.bfloat16 ? BFLOAT16 : FLOAT32)) return {table.data, nullptr};
    void* to = packer_.reserve((size_t)facts.tokens * numbers * number_bytes());
    expand(table, facts.tokens, numbers, facts.bfloat16, to);
    return {to, nullptr};
}

// Outputs of all segments, and their biases if there are any.
Linear Engine::pack_segments(const std::vector<Segment>& segments, const Columns& columns) {
    int outputs = 0;
    bool biased = false;
    Matrices matrices;
    for (const Segment& one : segments) {
        outputs += one.parts * one.padded, biased |= one.bias != nullptr;
        matrices.push_back(one.matrix);
    }
    auto find = [&](int output, int& row) -> const Segment* {  // null for padding
        for (const Segment& one : segments) {
            const int part = output / one.padded, number = output % one.padded;
            output -= one.parts * one.padded;
            if (output >= 0) continue;
            row = one.first + part * one.stride + number;
            return number < one.size ? &one : nullptr;
        }
        return nullptr;
    };
    int row;
    outputs = padded_to(outputs, STRIP);
    Linear packed = packer_.pack(outputs, columns, matrices, [&](int output) {
        int from;
        const Segment* one = find(output, from);
        if (one && one->matrix->flags & INTERLEAVED) from = interleaved(from, one->size);  // biases are in order
        return one ? MatrixRow{one->matrix, (size_t)from} : MatrixRow{};
    });
    if (biased)
        packed.bias = packer_.fill(outputs, [&](int output) {
            const Segment* one = find(output, row);
            return one && one->bias ? one->bias[row] : 0.f;
        });
    return packed;
}

// Heads are padded one by one: an output or input of all heads is one of a head, or none.
void Engine::pack_attention(const LayerSource& from, Layer& to) {
    const Facts& facts = model_.facts;
    const int width = model_.padded_width, dim = to.dim, size = to.head_dim, heads = facts.heads;
    const int inputs = from.hidden_norm ? 2 : 1, stride = facts.gated ? 2 * size : size;
    std::vector<Segment> segments{{&from.query, from.query_bias, 0, heads, size, dim, stride}};
    if (!to.borrows) {
        segments.push_back({&from.key, from.key_bias, 0, to.kv_heads, size, dim, size});
        segments.push_back({&from.value, from.value_bias, 0, to.kv_heads, size, dim, size});
    }
    if (facts.gated) segments.push_back({&from.query, from.query_bias, size, heads, size, dim, stride});
    to.qkv = pack_segments(segments, columns_in_parts(inputs, facts.width, width));
    to.out = packer_.pack(from.out, facts.width, columns_in_parts(heads, size, dim));
    to.out.bias = packer_.copy(from.out_bias, facts.width, width);
    to.sinks = packer_.copy(from.sinks, heads, heads);
}

// Gates and ups are rows from ``gates`` and ``ups`` on, every ``step``th of them.
Linear Engine::pack_gate_up(const Matrix& gate, size_t gates, const Matrix& up, size_t ups, int inner, int step) {
    const Columns columns = columns_in_parts(1, model_.facts.width, model_.padded_width);
    return packer_.pack(2 * padded_to(inner, STRIP), columns, {&gate, &up}, [&](int output) {
        const Matrix* matrix = is_gate(output) ? &gate : &up;
        return MatrixRow{unit_of(output) < inner ? matrix : nullptr, (is_gate(output) ? gates : ups) + unit_of(output) * step};
    });
}

// Biases of gates and ups from ``first`` on; either may be null.
void Engine::bias_gate_up(Linear& to, const float* gate, const float* up, size_t first, int inner) {
    if (!gate && !up) return;
    to.bias = packer_.fill(to.outputs, [&](int output) {
        const float* part = is_gate(output) ? gate : up;
        return part && unit_of(output) < inner ? part[first + unit_of(output)] : 0.f;
    });
}

Linear Engine::pack_down(const Matrix& down, size_t first, int inner) {
    const int width = model_.facts.width;
    return packer_.pack(model_.padded_width, columns_in_parts(1, inner, padded_to(inner, STRIP)), {&down}, [&](int output) {
        return MatrixRow{output < width ? &down : nullptr, first + output};
    });
}

void Engine::pack_feed_forward(const LayerSource& from, Layer& to) {
    const Facts& facts = model_.facts;
    const int inner = from.inner ? from.inner : facts.inner;
    model_.padded_inner = std::max(model_.padded_inner, padded_to(inner, STRIP));
    if (from.router.data) pack_experts(from, to);
    if (!from.router.data || from.gate.data) {
        to.gate_up = pack_gate_up(from.gate, 0, from.up, 0, inner);
        to.down = pack_down(from.down, 0, inner);
    }
    bias_gate_up(to.gate_up, from.gate_bias, from.up_bias, 0, inner);
    to.down.bias = packer_.copy(from.down_bias, facts.width, model_.padded_width);
}

// The router's last output is the gate of the expert that all tokens have, if there is one; without weights it is open.
void Engine::pack_experts(const LayerSource& from, Layer& to) {
    const Facts& facts = model_.facts;
    Matrix router = from.router, shared = from.shared_gate;
    router.flags = shared.flags = 0;  // its codes are expanded
    Matrices rows{&router};
    if (shared.data) rows.push_back(&shared);
    const Columns columns = columns_in_parts(1, facts.width, model_.padded_width);
    to.router = packer_.pack(padded_to(facts.experts + (from.gate.data != nullptr), STRIP), columns, rows, [&](int output) {
        if (output == facts.experts && shared.data) return MatrixRow{&shared, 0};
        return MatrixRow{output < facts.experts ? &router : nullptr, (size_t)output};
    });
    const bool open = from.gate.data && !shared.data;
    const float* bias = facts.sigmoid_routing ? nullptr : from.router_bias;
    if (facts.sigmoid_routing) to.choice_bias = packer_.copy(from.router_bias, facts.experts, facts.experts);
    if (bias || open)
        to.router.bias = packer_.fill(to.router.outputs, [&](int output) {
            if (output >= facts.experts) return open ? 1e9f : 0.f;  // whose sigmoid is 1
            return bias ? bias[output] : 0.f;
        });
    Linear *gate_up = (Linear*)packer_.reserve(2 * facts.experts * sizeof(Linear)), *down = gate_up + facts.experts;
    to.experts_up = gate_up, to.experts_down = down;
    const bool joined = !from.experts_up.data, turns = from.experts_gate.flags & ALTERNATING;
    const size_t inner = facts.expert_inner, width = facts.width;
    for (size_t e = 0; e < (size_t)facts.experts; e++) {
        const size_t gates = e * (joined ? 2 * inner : inner), ups = !joined ? gates : turns ? gates + 1 : gates + inner;
        gate_up[e] = pack_gate_up(from.experts_gate, gates, joined ? from.experts_gate : from.experts_up, ups, inner, turns ? 2 : 1);
        bias_gate_up(gate_up[e], from.experts_gate_bias, from.experts_up_bias, e * inner, inner);
        down[e] = pack_down(from.experts_down, e * width, inner);
        if (from.experts_down_bias) down[e].bias = packer_.copy(from.experts_down_bias + e * width, width, model_.padded_width);
    }
}

void Engine::pack_layer_input(const LayerSource& from, Layer& to) {
    const int size = model_.facts.layer_inputs, width = model_.facts.width;
    to.input_gate = packer_.pack(from.input_gate, size, columns_in_parts(1, width, model_.padded_width));
    to.input_projection = packer_.pack(from.input_projection, width, columns_in_parts(1, size, padded_to(size, STRIP)));
    to.input_norm = packer_.copy(from.input_norm, width, model_.padded_width);
}

void Engine::layer_inputs(const Matrix& table, const Matrix& projection, const float* norm, float scale) {
    const Facts& facts = model_.facts;
    const int size = facts.layer_inputs, padded = padded_to(size, STRIP);
    model_.layer_embedding = take_table(table, facts.layers * size), model_.layer_scale = scale;
    const std::vector<Segment> segments{{&projection, nullptr, 0, facts.layers, size, padded, size}};
    model_.layer_projection = pack_segments(segments, columns_in_parts(1, facts.width, model_.padded_width));
    model_.layer_norm = packer_.copy(norm, size, padded);
}

void Engine::pack_norms(const LayerSource& from, Layer& to) {
    const Facts& facts = model_.facts;
    const int width = model_.padded_width, dim = to.dim;
    auto copy = [&](const float* norm) { return packer_.copy(norm, facts.width, width); };
    to.norm = copy(from.norm), to.ffn_norm = copy(from.ffn_norm), to.hidden_norm = copy(from.hidden_norm);
    to.out_norm = copy(from.out_norm), to.down_norm = copy(from.down_norm);
    to.dense_norm = copy(from.dense_norm), to.mixture_norm = copy(from.mixture_norm);
    to.experts_norm = copy(from.experts_norm), to.router_norm = copy(from.router_norm);
    to.expert_scales = packer_.copy(from.expert_scales, facts.experts, facts.experts);
    auto head_norm = [&](const float* norm, int heads) -> float* {
        if (!norm) return nullptr;
        return packer_.fill((facts.joint_norms ? heads : 1) * dim, [&](int i) {
            const int at = place_in_parts(i, to.head_dim, dim);
            return at < 0 ? 0.f : norm[at];
        });
    };
    to.query_norm = head_norm(from.query_norm, facts.heads);
    to.key_norm = head_norm(from.key_norm, to.kv_heads);
    if (facts.norm_values) to.value_norm = packer_.fill(dim, [&](int i) { return i < to.head_dim ? 1.f : 0.f; });
}

void Engine::drafter(const DrafterSource& source) {
    if (source.sources > LANES) throw std::invalid_argument("a drafter of hidden states of more than 16 layers");
    Model& m = model_;
    if (source.embeds && source.source_width != m.facts.width) throw std::invalid_argument("embeddings of another width");
    const int numbers = source.sources * source.source_width;
    m.sources = source.sources, m.source_width = source.source_width, m.norm_sources = source.norm_sources;
    m.norm_residual = source.norm_residual, m.embeds = source.embeds, m.source_epsilon = source.source_epsilon, m.rank = source.rank;
    auto pack = [&](const void* from, int outputs, int inputs) {
        return packer_.pack(plain(from), outputs, columns_in_parts(1, inputs, padded_to(inputs, STRIP)));
    };
    m.features = pack(source.features, m.facts.width, numbers);
    m.source_norm = packer_.copy(source.source_norm, numbers, numbers);
    m.feature_norm = packer_.copy(source.feature_norm, m.facts.width, m.padded_width);
    m.markov_embedding = source.markov_in;
    if (source.rank) m.markov = pack(source.markov_out, m.facts.vocab, source.rank);
}

void Engine::share_head(const std::shared_ptr<Engine>& lender) {
    const Model& other = lender->model();
    const Facts &mine = model_.facts, &theirs = other.facts;
    if (mine.width != theirs.width || mine.vocab != theirs.vocab || mine.bfloat16 != theirs.bfloat16)
        throw std::invalid_argument("a head of another width, vocabulary or number format");
    model_.head = other.head, lender_ = lender;
}

void Engine::rotate(const float* cos, const float* sin, const float* queries, int tables, int positions) {
    const size_t size = (size_t)tables * positions * (model_.facts.rotary_dim / 2);
    for (const Layer& layer : layers_)
        if (layer.rotary >= tables) throw std::invalid_argument("fewer tables of rotations than the layers use");
    cos_.assign(cos, cos + size);
    sin_.assign(sin, sin + size);
    if (queries) queries_.assign(queries, queries + positions);
    model_.rotary = {cos_.data(), sin_.data(), positions, queries ? queries_.data() : nullptr};
}

long Engine::read(int threads) const {
    std::atomic<long> total{0};
    in_parallel(threads, threads, [&](int t) {
        long sum[8] = {0};
        for (auto& [start, bytes] : packer_.weights) {
            const long* words = (const long*)start;
            const size_t count = bytes / 64, from = count * t / threads, to = count * (t + 1) / threads;
            for (size_t i = from; i < to; i++)
                for (int j = 0; j < 8; j++) sum[j] ^= words[8 * i + j];
        }
        for (long part : sum) total += part;
    });
    return total;
}
}  // namespace draftwood
