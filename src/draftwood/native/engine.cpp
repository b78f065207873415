// A model's facts and weights, layer by layer, in the order in which the forward reads them.
#include "engine.h"

#include <algorithm>

#include "page.h"
#include "states.h"

namespace draftwood {
namespace {
// A matrix in the model's format.
Matrix plain(const void* from) { return {from, -1, 0, 0}; }

// Numbers from one on, or null.
const float* from_on(const float* numbers, size_t first) { return numbers ? numbers + first : nullptr; }
}  // namespace

Engine::Engine(const Facts& facts, const int* taps, const Matrix& embedding, const Matrix& head, const float* norm, int threads)
    : packer_(facts.bfloat16, threads), taps_(taps, taps + facts.taps) {
    take_facts(facts);
    model_.norm = packer_.copy(norm, facts.width);
    if (head.data) model_.head = pack_rows(head, facts.vocab, {facts.width});
    model_.embedding = take_table(embedding, facts.width);
}

void Engine::add(const LayerSource& from) {
    const Facts& facts = model_.facts;
    if ((int)layers_.size() == facts.layers) throw std::invalid_argument("more layers than the facts say");
    Layer layer{};
    (LayerFacts&)layer = from;
    place_layer(from, layer);
    if (has_state(layer)) pack_state(from, layer);
    else if (layer.kind == SHORT_CONVOLUTION) pack_short_convolution(from, layer);
    else pack_attention(from, layer);
    pack_feed_forward(from, layer);
    pack_norms(from, layer);
    if (from.input_gate.data) pack_layer_input(from, layer);
    layers_.push_back(layer);
    model_.most_outputs = std::max(model_.most_outputs, layer.qkv.outputs);
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
    if (!fit || facts.experts_per_token < (facts.experts > 0) || facts.experts_per_token > facts.experts)
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

// Successive rows of a matrix.
Linear Engine::pack_rows(const Matrix& from, int rows, const Columns& columns, const float* bias, size_t first) {
    return packer_.pack({{&from, bias, first, 1, rows, rows}}, columns);
}

// Heads are padded one by one: an output or input of all heads is one of a head, or none.
void Engine::pack_attention(const LayerSource& from, Layer& to) {
    const Facts& facts = model_.facts;
    const int dim = to.dim, size = to.head_dim, heads = facts.heads;
    const int inputs = from.hidden_norm ? 2 : 1, stride = facts.gated ? 2 * size : size;
    Segments segments{{&from.query, from.query_bias, 0, heads, size, dim, stride}};
    if (!to.borrows) {
        segments.push_back({&from.key, from.key_bias, 0, to.kv_heads, size, dim, size});
        segments.push_back({&from.value, from.value_bias, 0, to.kv_heads, size, dim, size});
    }
    if (facts.gated) segments.push_back({&from.query, from_on(from.query_bias, size), (size_t)size, heads, size, dim, stride});
    to.qkv = packer_.pack(segments, {facts.width, inputs});
    to.out = pack_rows(from.out, facts.width, {size, heads}, from.out_bias);
}

void Engine::pack_feed_forward(const LayerSource& from, Layer& to) {
    const int inner = from.inner ? from.inner : model_.facts.inner, padded = padded_to(inner, STRIP), width = model_.facts.width;
    model_.padded_inner = std::max(model_.padded_inner, padded);
    if (from.router.data) pack_experts(from, to);
    if (from.router.data && !from.gate.data) return;
    const Segments gate_up{{&from.gate, from.gate_bias, 0, 1, inner, padded}, {&from.up, from.up_bias, 0, 1, inner, padded}};
    to.gate_up = packer_.pack(gate_up, {width}, true);
    to.down = pack_rows(from.down, width, {inner}, from.down_bias);
}

// The router's last output is the gate of the expert that all tokens have, if there is one; without weights it is open.
void Engine::pack_experts(const LayerSource& from, Layer& to) {
    const Facts& facts = model_.facts;
    Matrix router = from.router, shared = from.shared_gate;
    router.flags = shared.flags = 0;  // its codes are expanded
    const float *bias = facts.sigmoid_routing ? nullptr : from.router_bias, open = 1e9f;  // whose sigmoid is 1
    Segments rows{{&router, bias, 0, 1, facts.experts, facts.experts}};
    if (from.gate.data) rows.push_back({&shared, shared.data ? nullptr : &open, 0, 1, 1, 1});
    const Columns columns{facts.width};
    to.router = packer_.pack(rows, columns);
    if (facts.sigmoid_routing) to.choice_bias = packer_.copy(from.router_bias, facts.experts);
    Linear *gate_up = (Linear*)packer_.reserve(2 * facts.experts * sizeof(Linear)), *down = gate_up + facts.experts;
    to.experts_up = gate_up, to.experts_down = down;
    const bool joined = !from.experts_up.data, turns = from.experts_gate.flags & ALTERNATING;
    const int inner = facts.expert_inner, width = facts.width;
    for (size_t e = 0; e < (size_t)facts.experts; e++) {
        const size_t gates = e * (joined ? 2 * inner : inner), ups = !joined ? gates : turns ? gates + 1 : gates + inner;
        auto rows_of = [&](const Matrix& matrix, const float* biases, size_t first) {
            return Segment{&matrix, from_on(biases, e * inner), first, 1, inner, padded_to(inner, STRIP), 0, turns ? 2 : 1};
        };
        gate_up[e] = packer_.pack({rows_of(from.experts_gate, from.experts_gate_bias, gates),
                                   rows_of(joined ? from.experts_gate : from.experts_up, from.experts_up_bias, ups)}, columns, true);
        down[e] = pack_rows(from.experts_down, width, {inner}, from_on(from.experts_down_bias, e * width), e * width);
    }
}

void Engine::pack_layer_input(const LayerSource& from, Layer& to) {
    const int size = model_.facts.layer_inputs, width = model_.facts.width;
    to.input_gate = pack_rows(from.input_gate, size, {width});
    to.input_projection = pack_rows(from.input_projection, width, {size});
}

void Engine::layer_inputs(const Matrix& table, const Matrix& projection, const float* norm, float scale) {
    const Facts& facts = model_.facts;
    const int size = facts.layer_inputs;
    model_.layer_embedding = take_table(table, facts.layers * size), model_.layer_scale = scale;
    const Segment rows{&projection, nullptr, 0, facts.layers, size, padded_to(size, STRIP), size};
    model_.layer_projection = packer_.pack({rows}, {facts.width});
    model_.layer_norm = packer_.copy(norm, size);
}

void Engine::pack_norms(const LayerSource& from, Layer& to) {
    const Facts& facts = model_.facts;
    for (const float** norm : {&to.norm, &to.ffn_norm, &to.out_norm, &to.down_norm, &to.hidden_norm, &to.input_norm, &to.dense_norm,
                               &to.mixture_norm, &to.experts_norm, &to.router_norm})
        *norm = packer_.copy(*norm, facts.width);
    to.sinks = packer_.copy(to.sinks, facts.heads);
    to.scalar = packer_.copy(to.scalar, 1);
    to.expert_scales = packer_.copy(to.expert_scales, facts.experts);
    to.query_norm = packer_.copy(from.query_norm, to.head_dim, facts.joint_norms ? facts.heads : 1);
    to.key_norm = packer_.copy(from.key_norm, to.head_dim, facts.joint_norms ? to.kv_heads : 1);
    if (facts.norm_values) to.value_norm = packer_.fill(to.dim, [&](int i) { return i < to.head_dim ? 1.f : 0.f; });
}

void Engine::drafter(const DrafterSource& source) {
    if (source.sources > LANES) throw std::invalid_argument("a drafter of hidden states of more than 16 layers");
    Model& m = model_;
    if (source.embeds && source.source_width != m.facts.width) throw std::invalid_argument("embeddings of another width");
    const int numbers = source.sources * source.source_width;
    (DrafterFacts&)m = source;
    m.features = pack_rows(plain(source.features), m.facts.width, {numbers});
    m.source_norm = packer_.copy(source.source_norm, numbers);
    m.feature_norm = packer_.copy(source.feature_norm, m.facts.width);
    m.markov_embedding = source.markov_in;
    if (source.rank) m.markov = pack_rows(source.markov_out, m.facts.vocab, {source.rank});
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
