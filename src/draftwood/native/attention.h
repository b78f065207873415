// Attention: queries, keys and values of tokens with RoPE, the KV cache, and softmax over what a token of a tree sees.
#pragma once
#include "page.h"
#include "phases.h"

namespace {
const int CHUNKS = 4;  // of attention, for each thread

struct Attention : Batch {
    using Batch::Batch;

    Weight* keys(int row, int page, int layer, int head) const {
        return (Weight*)work.pages[row][page] + head_at(model.layer[layer], head);
    }
    Weight* values(int row, int page, int layer, int head) const { return keys(row, page, layer, head) + head_size(dim); }
    // Bytes to the page of the slots from ``next`` on, from the one before it; 0 where it is not read: ``end`` comes first.
    ptrdiff_t next_page(int row, int next, int end) const {
        return next < end ? (char*)work.pages[row][next / PAGE] - (char*)work.pages[row][next / PAGE - 1] : 0;
    }

    // RoPE: pairs of numbers, half a head apart, turn by the angle of their position.
    void rotate(float* head, const Layer& layer, int position) const {
        if (layer.rotary < 0) return;
        const int columns = facts.rotary_dim / 2, half = least(columns, layer.head_dim / 2);
        size_t at = ((size_t)layer.rotary * model.rotary.positions + position) * columns;
        const float *cos = model.rotary.cos + at, *sin = model.rotary.sin + at;
        for (int j = 0; j < half; j++) {
            float a = head[j], b = head[j + half];
            head[j] = a * cos[j] - b * sin[j];
            head[j + half] = b * cos[j] + a * sin[j];
        }
    }

    // A head of a token into its page, ``at(number)`` of it; returns whether all are numbers in the format of the page.
    template <class F>
    bool store_head(const float* head, Weight* page, F at) const {
        Weight rounded[LANES];
        Lanes zeros = splat(0.f);
        for (int j = 0; j < dim; j += LANES) {
            N::store_weight(rounded, load(head + j));
            zeros = fma(N::load_weight(rounded), splat(0.f), zeros);
            for (int m = 0; m < LANES; m++) page[at(j + m)] = rounded[m];
        }
        return sum(zeros) == 0;
    }

    void norm_and_rotate(const Layer& layer, float* row, int h, int position) const {
        float* head = row + h * dim;
        const float* weight = h < facts.heads ? layer.query_norm : layer.key_norm;
        const int heads = !facts.joint_norms ? 1 : h == 0 ? facts.heads : h == facts.heads ? layer.kv_heads : 0;
        if (weight && heads) rms_norm(head, weight, heads * dim, heads * layer.head_dim, into_row(head));
        rotate(head, layer, position);
        if (!model.rotary.queries || h >= facts.heads) return;
        for (int j = 0; j < dim; j += LANES) store(head + j, load(head + j) * splat(model.rotary.queries[position]));
    }

    // Queries, keys and values of a token: normed, rotated, rounded, and put where attention reads them.
    // Values that are no numbers are kept as zeros with keys of NaN: a token that sees them gets NaN, and any other one 0 * 0.
    void store_queries_keys_values(int i, int l) {
        const Token& token = work.tokens[i];
        const Layer& layer = model.layer[l];
        const int page = token.slot / PAGE, slot = token.slot % PAGE, kv_heads = layer.borrows ? 0 : layer.kv_heads;
        float *row = qkv + i * qkv_width, *key = row + facts.heads * dim, *value = key + kv_heads * dim;
        for (int h = 0; layer.value_norm && h < kv_heads; h++)
            rms_norm(value + h * dim, layer.value_norm, dim, layer.head_dim, into_row(value + h * dim));
        for (int h = work.mode == FEATURES ? facts.heads : 0; h < facts.heads + kv_heads; h++) {
            norm_and_rotate(layer, row, h, token.position);
            if (h >= facts.heads) continue;
            Input* to = queries + ((size_t)(h / head_group * count + i) * head_group + h % head_group) * dim;
            for (int j = 0; j < dim; j += LANES) N::store_input(to + j, load(row + h * dim + j));
        }
        for (int h = 0; h < kv_heads; h++, key += dim, value += dim) {
            Weight* page_values = values(token.row, page, l, h);
            auto at = [&](int j) { return value_at(slot, j, dim, N::step); };
            if (!store_head(value, page_values, at)) {
                for (int j = 0; j < dim; j++) key[j] = NAN, value[j] = 0;
                store_head(value, page_values, at);
            }
            store_head(key, keys(token.row, page, l, h), [&](int j) { return key_at(slot, j, dim, N::step); });
        }
    }

    static int length(const Token& token) { return token.text + token.seen; }
    // Values of positions before this one are read where they lie, in the steps in which they will lie for later tokens; those
    // of the others, the tail, are gathered.
    static int tail_start(const Token& token) { return token.seen ? token.text / STEP * STEP : token.text; }
    static int tail_size(const Token& token) { return ceil_div(length(token) - tail_start(token), STEP) * STEP; }

    // Softmax of a row of scores: weights of slots until ``tail_start``, then of the tail; returns their sum, by which attention
    // is divided at last. Scores of the path's nodes go to their positions, so that sums have the order that they will have
    // once the nodes are text. ``from`` and ``to``: the slots whose weights are read for any row. A sink, or null, has a share.
    float softmax(const Token& token, float* scores, Input* weights, Input* tail, int window, int from, int to,
                  const float* sink) const {
        const int end = length(token), low = window ? most(0, end - window) : 0;
        const int first = low / LANES * LANES, last = ceil_div(end, LANES) * LANES;
        for (int i = 0; i < token.seen; i++) scores[token.text + i] = scores[work.path[token.first + i]];
        const float cap = facts.attention_cap;
        for (int p = first; cap && p < last; p += LANES)
            store(scores + p, capped(load(scores + p) * splat(facts.scale), cap));
        for (int p = first; p < low; p++) scores[p] = -INFINITY;
        for (int p = end; p < last; p++) scores[p] = -INFINITY;
        Lanes top = splat(-INFINITY);
        for (int p = first; p < last; p += LANES) top = greater(top, load(scores + p));
        top = splat(greatest(top));
        const Lanes scale = splat(cap ? 1.f : facts.scale);
        Lanes total = splat(0.f);
        for (int p = first; p < last; p += LANES) {
            Lanes part = exponential((load(scores + p) - top) * scale);
            if (p < low || p + LANES > end) {
                store(scores + p, part);
                for (int q = p; q < p + LANES; q++)
                    if (q < low || q >= end) scores[q] = 0;
                part = load(scores + p);
            }
            total = total + part;
            N::store_input(weights + p, part);
        }
        const int start = tail_start(token), tail_end = ceil_div(end, STEP) * STEP;
        for (int p = start; token.seen && p < tail_end; p++) tail[p - start] = p >= first && p < end ? weights[p] : (Input)0;
        for (int p = from; p < first; p++) weights[p] = 0;
        for (int p = start; p < to; p++) weights[p] = 0;
        return sink ? sum(total) + greatest(exponential(splat(*sink) - top * scale)) : sum(total);
    }

    // The values of the tail in the order of text, and zeros until the end of a step; returns how many.
    int gather_tail(const Token& token, int l, int head) const {
        const int from = tail_start(token), end = length(token), size = tail_size(token);
        auto slot = [&](int p) { return p < token.text ? p : work.path[token.first + p - token.text]; };
        auto value = [&](int p) {
            return values(token.row, slot(p) / PAGE, l, head) + value_at(slot(p) % PAGE, 0, dim, N::step);
        };
        Weight* to = (Weight*)own.gathered;
        for (int p = from; p < end; p += N::step, to += N::step * dim) {
            const int last = p + N::step - 1;
            if (last < end && slot(p) % N::step == 0 && slot(last) == slot(p) + N::step - 1) {
                memcpy(to, value(p), N::step * dim * sizeof(Weight));
                continue;
            }
            for (int s = 0; s < N::step; s++) {
                const Weight* one = p + s < end ? value(p + s) : nullptr;
                for (int i = 0; i < dim; i++) to[i * N::step + s] = one ? one[i * N::step] : (Weight)0;
            }
        }
        memset(to, 0, (char*)((Weight*)own.gathered + (size_t)size * dim) - (char*)to);
        return size;
    }

    // Rows of queries that share the keys of a head: [low, high) of those of the tokens from ``start`` on.
    struct Queries {
        int layer, head, start, low, high;
        int rows() const { return high - low; }
    };
    int token_of(const Queries& q, int r) const { return q.start + (q.low + r) / head_group; }

    // What any of these rows reads: slots [from, end), values where they lie before ``direct``, and tails of ``longest`` slots.
    struct Reach {
        int from = INT32_MAX, end = 0, direct = 0, longest = 0;
        int stride() const { return ceil_div(end, PAGE) * PAGE; }
    };
    Reach reach_of(const Queries& q) const {
        Reach all;
        const int window = model.layer[q.layer].window;
        for (int r = 0; r < q.rows(); r++) {
            const Token& token = work.tokens[token_of(q, r)];
            all.end = most(all.end, token.text);
            for (int i = 0; i < token.seen; i++) all.end = most(all.end, work.path[token.first + i] + 1);
            all.direct = most(all.direct, tail_start(token));
            all.longest = most(all.longest, tail_size(token));
            all.from = least(all.from, window ? most(0, length(token) - window) / PAGE * PAGE : 0);
        }
        return all;
    }

    // Sums of the tails' values, then of all values over the sum of their weights: attention of these rows.
    void finish_rows(const Queries& q, const Input* tails, int longest, const float* totals) {
        for (int r = 0, n; r < q.rows(); r += n) {
            const int at = token_of(q, r), head_in_group = (q.low + r) % head_group;
            const Token& token = work.tokens[at];
            n = least(least(head_group - head_in_group, q.rows() - r), TILE);  // a tile is whole: those below are other tokens'
            const int size = token.seen ? gather_tail(token, q.layer, q.head) : 0;
            for (int d = 0; size && d < dim; d += STRIP)
                multiply({(Weight*)own.gathered + d * N::step, (size_t)dim * N::step, (size_t)LANES * N::step, size}, n,
                         tails + (size_t)r * longest, longest, own.sums + (size_t)r * dim + d, dim, true);
            for (int m = 0; m < n; m++) {
                Input* to = attended + at * heads_width + (size_t)(q.head * head_group + head_in_group + m) * dim;
                const Lanes factor = splat(1.f / totals[r + m]);
                const float* gate = qkv + (at + 1) * qkv_width - heads_width + (to - attended) % heads_width;
                for (int d = 0; d < dim; d += LANES) {
                    const Lanes found = load(own.sums + (size_t)(r + m) * dim + d) * factor;
                    N::store_input(to + d, facts.gated ? found * sigmoid(load(gate + d)) : found);
                }
            }
        }
    }

    void attend(const Queries& q) {
        const Reach reach = reach_of(q);
        const int rows = q.rows(), row = work.tokens[q.start].row, stride = reach.stride();
        const float* sinks = model.layer[q.layer].sinks;
        const Input* x = queries + ((size_t)(q.head * count + q.start) * head_group + q.low) * dim;
        for (int p = reach.from; p < reach.end; p += STRIP) {  // scores: queries times keys
            const Weight* k = keys(row, p / PAGE, q.layer, q.head) + key_at(p % PAGE, 0, dim, N::step);
            multiply({k, (size_t)LANES * N::step, (size_t)LANES * dim, dim, false, next_page(row, p + PAGE, reach.end)}, rows, x,
                     dim, own.scores + p, stride, false);
        }
        Input *weights = (Input*)own.softmax, *tails = weights + (size_t)rows * stride;
        float totals[QUERIES];
        for (int r = 0; r < rows; r++) {
            const size_t at = (size_t)r * stride;
            totals[r] = softmax(work.tokens[token_of(q, r)], own.scores + at, weights + at, tails + (size_t)r * reach.longest,
                                model.layer[q.layer].window, reach.from, stride,
                                sinks ? sinks + q.head * head_group + (q.low + r) % head_group : nullptr);
        }
        memset(own.sums, 0, sizeof(float) * (size_t)rows * dim);
        for (int p = reach.from; p < reach.direct; p += PAGE)  // weights times values
            for (int d = 0; d < dim; d += STRIP) {
                const Weight* v = values(row, p / PAGE, q.layer, q.head) + value_at(0, d, dim, N::step);
                const int size = ceil_div(least(PAGE, reach.direct - p), STEP) * STEP;
                multiply({v, (size_t)dim * N::step, (size_t)LANES * N::step, size, false, next_page(row, p + PAGE, reach.direct)},
                         rows, weights + p, stride, own.sums + d, dim, true);
            }
        finish_rows(q, tails, reach.longest, totals);
    }

    // One phase: attention of all tokens, in chunks of rows of queries that share a row's keys of a head.
    void attention(int l) {
        const int size = most(1, least(QUERIES, ceil_div(count * facts.heads, threads * CHUNKS)));
        int chunks = 0;
        auto each_chunk = [&](auto take) {
            for (int start = 0, end; start < count; start = end) {
                for (end = start; end < count && work.tokens[end].row == work.tokens[start].row;) end++;
                const int rows = (end - start) * head_group;
                for (int h = 0; h < facts.heads / head_group; h++)
                    for (int r = 0; r < rows; r += size) take(Queries{l, h, start, r, least(r + size, rows)});
            }
        };
        each_chunk([&](const Queries&) { chunks++; });
        in_chunks(chunks, 1, [&](int c) {
            int at = 0;
            each_chunk([&](const Queries& q) {
                if (at++ == c) attend(q);
            });
        });
    }
};
}  // namespace
