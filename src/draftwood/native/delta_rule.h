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
        const Lanes a = load(to + j), above = (a + splat(60.f)) * splat(1e7f) + splat(1.f);  // at least 1, or below 0
        store(to + j, exponential(a) * lesser(splat(1.f), greater(splat(0.f), above)));
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

// What a token adds to the state of a head.
struct Entry {
    const float *key, *update;
    float decay;
};

// Entries of an interval, ``entry(j)``, become part of a state: [key][value], from one place to another or the same.
template <class E>
void add_entries(const Model& m, E entry, const float* from, float* to) {
    const int keys = m.padded_key, values = m.padded_value;
    Entry entries[INTERVAL];
    float decays[INTERVAL];
    for (int j = 0; j < INTERVAL; j++) entries[j] = entry(j), decays[j] = entries[j].decay;
    decay(decays, INTERVAL);
    for (int k = 0; k < keys; k++)
        for (int v = 0; v < values; v += LANES) {
            Lanes state = load(from + (size_t)k * values + v);
            for (int j = 0; j < INTERVAL; j++)
                state = fma(splat(entries[j].key[k]), load(entries[j].update + v), state * splat(decays[j]));
            store(to + (size_t)k * values + v, state);
        }
}

// The state of a head before a checkpoint of the text; it is made of the one before and of entries, ``entry(position)``.
template <class E>
float* state_before(const Model& m, const Layer& layer, const RowStates& row, int head, int checkpoint, E entry) {
    float* state = state_of(m, layer, row, head, checkpoint);
    int& present = checkpoint_at(m, layer, row, head, checkpoint);
    if (present == checkpoint) return state;
    const int before = checkpoint - INTERVAL;
    add_entries(m, [&](int j) { return entry(before + j); }, state_of(m, layer, row, head, before), state);
    present = checkpoint;
    return state;
}

inline void advance(const Model& m, const RowStates& row, int checkpoint) {
    for (int l = 0; l < m.facts.layers; l++)
        for (int h = 0; has_state(m.layer[l]) && h < m.facts.value_heads; h++)
            state_before(m, m.layer[l], row, h, checkpoint, [&](int position) -> Entry {
                const Place at(row, checkpoint, position);
                return {at.key(m, m.layer[l], key_head(m.facts, h)), at.update(m, m.layer[l], h), *at.decay(m, m.layer[l], h)};
            });
}

struct DeltaRule : ShortConvolution {
    static const int TOGETHER = REGISTERS == 1 ? 8 : 4;  // keys and queries that read a state together
    static const int STATE_AHEAD = 2048;                 // numbers of a state that are fetched before they are needed
    const int keys, values, heads, group;  // numbers of a head, padded; heads; those that share queries and keys
    const size_t mixed_width, head_numbers;  // the latter of a block of entries
    float* mixed;

    DeltaRule(const Work& batch, int number, const Worker& worker)
        : ShortConvolution(batch, number, worker), keys(model.padded_key), values(model.padded_value), heads(facts.value_heads),
          group(facts.key_heads ? heads / facts.key_heads : 1), mixed_width(model.channels + 2 * padded(heads)),
          head_numbers(INTERVAL * entry_numbers(model)), mixed(shared.mixed) {}

    static size_t padded(int number) { return ceil_div(number, LANES) * LANES; }
    const float* query(int i, int key_head) const { return mixed + i * mixed_width + key_head * keys; }
    const float* key(int i, int key_head) const { return query(i, facts.key_heads + key_head); }
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

    // The key of a token that token i sees.
    const float* key_at(const Layer& layer, int i, int slot, int key_head) const {
        const int other = in_batch(i, slot);
        return other >= 0 ? key(other, key_head) : place(work.tokens[i], slot).key(model, layer, key_head);
    }

    // The state that token i reads. Behind nodes it is made of the last one of text and of their entries.
    const float* state(const Layer& layer, int i, int h) const {
        const Token& token = work.tokens[i];
        const RowStates& row = work.states[token.row];
        const int checkpoint = checkpoint_of(position(token)), last = token.text / INTERVAL * INTERVAL;
        auto entry = [&](int p) -> Entry {
            const int slot = slot_at(token, p);
            const Place at = place(token, slot);
            return {key_at(layer, i, slot, key_head(facts, h)), at.update(model, layer, h), *at.decay(model, layer, h)};
        };
        if (checkpoint <= token.text) return state_before(model, layer, row, h, checkpoint, entry);
        const float* from = state_before(model, layer, row, h, last, entry);
        for (int p = last; p < checkpoint; p += INTERVAL, from = own.state)
            add_entries(model, [&](int j) { return entry(p + j); }, from, own.state);
        return from;
    }

    // Products of a state with keys and queries (P = 2), or queries alone, of successive tokens: [token][key, query][value], ``T``
    // tokens at a time.
    template <int T, int P>
    void read_state(const float* state, int start, int end, int key_head, float* out) const {
        for (int v = 0; v < values; v += STRIP)
            for (int i = start; i < end; i += T) {
                Lanes sums[P * T][2];
                const float* from[P * T];  // those of the last token are computed again if there are fewer: ``out`` has room
                for (int t = 0; t < T; t++) {
                    const int token = least(i + t, end - 1);
                    from[P * t] = key(token, key_head), from[P * t + P - 1] = query(token, key_head);
                }
#pragma GCC unroll 16  // so that sums stay in registers
                for (int t = 0; t < P * T; t++) sums[t][0] = sums[t][1] = splat(0.f);
                for (int k = 0; k < keys; k++)
#pragma GCC unroll 2
                    for (int u = 0; u < 2; u++) {
                        const float* at = state + (size_t)k * values + v + u * LANES;
                        const Lanes line = load(at);
                        __builtin_prefetch(at + STATE_AHEAD);
#pragma GCC unroll 16
                        for (int t = 0; t < P * T; t++) sums[t][u] = fma(splat(from[t][k]), line, sums[t][u]);
                    }
#pragma GCC unroll 16
                for (int t = 0; t < P * T; t++)
#pragma GCC unroll 2
                    for (int u = 0; u < 2; u++) store(out + (size_t)(P * (i - start) + t) * values + v + u * LANES, sums[t][u]);
            }
    }

    float dot(const float* a, const float* b) const {
        Lanes sums = splat(0.f);
        for (int d = 0; d < keys; d += LANES) sums = fma(load(a + d), load(b + d), sums);
        return sum(sums);
    }

    // Entries of a token's path since its checkpoint, the last one its own: where those of the first value head lie, and products of
    // their keys with the token's own and with its query.
    struct Seen {
        int size;  // less its own
        float *decays[2 * INTERVAL], *updates[2 * INTERVAL], by_key[2 * INTERVAL], by_query[2 * INTERVAL];
    };

    void see(const Layer& layer, int i, int key_head, Seen& seen) const {
        const Token& token = work.tokens[i];
        seen.size = position(token) - checkpoint_of(position(token));
        for (int j = 0; j <= seen.size; j++) {
            const int slot = slot_at(token, position(token) - seen.size + j);
            const float* other = key_at(layer, i, slot, key_head);
            const Place at = place(token, slot);
            seen.decays[j] = at.decay(model, layer, 0), seen.updates[j] = at.update(model, layer, 0);
            seen.by_query[j] = dot(other, query(i, key_head));
            if (layer.kind == DELTA_RULE) seen.by_key[j] = dot(other, key(i, key_head));
        }
    }

    // Fetch what a token reads of a head, and its entries from the given one on, while the state is read.
    void fetch_entries(const Layer& layer, int i, int h, const Seen& seen, int from) const {
        const size_t head = h * head_numbers;
        for (int v = 0; v < values; v += LANES) {
            __builtin_prefetch(value(i, h) + v), __builtin_prefetch(gates(layer, i) + h * values + v);
            for (int j = from; j <= seen.size; j++)
                __builtin_prefetch(seen.updates[j] + head + v), __builtin_prefetch(seen.decays[j] + head);
        }
    }

    // A token's entry and output, from what it reads of the state: [key, query][value], or of Mamba-2 [query][value].
    void take(const Layer& layer, int i, int h, const Seen& seen, const float* read) const {
        float decayed[2 * INTERVAL] = {0}, of_key[2 * INTERVAL], of_query[2 * INTERVAL], out[MAX_STATE], total = 0;
        const size_t head = h * head_numbers;
        const bool corrects = layer.kind == DELTA_RULE;
        seen.decays[seen.size][head] = decays(i)[h];
        for (int j = 0; j <= seen.size; j++) decayed[j] = total += seen.decays[j][head];
        decayed[seen.size] = 0;  // of the state before them
        for (int j = 0; j <= seen.size; j += LANES) store(decayed + j, splat(total) - load(decayed + j));
        decay(decayed, seen.size + 1);
        for (int j = 0; j < seen.size; j++) of_query[j] = seen.by_query[j] * decayed[j];
        for (int j = 0; corrects && j < seen.size; j++) of_key[j] = seen.by_key[j] * decayed[j];
        const Lanes of_state = splat(decayed[seen.size]), share = splat(shares(i)[h]), of_own = splat(seen.by_query[seen.size]);
        for (int v = 0; v < values; v += LANES) {
            Lanes by_query = load(read + (corrects ? values : 0) + v) * of_state, by_key = corrects ? load(read + v) * of_state : by_query;
            for (int j = 0; j < seen.size; j++) {
                const Lanes update = load(seen.updates[j] + head + v);
                by_query = fma(splat(of_query[j]), update, by_query);
                if (corrects) by_key = fma(splat(of_key[j]), update, by_key);
            }
            const Lanes mine = load(value(i, h) + v), update = share * (corrects ? mine - by_key : mine);
            const Lanes found = fma(of_own, update, by_query);
            store(seen.updates[seen.size] + head + v, update);
            store(out + v, corrects ? found : fma(splat(layer.skip[h]), mine, found));
        }
        float* gate = gates(layer, i) + h * values;
        Input* to = attended + ((size_t)i * heads + h) * values;
        auto gated = [&](int j, const Lanes& a) { return a * activated(load(gate + j), false); };
        if (corrects)
            rms_norm(out, layer.state_norm, values, facts.value_size, [&](int j, const Lanes& a) { N::store_input(to + j, gated(j, a)); });
        else
            for (int j = 0; j < values; j += LANES) store(gate + j, gated(j, load(out + j)));
    }

    // RMSNorm of what all heads of Mamba-2 return, by the heads that share B and C.
    void norm_groups(const Layer& layer, int i) const {
        for (int h = 0; h < heads; h += group)
            rms_norm(gates(layer, i) + h * values, layer.state_norm + h * values, group * values, group * facts.value_size,
                     into_inputs(attended + ((size_t)i * heads + h) * values));
    }

    // Value heads [first, last) of a key head, of successive tokens of a row; those that read the same state read it together.
    void read_heads(const Layer& layer, int start, int end, int key_head, int first, int last) const {
        float read[2 * INTERVAL * MAX_STATE];
        Seen seen[INTERVAL];
        for (int next; start < end; start = next) {
            const Token& token = work.tokens[start];
            auto same = [&](const Token& other) {
                const int checkpoint = checkpoint_of(position(token));
                return checkpoint_of(position(other)) == checkpoint && last_in_state(other) == last_in_state(token);
            };
            for (next = start + 1; next < end && next - start < INTERVAL && same(work.tokens[next]);) next++;
            const bool corrects = layer.kind == DELTA_RULE, alone = next - start == 1;
            auto read_with = alone ? corrects ? &DeltaRule::read_state<1, 2> : &DeltaRule::read_state<1, 1>
                             : corrects ? &DeltaRule::read_state<TOGETHER / 2, 2> : &DeltaRule::read_state<TOGETHER, 1>;
            for (int i = start; i < next; i++) see(layer, i, key_head, seen[i - start]);
            for (int n = first; n < last; n++) {
                const int h = facts.tiled ? n * facts.key_heads + key_head : key_head * group + n;
                for (int i = start; i < next; i++) fetch_entries(layer, i, h, seen[i - start], i == start ? 0 : seen[i - start].size);
                (this->*read_with)(state(layer, start, h), start, next, key_head, read);
                for (int i = start; i < next; i++)
                    take(layer, i, h, seen[i - start], read + (size_t)(corrects ? 2 : 1) * (i - start) * values);
            }
        }
    }

    template <class F>
    void delta_rule(const Layer& layer, F begin) {
        linear(layer.qkv, count, normed, layer.norm, into_rows(qkv, layer.qkv.outputs));
        each_token([&](int i) {
            begin(i);
            mix(layer, i);
        });
        int rows = 0;
        auto start_of = [&](int i) { return !i || work.tokens[i].row != work.tokens[i - 1].row; };
        for (int i = 0; i < count; i++) rows += start_of(i);
        const int all = rows * facts.key_heads, parts = least(group, ceil_div(2 * threads, all));  // of a key head's value heads
        in_chunks(all * parts, 1, [&](int c) {
            const int part = c % parts, one = c / parts;
            int start = -1, end;
            for (int left = one / facts.key_heads; left >= 0;) left -= start_of(++start);
            for (end = start + 1; end < count && !start_of(end);) end++;
            read_heads(layer, start, end, one % facts.key_heads, group * part / parts, group * (part + 1) / parts);
        });
        each_token([&](int i) {
            if (layer.kind == MAMBA) norm_groups(layer, i);
            keep(layer, i, key(i, 0));
        });
    }
};
}  // namespace
