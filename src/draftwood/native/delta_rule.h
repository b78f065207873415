// The gated delta rule (Yang et al., "Gated Delta Networks", 2024) and Mamba-2 (Dao and Gu, 2024) over the paths of a tree.
//
// With S the state before the checkpoint, and G the sum of the logarithms of decays since then:
//
//     update_i = share_i (v_i - e^G_i S'k_i - sum over its path j < i of e^(G_i - G_j) (k_j . k_i) update_j)
//     out_i    = e^G_i S'q_i + sum over its path j <= i of e^(G_i - G_j) (k_j . q_i) update_j
//
// An update of Mamba-2 is share_i v_i alone: k is its B, q its C, v its x, and the share its dt.
#pragma once
#include "short_convolution.h"

namespace {
// Powers of e, and 0 below -60: numbers near the smallest ones make products a hundred times as slow.
inline void decay(float* to, int size) {
    for (int j = 0; j < size; j += LANES) {
        float given[LANES];
        memcpy(given, to + j, sizeof given);
        store(to + j, exponential(load(to + j)));
        for (int i = 0; i < LANES; i++) to[j + i] = given[i] < -60 ? 0 : to[j + i];
    }
}

// log(1 + e^a). The quotient undoes the rounding of 1 + e^a.
inline Lanes softplus(const Lanes& a) {
    float given[LANES], power[LANES], more[LANES], logs[LANES];
    store(given, a);
    store(power, exponential(a));
    store(more, splat(1.f) + load(power));
    logarithms<LANES>(more, logs);
    for (int i = 0; i < LANES; i++) {
        const float exact = logs[i] * power[i] / (more[i] - 1.f);
        logs[i] = given[i] > 20 ? given[i] : more[i] == 1.f ? power[i] : exact;
    }
    return load(logs);
}

// Entries of successive tokens become part of a state: [key][value], from one place to another or the same.
inline void add_entries(const Model& m, const float* const* entries, int count, const float* from, float* to) {
    const int keys = m.padded_key, values = m.padded_value;
    float decays[INTERVAL];
    for (int j = 0; j < INTERVAL; j++) decays[j] = j < count ? entries[j][keys + values] : 0;
    decay(decays, INTERVAL);
    for (int k = 0; k < keys; k++)
        for (int v = 0; v < values; v += LANES) {
            Lanes state = load(from + (size_t)k * values + v);
            for (int j = 0; j < count; j++)
                state = fma(splat(entries[j][k]), load(entries[j] + keys + v), state * splat(decays[j]));
            store(to + (size_t)k * values + v, state);
        }
}

// The state of a head before a checkpoint of the text; it is made of the one before.
inline float* state_before(const Model& m, const Layer& layer, const RowStates& row, int head, int checkpoint) {
    float* state = state_of(m, layer, row, head, checkpoint);
    int& present = checkpoint_at(m, layer, row, head, checkpoint);
    if (present == checkpoint) return state;
    const int before = checkpoint - INTERVAL;
    const float* entries[INTERVAL];
    for (int j = 0; j < INTERVAL; j++) entries[j] = Place(row, checkpoint, before + j).entry(m, layer, head);
    add_entries(m, entries, INTERVAL, state_of(m, layer, row, head, before), state);
    present = checkpoint;
    return state;
}

inline void advance(const Model& m, const RowStates& row, int checkpoint) {
    for (int l = 0; l < m.facts.layers; l++)
        for (int h = 0; has_state(m.layer[l]) && h < m.facts.value_heads; h++)
            state_before(m, m.layer[l], row, h, checkpoint);
}

template <class N>
struct DeltaRule : ShortConvolution<N> {
    typedef ShortConvolution<N> Base;
    using typename Base::Input;
    using Base::attended, Base::convolve, Base::count, Base::each_token, Base::facts, Base::in_chunks, Base::keep_inputs;
    using Base::linear, Base::model, Base::norm_all, Base::normed, Base::own, Base::place, Base::position, Base::qkv;
    using Base::rms_norm, Base::slot_at, Base::work;
    const int keys, values, heads, group;  // numbers of a head, padded; heads; those that share queries and keys
    const size_t mixed_width;
    float* mixed;

    DeltaRule(const Work& batch, const Worker& worker)
        : Base(batch, worker), keys(model.padded_key), values(model.padded_value), heads(facts.value_heads),
          group(facts.key_heads ? heads / facts.key_heads : 1), mixed_width(model.channels + 2 * padded(heads)),
          mixed(worker.shared->mixed) {}

    static size_t padded(int number) { return ceil_div(number, LANES) * LANES; }
    int key_head(int h) const { return facts.tiled ? h % facts.key_heads : h / group; }
    const float* query(int i, int h) const { return mixed + i * mixed_width + key_head(h) * keys; }
    const float* key(int i, int h) const { return query(i, h) + facts.key_heads * keys; }
    const float* value(int i, int h) const { return mixed + i * mixed_width + 2 * facts.key_heads * keys + h * values; }
    float* shares(int i) const { return mixed + i * mixed_width + model.channels; }
    float* decays(int i) const { return shares(i) + padded(heads); }
    float* gates(const Layer& layer, int i) const { return qkv + (size_t)i * layer.qkv.outputs + model.channels; }

    // Queries, keys and values of a token, each query and key of length one; shares of its updates, and logarithms of decays.
    void mix(const Layer& layer, int i) const {
        float* to = mixed + i * mixed_width;
        const float* bias = layer.convolution_bias;
        convolve(layer, i, [&](int c, const Lanes& sums) {
            store(to + c, activated(bias ? sums + load(bias + c) : sums, false));
        });
        for (int h = 0; layer.kind == DELTA_RULE && h < 2 * facts.key_heads; h++, to += keys) {
            Lanes squares = splat(0.f);
            for (int j = 0; j < keys; j += LANES) squares = fma(load(to + j), load(to + j), squares);
            const float scale = h < facts.key_heads ? 1.f / sqrtf(facts.key_size) : 1.f;
            const Lanes factor = splat(scale / sqrtf(sum(squares) + 1e-6f));
            for (int j = 0; j < keys; j += LANES) store(to + j, load(to + j) * factor);
        }
        const float* from = gates(layer, i) + (size_t)heads * values;
        for (size_t h = 0; h < padded(heads); h += LANES) {
            const float* step = layer.kind == DELTA_RULE ? from + padded(heads) + h : from + h;
            const Lanes steps = softplus(load(step) + load(layer.decay_bias + h));
            store(shares(i) + h, layer.kind == DELTA_RULE ? sigmoid(load(from + h)) : steps);
            store(decays(i) + h, load(layer.decay + h) * steps);
        }
    }

    // The slot of the last token in the state that a token reads; below 0 if that is a state of text alone.
    int last_in_state(const Token& token) const {
        const int checkpoint = checkpoint_of(position(token));
        return checkpoint > token.text ? slot_at(token, checkpoint - 1) : -1;
    }

    // The state that a token reads. Behind nodes it is made of the last one of text and of their entries.
    const float* state(const Layer& layer, const Token& token, int h) const {
        const RowStates& row = work.states[token.row];
        const int checkpoint = checkpoint_of(position(token)), last = token.text / INTERVAL * INTERVAL;
        if (checkpoint <= token.text) return state_before(model, layer, row, h, checkpoint);
        const float *from = state_before(model, layer, row, h, last), *entries[INTERVAL];
        for (int p = last; p < checkpoint; p += INTERVAL, from = own.state) {
            for (int j = 0; j < INTERVAL; j++) entries[j] = place(token, slot_at(token, p + j)).entry(model, layer, h);
            add_entries(model, entries, INTERVAL, from, own.state);
        }
        return from;
    }

    // Products of a state with keys and queries, or queries alone, of successive tokens: [token][key, query][value], ``T`` tokens at
    // a time.
    template <int T, int P>
    void read_state(const float* state, int start, int end, int h, float* out) const {
        for (int v = 0; v < values; v += LANES)
            for (int i = start; i < end; i += T) {
                Lanes sums[P * T];
                const float* from[P * T];  // those of the last token are computed again if there are fewer
                for (int t = 0; t < T; t++) {
                    const int token = least(i + t, end - 1);
                    from[P * t] = key(token, h), from[P * t + P - 1] = query(token, h);
                    sums[P * t] = sums[P * t + P - 1] = splat(0.f);
                }
                for (int k = 0; k < keys; k++) {
                    const Lanes line = load(state + (size_t)k * values + v);
                    for (int t = 0; t < P * T; t++) sums[t] = fma(splat(from[t][k]), line, sums[t]);
                }
                for (int t = 0; t < P * least(T, end - i); t++)
                    store(out + (size_t)(P * (i - start) + t) * values + v, sums[t]);
            }
    }

    float dot(const float* a, const float* b) const {
        Lanes sums = splat(0.f);
        for (int d = 0; d < keys; d += LANES) sums = fma(load(a + d), load(b + d), sums);
        return sum(sums);
    }

    // Attention to the entries of the path: weights of their updates in the token's own update, and in what it reads. Returns by
    // how much the state has decayed.
    float weigh(const Layer& layer, int i, int h, const float** entries, float* of_key, float* of_query) const {
        const Token& token = work.tokens[i];
        const bool corrects = layer.kind == DELTA_RULE;
        const int p = position(token), start = checkpoint_of(p), size = p - start;
        float sums[2 * INTERVAL + LANES] = {0}, total = 0;
        for (int j = 0; j < size; j++) {
            entries[j] = place(token, slot_at(token, start + j)).entry(model, layer, h);
            sums[j] = total += entries[j][keys + values];
        }
        total += decays(i)[h], sums[size] = 0;
        for (int j = 0; j <= size; j += LANES) store(sums + j, splat(total) - load(sums + j));
        decay(sums, size + 1);
        const float *k = key(i, h), *q = query(i, h);
        for (int j = 0; j < size; j++) {
            Lanes with_key = splat(0.f), with_query = splat(0.f);
            for (int d = 0; d < keys; d += LANES) {
                const Lanes other = load(entries[j] + d);
                with_query = fma(other, load(q + d), with_query);
                if (corrects) with_key = fma(other, load(k + d), with_key);
            }
            of_query[j] = sum(with_query) * sums[j];
            if (corrects) of_key[j] = sum(with_key) * sums[j];
        }
        return sums[size];
    }

    // A token's entry and output, from what it reads of the state: [key, query][value], or of Mamba-2 [query][value].
    void take(const Layer& layer, int i, int h, const float* read) const {
        const float* entries[2 * INTERVAL];
        float of_key[2 * INTERVAL], of_query[2 * INTERVAL], out[MAX_STATE];
        const Token& token = work.tokens[i];
        const bool corrects = layer.kind == DELTA_RULE;
        const int size = position(token) - checkpoint_of(position(token));
        const Lanes decayed = splat(weigh(layer, i, h, entries, of_key, of_query)), share = splat(shares(i)[h]);
        const Lanes of_own = splat(dot(key(i, h), query(i, h)));
        float* entry = place(token, token.slot).entry(model, layer, h);
        memcpy(entry, key(i, h), sizeof(float) * keys);
        for (int v = 0; v < values; v += LANES) {
            Lanes by_query = load(read + (corrects ? values : 0) + v) * decayed, by_key = corrects ? load(read + v) * decayed : by_query;
            for (int j = 0; j < size; j++) {
                const Lanes update = load(entries[j] + keys + v);
                by_query = fma(splat(of_query[j]), update, by_query);
                if (corrects) by_key = fma(splat(of_key[j]), update, by_key);
            }
            const Lanes mine = load(value(i, h) + v), update = share * (corrects ? mine - by_key : mine);
            const Lanes found = fma(of_own, update, by_query);
            store(entry + keys + v, update);
            store(out + v, corrects ? found : fma(splat(layer.skip[h]), mine, found));
        }
        entry[keys + values] = decays(i)[h];
        float* gate = gates(layer, i) + h * values;
        Input* to = attended + ((size_t)i * heads + h) * values;
        auto gated = [&](int j, const Lanes& a) { return a * activated(load(gate + j), false); };
        if (corrects)
            rms_norm(out, layer.state_norm, values, facts.value_size, [&](int j, const Lanes& a) { N::store_input(to + j, gated(j, a)); });
        else
            for (int j = 0; j < values; j += LANES) store(gate + j, gated(j, load(out + j)));
        keep_inputs(layer, i, h, heads);
    }

    // RMSNorm of what all heads of Mamba-2 return, by the heads that share B and C.
    void norm_groups(const Layer& layer, int i) const {
        for (int h = 0; h < heads; h += group) {
            Input* to = attended + ((size_t)i * heads + h) * values;
            rms_norm(gates(layer, i) + h * values, layer.state_norm + h * values, group * values, group * facts.value_size,
                     [&](int j, const Lanes& a) { N::store_input(to + j, a); });
        }
    }

    // A head of successive tokens of a row; those that read the same state read it together.
    void head(const Layer& layer, int start, int end, int h) const {
        float read[2 * INTERVAL * MAX_STATE];
        for (int next; start < end; start = next) {
            const Token& token = work.tokens[start];
            auto same = [&](const Token& other) {
                const int checkpoint = checkpoint_of(position(token));
                return checkpoint_of(position(other)) == checkpoint && last_in_state(other) == last_in_state(token);
            };
            for (next = start + 1; next < end && next - start < INTERVAL && same(work.tokens[next]);) next++;
            const bool corrects = layer.kind == DELTA_RULE, alone = next - start == 1;
            auto read_with = alone ? corrects ? &DeltaRule::read_state<1, 2> : &DeltaRule::read_state<1, 1>
                             : corrects ? &DeltaRule::read_state<4, 2> : &DeltaRule::read_state<8, 1>;
            (this->*read_with)(state(layer, token, h), start, next, h, read);
            for (int i = start; i < next; i++) take(layer, i, h, read + (size_t)(corrects ? 2 : 1) * (i - start) * values);
        }
    }

    template <class F>
    void delta_rule(const Layer& layer, F begin) {
        linear(layer.qkv, count, normed, 0, [&] { norm_all(layer.norm); }, [&](int s, int r, const float* sums) {
            memcpy(qkv + (size_t)r * layer.qkv.outputs + s * STRIP, sums, sizeof(float) * STRIP);
        });
        each_token([&](int i) {
            begin(i);
            mix(layer, i);
        });
        int rows = 0;
        auto start_of = [&](int i) { return !i || work.tokens[i].row != work.tokens[i - 1].row; };
        for (int i = 0; i < count; i++) rows += start_of(i);
        in_chunks(rows * heads, 1, [&](int c) {
            int start = -1, end;
            for (int left = c / heads; left >= 0;) left -= start_of(++start);
            for (end = start + 1; end < count && !start_of(end);) end++;
            head(layer, start, end, c % heads);
        });
        if (layer.kind == MAMBA) each_token([&](int i) { norm_groups(layer, i); });
    }
};
}  // namespace
