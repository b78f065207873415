// The forward of a batch of tokens through all layers, as each thread runs it: embedding, layers, head.
//
// This file is compiled once for each instruction set and format, so it must not instantiate templates of the standard library: the
// linker would keep one of several copies, with instructions that another processor lacks.
#include "delta_rule.h"
#include "sampling.h"

namespace {
struct Forward : DeltaRule {
    bool ends = false;  // hidden states after the last layer that keeps something are wanted

    Forward(const Work& batch, int number, const Worker& worker) : DeltaRule(batch, number, worker) {
        for (int t = 0; work.hidden && t < facts.taps; t++) ends |= model.tap[t] >= model.keeping;
        if (reads_features() || model.embeds) ends &= work.scored > 0;
    }

    // The first layer reads the embedding of the token and a feature.
    bool reads_features() const { return model.layer[0].hidden_norm; }

    // The numbers that a model of bfloat16 has for codes: rounded, except where products are of integers.
    static float in_format(float number) { return N::integers || N::step == 1 ? number : to_float(to_bfloat16(number)); }

    // The row of a token, times a factor.
    static void read_row(const Table& table, int token, int size, float factor, float* row) {
        if (const CodeKind* kind = table.codes) {
            const size_t bytes = (size_t)size / kind->block * kind->bytes;
            expand_codes(*kind, (const char*)table.rows + token * bytes, size, row);
            for (int j = 0; j < size; j++) row[j] = in_format(row[j]) * factor;
        } else {
            const Weight* from = (const Weight*)table.rows + (size_t)token * size;
            for (int j = 0; j < size; j++) row[j] = to_float(from[j]) * factor;
        }
    }

    void embed(int i, float* row) const {
        for (size_t j = facts.width; j < width; j++) row[j] = 0;
        const int token = work.tokens[i].token;
        if (token < 0) memcpy(row, work.mask, sizeof(float) * facts.width);
        else read_row(model.embedding, token, facts.width, facts.embedding_scale, row);
    }

    // What each layer has of a token of its own: products of the embedding, normed, and a row of another table.
    void make_layer_inputs() {
        const Linear& projection = model.layer_projection;
        const int size = facts.layer_inputs, padded = projection.outputs / facts.layers;
        linear(projection, count, normed, nullptr, into_rows(shared.layer_inputs, projection.outputs));
        const Lanes divisor = splat(sqrtf(facts.width)), half = splat(sqrtf(0.5f));
        each_token([&](int i) {
            float *row = shared.layer_inputs + (size_t)i * projection.outputs, *own_row = (float*)own.normed, some[LANES];
            read_row(model.layer_embedding, work.tokens[i].token, facts.layers * size, model.layer_scale, own_row);
            for (int l = 0; l < facts.layers; l++, row += padded, own_row += size) {
                for (int j = 0; j < padded; j += LANES) store(row + j, load(row + j) / divisor);
                rms_norm(row, model.layer_norm, padded, size, [&](int j, const Lanes& a) {
                    for (int k = 0; k < LANES; k++) some[k] = j + k < size ? own_row[j + k] : 0;
                    store(row + j, (a + load(some)) * half);
                });
            }
        });
    }

    // A layer's input, times gates that are made of the residual stream, is added to that.
    void add_layer_input(int l) {
        const Layer& here = model.layer[l];
        const size_t size = here.input_gate.outputs, stride = model.layer_projection.outputs;
        linear(here.input_gate, count, normed, nullptr, [&](int s, int r, const float* sums) {
            for (int i = 0; i < STRIP; i += LANES) {
                const Lanes input = load(shared.layer_inputs + r * stride + l * size + s * STRIP + i);
                N::store_input(activated_inputs + r * size + s * STRIP + i, activated(load(sums + i), facts.gelu) * input);
            }
        });
        linear_added(here.input_projection, activated_inputs, here.input_norm, here.scalar);
    }

    float* hidden_state(int i, int tap) const {
        return work.hidden + ((size_t)work.tokens[i].state * facts.taps + tap) * facts.width;
    }

    void copy_taps(int i, int layer) {
        for (int t = 0; work.hidden && t < facts.taps; t++)
            if (model.tap[t] == layer) memcpy(hidden_state(i, t), residual + i * width, sizeof(float) * facts.width);
    }

    // A token's embedding and its feature, each normed, become the input of the first layer.
    void join(int i) {
        const Layer& first = model.layer[0];
        float *feature = residual + i * width, *embedding = (float*)own.normed;
        Input* to = activated_inputs + 2 * i * width;
        if (work.features) {
            memcpy(feature, work.features + (size_t)i * facts.width, sizeof(float) * facts.width);
            for (size_t j = facts.width; j < width; j++) feature[j] = 0;
        }
        embed(i, embedding);
        rms_norm(embedding, first.norm, width, facts.width, into_inputs(to));
        rms_norm(feature, first.hidden_norm, width, facts.width, [&](int j, const Lanes& a) {
            N::store_input(to + width + j, a);
            if (model.norm_residual) store(feature + j, a);
        });
    }

    // Attention of a layer, or only the keys and values of its tokens.
    void attend(int l, bool only_keys) {
        const Layer& here = model.layer[l];
        enter(here);
        const bool features = work.mode == FEATURES;
        linear(here.qkv, count, here.hidden_norm && !features ? activated_inputs : normed, features ? model.feature_norm : here.norm,
               into_rows(qkv, qkv_width), features ? heads_width / STRIP : 0);
        each_token([&](int i) {
            copy_taps(i, l);
            store_queries_keys_values(i, l);
        });
        if (!only_keys) attention(l);
    }

    void layer(int l) {
        const Layer& here = model.layer[l];
        auto begin = [&](int i) { copy_taps(i, l); };
        // Of the last one of these layers that is enough which later tokens read.
        const bool only_memory = work.mode == FEATURES || (l + 1 == model.keeping && !work.scored && !ends);
        if (has_state(here)) delta_rule(here, begin);
        else if (here.kind == SHORT_CONVOLUTION) short_convolution(here, begin);
        else attend(l, only_memory);
        if (only_memory) return;
        linear_added(here.out, attended, here.out_norm);
        feed_forward(here);
        if (here.input_gate.outputs) add_layer_input(l);
    }

    // The last norm: of scored tokens for the head, and of hidden states that are asked for.
    void last_norm(int i) {
        const int to = work.tokens[i].scored;
        float last[LANES];
        copy_taps(i, facts.layers + 1);
        rms_norm(residual + i * width, model.norm, width, facts.width, [&](int j, const Lanes& a) {
            if (to >= 0) N::store_input(attended + to * width + j, a);
            store(last, a);
            const int size = least(LANES, facts.width - j);
            for (int t = 0; size > 0 && work.hidden && t < facts.taps; t++)
                if (model.tap[t] == facts.layers) memcpy(hidden_state(i, t) + j, last, sizeof(float) * size);
        });
    }

    // Numbers as inputs of a product; the rest of a row of ``padded`` numbers is zero.
    template <class F>
    void take_inputs(Input* to, int size, int padded, F number) const {
        float some[LANES];
        for (int j = 0; j < padded; j += LANES) {
            for (int i = 0; i < LANES; i++) some[i] = j + i < size ? number(j + i) : 0;
            N::store_input(to + j, load(some));
        }
    }

    // The hidden states of a token, behind its embedding or not, become inputs of the features.
    void take_sources(int i) {
        const int size = model.source_width, all = model.sources * size;
        const float *source[LANES], *hidden = work.sources + (size_t)i * given_numbers(model);
        float factor[LANES];
        if (model.embeds) embed(i, (float*)own.normed);
        for (int s = 0; s < model.sources; s++) {
            source[s] = s < model.embeds ? (const float*)own.normed : hidden + (s - model.embeds) * size;
            float squares = 0;
            for (int j = 0; j < size; j++) squares += source[s][j] * source[s][j];
            factor[s] = model.norm_sources ? 1.f / sqrtf(squares / size + model.source_epsilon) : 1.f;
        }
        const float* weight = model.source_norm;
        take_inputs(activated_inputs + (size_t)i * model.features.inputs, all, model.features.inputs, [&](int j) {
            const float number = source[j / size][j % size] * factor[j / size];
            return weight ? number * weight[j] : number;
        });
    }

    void features() {
        each_token([&](int i) { take_sources(i); });
        linear(model.features, count, activated_inputs, nullptr, into_rows(residual, width));
    }

    // All layers, or those until the last one that keeps something of a token.
    void layers() {
        const int last = work.scored || ends ? facts.layers : model.keeping;
        for (int l = 0; l < last; l++) layer(l);
    }

    void scores() {
        if (work.sources) features();
        if (!model.embeds) each_token([&](int i) { reads_features() ? join(i) : embed(i, residual + i * width); });
        if (facts.layer_inputs) make_layer_inputs();
        layers();
        if (work.scored || ends) each_token([&](int i) { last_norm(i); });
        if (work.scored) head();
    }

    void head() {
        const bool changes = facts.logit_divisor != 1 || facts.logit_cap;
        linear(model.head, work.scored, attended, nullptr, [&](int s, int r, float* sums) {
            const int size = least(STRIP, facts.vocab - s * STRIP);
            for (int i = 0; i < STRIP && changes; i += LANES) {
                const Lanes a = load(sums + i) / splat(facts.logit_divisor);
                store(sums + i, facts.logit_cap ? capped(a, facts.logit_cap) : a);
            }
            memcpy(work.logits + (size_t)r * facts.vocab + (size_t)s * STRIP, sums, sizeof(float) * size);
            for (int i = size; i < STRIP; i++) sums[i] = sums[0];
            note_highest(work.first_scored + r, s, sums);
        });
    }

    void note_highest(int r, int s, const float* sums) {
        const Lanes a = load(sums), b = load(sums + LANES);
        float* total = own.totals + r * LANES;
        store(total, load(total) + a + b);
        const float top = greatest(greater(a, b));
        if (!(top >= own.highest[r])) return;
        int i = 0;
        while (i < STRIP && sums[i] != top) i++;
        if (i == STRIP || (top == own.highest[r] && s * STRIP + i > own.best[r])) return;
        own.highest[r] = top, own.best[r] = s * STRIP + i;
    }

    void markov() {
        const int rank = model.markov.inputs;
        each_token([&](int i) {
            const Weight* from = (const Weight*)model.markov_embedding + (size_t)work.tokens[i].token * model.rank;
            take_inputs(activated_inputs + (size_t)i * rank, model.rank, rank, [&](int j) { return to_float(from[j]); });
        });
        linear(model.markov, count, activated_inputs, nullptr, [&](int s, int r, const float* sums) {
            const Token& node = work.tokens[r];
            const size_t at = (size_t)s * STRIP, size = least(STRIP, facts.vocab - s * STRIP);
            const float* of_depth = work.depths + ((size_t)node.row * work.block + node.position) * facts.vocab + at;
            float* to = work.logits + (size_t)r * facts.vocab + at;
            for (size_t i = 0; i < size; i++) to[i] = node.position < work.block ? of_depth[i] + sums[i] : -INFINITY;
        });
    }

    void run() {
        if (work.mode == SCORES) scores();
        else if (work.mode == FEATURES) features(), layers();
        else markov();
    }
};

void forward(const Work* works, int batches, const Worker& worker) {
    for (int i = 0; i < batches; i++) Forward(works[i], i, worker).run();
}
}  // namespace

namespace draftwood {
extern const Kernels DRAFTWOOD_KERNELS;
const Kernels DRAFTWOOD_KERNELS{forward, advance, exponentials, perturb, sum_of_exponentials, segment_maxima};
}  // namespace draftwood
