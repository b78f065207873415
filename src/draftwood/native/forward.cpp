// The forward of a block of tokens through all layers, as each thread runs it.
//
// This file is compiled once for each instruction set, so it must not instantiate templates of the standard library: the
// linker would keep one of several copies, with instructions that another processor lacks.
#include "codes.h"
#include "model.h"

#include "lanes.h"
#include "integers.h"
#include "sampling.h"
#if defined(DRAFTWOOD_AMX)
#include "tiles.h"
#endif

namespace {
using namespace draftwood;

#if defined(__AVX512F__)
const int ROWS = 12;  // rows of a tile whose sums stay in registers
#elif defined(__AVX2__)
const int ROWS = 3;
#else
const int ROWS = 1;
#endif
const int CHUNKS = 4;      // of attention, for each thread
const int AHEAD = 1024;    // bytes of weights that are fetched before they are needed

inline int least(int a, int b) { return a < b ? a : b; }
inline int most(int a, int b) { return a > b ? a : b; }
inline int share(int a, int b) { return (a + b - 1) / b; }

// Where the weights of two blocks of sixteen outputs lie: distances are in numbers. Those of a matrix are followed by others,
// which are fetched before they are needed; those made of codes are not.
template <class N>
struct Blocks {
    const typename N::Weight* weights;
    size_t next_step, next_block;
    int inputs;
    bool of_matrix;
};

// The products of R rows x[r] with two blocks of outputs; ``more`` adds them to what out[r] holds.
template <class N, int R>
void tile(const Blocks<N>& a, const typename N::Input* x, size_t next_x, float* out, size_t next_out, bool more) {
    Lanes sums[R][2];
    for (int r = 0; r < R; r++)
        for (int b = 0; b < 2; b++) sums[r][b] = more ? load(out + r * next_out + b * LANES) : splat(0.f);
    const typename N::Weight* w = a.weights;
    for (int k = 0; k < a.inputs; k += N::step, w += a.next_step) {
        if (a.of_matrix) __builtin_prefetch((const char*)w + AHEAD), __builtin_prefetch((const char*)(w + LANES * N::step) + AHEAD);
        typename N::Vector first = N::vector(w), second = N::vector(w + a.next_block);
        for (int r = 0; r < R; r++) {
            sums[r][0] = N::add_product(sums[r][0], first, x + r * next_x + k);
            sums[r][1] = N::add_product(sums[r][1], second, x + r * next_x + k);
        }
    }
    for (int r = 0; r < R; r++)
        for (int b = 0; b < 2; b++) store(out + r * next_out + b * LANES, sums[r][b]);
}

template <class N>
struct Tiles {
    typedef void (*Tile)(const Blocks<N>&, const typename N::Input*, size_t, float*, size_t, bool);
    template <int R>
    static Tile of(int rows) {
        if constexpr (R == ROWS) return tile<N, R>;
        else return rows == R ? tile<N, R> : of<R + 1>(rows);
    }
};

// The same for any number of rows.
template <class N>
void tiles(const Blocks<N>& a, int rows, const typename N::Input* x, size_t next_x, float* out, size_t next_out, bool more) {
    int size = share(rows, share(rows, ROWS));
    for (int r = 0; r < rows; r += size)
        Tiles<N>::template of<1>(least(size, rows - r))(a, x + r * next_x, next_x, out + r * next_out, next_out, more);
}

template <class N>
struct Block {
    typedef typename N::Input Input;
    typedef typename N::Weight Weight;
    static const int STEP = N::tiles ? SUMMED : N::step;  // inputs that are added together
    static const bool INTEGERS = !N::rounds;                // products with codes
    const Work& work;
    const Model& model;
    const Facts& facts;
    Phases* phases;
    Scratch& own;
    int thread, threads, count, dim, group, phase;  // group: heads that share keys
    size_t width, heads_width, qkv_width;
    bool ends = false;  // hidden states after the last layer are wanted
    float *x, *qkv;
    Input *queries, *attended, *acted, *normed;
    int* chosen;
    float* shares;
    Inputs coded{};

    Block(const Work& given, Phases* phases, const Shared& shared, Scratch& own, int thread, int threads)
        : work(given), model(*given.model), facts(model.facts), phases(phases), own(own), thread(thread), threads(threads),
          count(given.count), dim(model.padded_dim), group(facts.heads / facts.kv_heads), phase(given.phase), width(model.padded_width),
          heads_width((size_t)facts.heads * dim), qkv_width((size_t)(facts.heads + 2 * facts.kv_heads) * dim),
          x(shared.x), qkv(shared.qkv), queries((Input*)shared.queries),
          attended((Input*)shared.attended), acted((Input*)shared.acted), normed((Input*)own.normed),
          chosen(shared.chosen), shares(shared.shares) {
        for (int t = 0; work.hidden && t < facts.taps; t++) ends |= model.tap[t] >= facts.layers;
        if (joins()) ends &= work.scored > 0;
    }

    // One phase: ``each(chunk)`` for chunks of ``size`` of all items.
    template <class F>
    void in_chunks(int items, int size, F each) {
        int chunks = share(items, size);
        for (int c, done = 0; (c = claim(phases, phase, chunks, thread, done)) >= 0; done++)
            for (int i = c * size; i < least(items, (c + 1) * size); i++) each(i);
        phase++;
    }

    template <class F>
    void each_token(F one) {
        in_chunks(count, share(count, 2 * threads), one);
    }

    // The numbers of a group, or those of some of its inputs.
    static Blocks<N> group_of(const Weight* weights, int inputs, bool of_matrix) {
        return {weights, GROUP * N::step, LANES * N::step, inputs, of_matrix};
    }

    // The products of rows with two blocks of outputs.
    void multiply(const Blocks<N>& a, int rows, const Input* in, size_t next, float* found, size_t next_found, bool more) {
#if defined(DRAFTWOOD_AMX)
        if constexpr (N::tiles) return tiles_of_amx(a, rows, in, next, found, next_found, more, own.tile_rows);
#endif
        tiles<N>(a, rows, in, next, found, next_found, more);
    }

    // The same from codes, as numbers.
    void multiply_codes(const Linear& a, int g, int rows, const Input* in, float* found) {
        alignas(64) Weight numbers[EXPANDED * GROUP];
        const Panel* panels = a.panels + 2 * g;
        for (int k = 0; k < a.inputs; k += EXPANDED) {
            const int size = least(EXPANDED, a.inputs - k);
            for (int half = 0; half < 2; half++)
                for (int i = 0; i < size / QUANT; i++)
                    expand_group(panels[half], k / QUANT + i, numbers + (i * QUANT * GROUP) + half * LANES * N::step, GROUP * N::step);
            multiply(group_of(numbers, size, false), rows, in + k, a.inputs, found, GROUP, k > 0);
        }
    }

    // The products of rows with a group of a matrix, and its bias.
    void product(const Linear& a, int g, int rows, const Input* in, float* found) {
        if (a.panels && INTEGERS) {
            for (int half = 0; half < 2; half++) multiply_panel(a.panels[2 * g + half], coded, rows, found + half * LANES, GROUP);
        } else if (a.panels) {
            if constexpr (N::step == 2) multiply_codes(a, g, rows, in, found);
        } else {
            const Weight* weights = (const Weight*)a.weights + (size_t)g * GROUP * a.inputs;
            multiply(group_of(weights, a.inputs, true), rows, in, a.inputs, found, GROUP, false);
        }
        for (int r = 0; a.bias && r < rows; r++)
            for (int i = 0; i < GROUP; i += LANES)
                store(found + r * GROUP + i, load(found + r * GROUP + i) + load(a.bias + g * GROUP + i));
    }

    // Rows of inputs of a matrix in codes become codes.
    void code(const Linear& a, int rows, const Input* in) {
        if constexpr (INTEGERS) {
            if (!a.panels) return;
            coded = {(int8_t*)own.codes, (InputGroup*)((int8_t*)own.codes + (size_t)rows * a.inputs), a.inputs};
            for (int r = 0; r < rows; r++)
                quantise(in + (size_t)r * a.inputs, a.inputs, coded.codes + (size_t)r * a.inputs, coded.groups + (size_t)r * a.inputs / QUANT);
        }
    }

    // One phase: products of rows with a matrix from a group on; ``out(group, row, sums)`` takes those of a group.
    template <class P, class F>
    void linear(const Linear& a, int rows, const Input* in, int from, P prepare, F out) {
        bool ready = false;
        float found[MOST * GROUP];
        int groups = a.outputs / GROUP - from;
        in_chunks(groups, 1, [&](int g) {
            if (!ready) prepare(), code(a, rows, in), ready = true;
            product(a, g + from, rows, in, found);
            for (int r = 0; r < rows; r++) out(g + from, r, found + r * GROUP);
        });
    }

    float inverse_rms(const float* row, int size, int numbers) const {
        Lanes squares = splat(0.f);
        for (int i = 0; i < size; i += LANES) squares = fma(load(row + i), load(row + i), squares);
        return 1.f / sqrtf(sum(squares) / numbers + facts.epsilon);
    }

    template <class F>
    void rms_norm(const float* row, const float* weight, int size, int numbers, F out) const {
        Lanes factor = splat(inverse_rms(row, size, numbers));
        for (int i = 0; i < size; i += LANES) out(i, load(row + i) * factor * load(weight + i));
    }

    void norm_all(const float* weight) {
        for (int r = 0; r < count; r++) {
            auto take = [&](int i, const Lanes& a) { N::round(normed + r * width + i, a); };
            if (weight) rms_norm(x + r * width, weight, width, facts.width, take);
            else
                for (size_t i = 0; i < width; i += LANES) take(i, load(x + r * width + i));
        }
    }

    // The first layer reads the embedding of the token and a feature.
    bool joins() const { return model.layer[0].hidden_norm; }

    void embed(int i, float* row) const {
        for (size_t j = facts.width; j < width; j++) row[j] = 0;
        int token = work.tokens[i].token;
        if (token < 0) {
            memcpy(row, work.mask, 4 * facts.width);
            return;
        }
        const Weight* from = (const Weight*)model.embedding + (size_t)token * facts.width;
        if (const CodeKind* kind = model.embedding_codes) {
            const size_t bytes = (size_t)facts.width / kind->block * kind->bytes;
            expand_codes(*kind, (const char*)model.embedding + token * bytes, facts.width, row);
            for (int j = 0; INTEGERS && j < facts.width; j++) row[j] *= facts.embedding_scale;
            for (int j = 0; !INTEGERS && j < facts.width; j += LANES) {
                alignas(64) Weight kept[LANES];
                N::keep(kept, load(row + j));
                for (int i = 0; i < LANES; i++) row[j + i] = number(kept[i]) * facts.embedding_scale;
            }
            return;
        }
        for (int j = 0; j < facts.width; j++) row[j] = number(from[j]) * facts.embedding_scale;
    }

    Weight* keys(int row, int page, int layer, int head) const {
        size_t at = (size_t)(layer * facts.kv_heads + head) * 2 * PAGE * dim;
        return (Weight*)work.pages[row][page] + at;
    }
    Weight* values(int row, int page, int layer, int head) const { return keys(row, page, layer, head) + PAGE * dim; }

    float* states(int i, int tap) const {
        return work.hidden + ((size_t)work.tokens[i].state * facts.taps + tap) * facts.width;
    }

    void copy_taps(int i, int layer, const float* row) {
        for (int t = 0; work.hidden && t < facts.taps; t++)
            if (model.tap[t] == layer)
                memcpy(states(i, t), row, 4 * facts.width);
    }

    void rotate(float* head, int table, int position) const {
        if (table < 0) return;
        int half = facts.rotary_dim / 2;
        size_t at = ((size_t)table * model.rotary.positions + position) * half;
        const float *cos = model.rotary.cos + at, *sin = model.rotary.sin + at;
        for (int j = 0; j < half; j++) {
            float a = head[j], b = head[j + half];
            head[j] = a * cos[j] - b * sin[j];
            head[j + half] = b * cos[j] + a * sin[j];
        }
    }

    // A token's embedding and its feature, each normed, become the input of the first layer.
    void join(int i) {
        const Layer& first = model.layer[0];
        float *row = x + i * width, *embedded = (float*)own.normed;
        Input* to = acted + 2 * i * width;
        if (work.features) {
            memcpy(row, work.features + (size_t)i * facts.width, 4 * facts.width);
            for (size_t j = facts.width; j < width; j++) row[j] = 0;
        }
        embed(i, embedded);
        rms_norm(embedded, first.norm, width, facts.width, [&](int j, const Lanes& a) { N::round(to + j, a); });
        rms_norm(row, first.hidden_norm, width, facts.width, [&](int j, const Lanes& a) {
            N::round(to + width + j, a);
            if (model.norm_residual) store(row + j, a);
        });
    }

    // Whether the values of a head are numbers in the format in which they are kept.
    bool is_finite(const float* values) const {
        Weight kept[LANES];
        Lanes zeros = splat(0.f);
        for (int j = 0; j < dim; j += LANES) N::keep(kept, load(values + j)), zeros = fma(N::wide(kept), splat(0.f), zeros);
        return sum(zeros) == 0;
    }

    // Queries, keys and values of a token: normed, rotated, rounded, and put where attention reads them.
    // Values that are no numbers are kept as zeros with keys of NaN: a token that sees them gets NaN, and any other one 0 * 0.
    void place(int i, int l) {
        const Layer& layer = model.layer[l];
        const Token& token = work.tokens[i];
        float* row = qkv + i * qkv_width;
        int page = token.slot / PAGE, slot = token.slot % PAGE;
        copy_taps(i, l, x + i * width);
        for (int h = facts.heads; h < facts.heads + facts.kv_heads; h++) {
            float *key = row + h * dim, *value = key + facts.kv_heads * dim;
            for (int j = 0, bad = !is_finite(value); bad && j < dim; j++) key[j] = NAN, value[j] = 0;
        }
        for (int h = work.mode == FEATURES ? facts.heads : 0; h < facts.heads + facts.kv_heads; h++) {
            float* head = row + h * dim;
            const int all = !facts.joint_norms ? 1 : h == 0 ? facts.heads : h == facts.heads ? facts.kv_heads : 0;
            if (const float* weight = h < facts.heads ? layer.query_norm : layer.key_norm; weight && all)
                rms_norm(head, weight, all * dim, all * facts.head_dim, [&](int j, const Lanes& a) { store(head + j, a); });
            rotate(head, layer.rotary, token.position);
            if (h < facts.heads) {
                Input* to = queries + ((size_t)(h / group * count + i) * group + h % group) * dim;
                for (int j = 0; j < dim; j += LANES) N::round(to + j, load(head + j));
                continue;
            }
            Weight rounded[LANES], *to = keys(token.row, page, l, h - facts.heads) + slot / LANES * LANES * dim;
            for (int j = 0; j < dim; j += LANES) {
                N::keep(rounded, load(head + j));
                for (int m = 0; m < LANES; m++)
                    to[(j + m) / N::step * LANES * N::step + slot % LANES * N::step + m % N::step] = rounded[m];
            }
        }
        for (int h = 0; h < facts.kv_heads; h++) {
            const float* head = row + (facts.heads + facts.kv_heads + h) * dim;
            Weight rounded[LANES], *to = values(token.row, page, l, h) + slot / N::step * dim * N::step + slot % N::step;
            for (int j = 0; j < dim; j += LANES) {
                N::keep(rounded, load(head + j));
                for (int m = 0; m < LANES; m++) to[(j + m) * N::step] = rounded[m];
            }
        }
    }

    int length(const Token& token) const { return token.text + token.seen; }
    // Values of positions before this one are read where they lie, in the steps in which they will lie for later tokens.
    int direct(const Token& token) const { return token.seen ? token.text / STEP * STEP : token.text; }

    // Scores of a row of queries become weights: of slots until ``direct``, then of the tail.
    float soften(const Token& token, float* scores, Input* weights, Input* tail, int window, int from, int to) const {
        int end = length(token), low = window ? most(0, end - window) : 0, kept = direct(token);
        for (int i = 0; i < token.seen; i++) scores[token.text + i] = scores[work.path[token.first + i]];
        int first = low / LANES * LANES, last = share(end, LANES) * LANES;
        const float cap = facts.attention_cap;
        for (int p = first; cap && p < last; p += LANES) store(scores + p, capped(load(scores + p) * splat(facts.scale), cap));
        for (int p = first; p < low; p++) scores[p] = -INFINITY;
        for (int p = end; p < last; p++) scores[p] = -INFINITY;
        Lanes top = splat(-INFINITY), total = splat(0.f), scale = splat(cap ? 1.f : facts.scale);
        for (int p = first; p < last; p += LANES) top = greater(top, load(scores + p));
        top = splat(greatest(top));
        for (int p = first; p < last; p += LANES) {
            Lanes part = exponential((load(scores + p) - top) * scale);
            if (p < low || p + LANES > end) {
                store(scores + p, part);
                for (int q = p; q < p + LANES; q++)
                    if (q < low || q >= end) scores[q] = 0;
                part = load(scores + p);
            }
            total = total + part;
            N::round(weights + p, part);
        }
        for (int p = kept; token.seen && p < share(end, STEP) * STEP; p++)
            tail[p - kept] = p >= first && p < end ? weights[p] : (Input)0;
        for (int p = from; p < first; p++) weights[p] = 0;
        for (int p = kept; p < to; p++) weights[p] = 0;
        return sum(total);
    }

    // The values of the positions from ``direct`` on, in the order of text, and zeros until the end of a step.
    int gather(const Token& token, int l, int head) const {
        const int from = direct(token), end = length(token), size = share(end - from, STEP) * STEP;
        auto slot = [&](int p) { return p < token.text ? p : work.path[token.first + p - token.text]; };
        auto value = [&](int p) {
            return values(token.row, slot(p) / PAGE, l, head) + slot(p) % PAGE / N::step * dim * N::step + slot(p) % N::step;
        };
        Weight* to = (Weight*)own.gathered;
        for (int p = from; p < end; p += N::step, to += N::step * dim) {
            const int last = p + N::step - 1;
            if (last < end && slot(p) % N::step == 0 && slot(last) == slot(p) + N::step - 1) {
                memcpy(to, value(p), N::step * dim * sizeof(Weight));
                continue;
            }
            for (int s = 0; s < N::step; s++) {
                const Weight* found = p + s < end ? value(p + s) : nullptr;
                for (int i = 0; i < dim; i++) to[i * N::step + s] = found ? found[i * N::step] : (Weight)0;
            }
        }
        memset(to, 0, (char*)((Weight*)own.gathered + (size_t)size * dim) - (char*)to);
        return size;
    }

    // Attention of rows of queries that share the keys of a head; rows are those of the tokens from ``start`` on.
    void attend(int l, int head, int start, int low, int high) {
        int rows = high - low, window = model.layer[l].window, end = 0, kept = 0, from = INT32_MAX;
        for (int r = low; r < high; r++) {
            const Token& token = work.tokens[start + r / group];
            end = most(end, token.text), kept = most(kept, direct(token));
            for (int i = 0; i < token.seen; i++) end = most(end, work.path[token.first + i] + 1);
            from = least(from, window ? most(0, length(token) - window) / PAGE * PAGE : 0);
        }
        int row = work.tokens[start].row, stride = share(end, PAGE) * PAGE;
        const Input* x = queries + ((size_t)(head * count + start) * group + low) * dim;
        for (int p = from; p < end; p += GROUP) {
            const Weight* k = keys(row, p / PAGE, l, head) + p % PAGE * dim;
            multiply({k, (size_t)LANES * N::step, (size_t)LANES * dim, dim}, rows, x, dim, own.scores + p, stride, false);
        }
        int longest = 0;  // of the tails
        for (int r = low; r < high; r++) {
            const Token& token = work.tokens[start + r / group];
            longest = most(longest, share(length(token) - direct(token), STEP) * STEP);
        }
        Input *weights = (Input*)own.weights, *tails = weights + (size_t)rows * stride;
        float totals[QUERIES];
        for (int r = 0; r < rows; r++)
            totals[r] = soften(work.tokens[start + (low + r) / group], own.scores + (size_t)r * stride,
                               weights + (size_t)r * stride, tails + (size_t)r * longest, window, from, stride);
        memset(own.found, 0, 4 * (size_t)rows * dim);
        for (int p = from; p < kept; p += PAGE)
            for (int d = 0; d < dim; d += GROUP) {
                const Weight* v = values(row, p / PAGE, l, head) + d * N::step;
                int size = share(least(PAGE, kept - p), STEP) * STEP;
                multiply({v, (size_t)dim * N::step, (size_t)LANES * N::step, size}, rows, weights + p, stride, own.found + d, dim,
                         true);
            }
        for (int r = 0, n; r < rows; r += n) {
            int at = start + (low + r) / group;
            const Token& token = work.tokens[at];
            n = least(least(group - (low + r) % group, rows - r), TILE);  // a tile is whole: those below are other tokens'
            int size = token.seen ? gather(token, l, head) : 0;
            for (int d = 0; size && d < dim; d += GROUP)
                multiply({(Weight*)own.gathered + d * N::step, (size_t)dim * N::step, (size_t)LANES * N::step, size}, n,
                         tails + (size_t)r * longest, longest, own.found + (size_t)r * dim + d, dim, true);
            for (int m = r; m < r + n; m++) {
                Input* to = attended + at * heads_width + (size_t)(head * group + (low + m) % group) * dim;
                Lanes part = splat(1.f / totals[m]);
                for (int d = 0; d < dim; d += LANES) N::round(to + d, load(own.found + (size_t)m * dim + d) * part);
            }
        }
    }

    // One phase: attention of all tokens, in chunks of rows of queries that share a row's keys of a head.
    void attention(int l) {
        int size = most(1, least(QUERIES, share(count * facts.heads, threads * CHUNKS))), chunks = 0;
        auto each_part = [&](auto part) {
            for (int start = 0, end; start < count; start = end) {
                for (end = start; end < count && work.tokens[end].row == work.tokens[start].row;) end++;
                for (int h = 0; h < facts.kv_heads; h++)
                    for (int q = 0; q < (end - start) * group; q += size)
                        part(h, start, q, least(q + size, (end - start) * group));
            }
        };
        each_part([&](int, int, int, int) { chunks++; });
        in_chunks(chunks, 1, [&](int c) {
            int at = 0;
            each_part([&](int h, int start, int low, int high) {
                if (at++ == c) attend(l, h, start, low, high);
            });
        });
    }

    void add(float* to, const Lanes& a) { store(to, load(to) + a * splat(facts.residual_scale)); }

    // Products that are added to the residual stream, normed before if there is such a norm.
    template <class P>
    void linear_added(const Linear& a, const Input* in, P prepare, const float* norm) {
        linear(a, count, in, 0, prepare, [&](int g, int r, const float* sums) {
            float* to = (norm ? qkv : x) + r * width + (size_t)g * GROUP;
            if (norm) memcpy(to, sums, 4 * GROUP);
            else for (int i = 0; i < GROUP; i += LANES) add(to + i, load(sums + i));
        });
        if (norm) each_token([&](int i) {
            rms_norm(qkv + i * width, norm, width, facts.width, [&](int j, const Lanes& a) { add(x + i * width + j, a); });
        });
    }

    // The experts of a token, those with the highest scores, and their shares; the input of all of them is in ``attended``.
    void route(const Layer& layer, int i) {
        Input* row = attended + i * width;
        rms_norm(x + i * width, layer.ffn_norm, width, facts.width, [&](int j, const Lanes& a) { N::round(row + j, a); });
        float scores[EXPERTS], top = -INFINITY, all = 0, whole = 0, *share = shares + i * facts.chosen;
        for (int g = 0; g < layer.router.outputs / GROUP; g++) product(layer.router, g, 1, row, scores + g * GROUP);
        for (int e = 0; e < facts.experts; e++) top = scores[e] > top ? scores[e] : top;
        for (int e = 0; e < facts.experts; e += LANES) store(scores + e, exponential(load(scores + e) - splat(top)));
        for (int e = 0; e < facts.experts; e++) all += scores[e];
        bool taken[EXPERTS] = {false};
        for (int c = 0; c < facts.chosen; c++) {
            int best = -1;
            for (int e = 0; e < facts.experts; e++)
                if (!taken[e] && (best < 0 || scores[e] > scores[best])) best = e;
            chosen[i * facts.chosen + c] = best, taken[best] = true;
            whole += share[c] = scores[best];
        }
        for (int c = 0; c < facts.chosen; c++) share[c] /= facts.whole_shares ? whole : all;
    }

    // One phase: products of the choices of tokens with their experts' matrices; ``in(choice)`` is an input, and
    // ``out(group, choice, sums)`` takes the sums of a group. The number of chunks does not depend on the choices, which only a
    // thread with a chunk may look at: another one may come when they are those of a later layer.
    template <class I, class F>
    void experts(const Linear* of, I in, F out) {
        const int choices = count * facts.chosen, groups = of->outputs / GROUP;
        int e = -1, nth = -1, rows = 0, row[MOST];  // e is the nth that is used, from 0 on
        float found[MOST * GROUP];
        Input* gathered = (Input*)own.gathered;
        auto is_used = [&](int expert) {
            for (int i = 0; i < choices; i++)
                if (chosen[i] == expert) return 1;
            return 0;
        };
        in_chunks(least(facts.experts, choices) * groups, 1, [&](int chunk) {
            const int wanted = chunk / groups;  // among those that are used
            if (wanted < nth) e = nth = -1;
            if (wanted != nth) {
                while (nth < wanted && e < facts.experts) nth += is_used(++e);
                nth = wanted, rows = 0;  // also if there are not so many
                for (int i = 0; i < choices; i++)
                    if (chosen[i] == e) {
                        memcpy(gathered + (size_t)rows * of->inputs, in(i), of->inputs * sizeof(Input));
                        row[rows++] = i;
                    }
            }
            if (!rows) return;
            product(of[e], chunk % groups, rows, gathered, found);
            for (int r = 0; r < rows; r++) out(chunk % groups, row[r], found + r * GROUP);
        });
    }

    void mix(const Layer& layer) {
        const size_t inner = layer.experts_down->inputs;
        each_token([&](int i) { route(layer, i); });
        auto input = [&](int i) { return attended + i / facts.chosen * width; };
        experts(layer.experts_up, input, [&](int g, int i, const float* sums) {
            act(acted + i * inner + (size_t)g * LANES, sums);
        });
        experts(layer.experts_down, [&](int i) { return acted + i * inner; }, [&](int g, int i, const float* sums) {
            memcpy(qkv + i * width + (size_t)g * GROUP, sums, 4 * GROUP);
        });
        each_token([&](int i) {
            for (size_t j = 0; j < width; j += LANES) {
                Lanes sum = splat(0.f);
                for (int c = i * facts.chosen; c < (i + 1) * facts.chosen; c++)
                    sum = fma(load(qkv + c * width + j), splat(shares[c]), sum);
                add(x + i * width + j, sum);
            }
        });
    }

    void act(Input* to, const float* sums) const {
        N::round(to, activated(load(sums), facts.gelu) * load(sums + LANES));
    }

    void through(int l) {
        const Layer& layer = model.layer[l];
        auto nothing = [] {};
        auto to_qkv = [&](int g, int r, const float* sums) { memcpy(qkv + r * qkv_width + g * GROUP, sums, 4 * GROUP); };
        if (work.mode == FEATURES) {
            linear(layer.qkv, count, normed, heads_width / GROUP, [&] { norm_all(model.feature_norm); }, to_qkv);
            return each_token([&](int i) { place(i, l); });
        }
        const bool joined = layer.hidden_norm;
        linear(layer.qkv, count, joined ? acted : normed, 0, [&] { if (!joined) norm_all(layer.norm); }, to_qkv);
        each_token([&](int i) { place(i, l); });
        if (l + 1 == facts.layers && !work.scored && !ends) return;  // of the last layer its keys and values are enough
        attention(l);
        linear_added(layer.out, attended, nothing, layer.out_norm);
        if (layer.experts_up) return mix(layer);
        linear(layer.gate_up, count, normed, 0, [&] { norm_all(layer.ffn_norm); }, [&](int g, int r, const float* sums) {
            act(acted + (size_t)r * layer.down.inputs + (size_t)g * LANES, sums);
        });
        linear_added(layer.down, acted, nothing, layer.down_norm);
    }

    // The last norm: of scored tokens for the head, and of hidden states that are asked for.
    void end(int i) {
        int to = work.tokens[i].scored;
        float last[LANES];
        copy_taps(i, facts.layers + 1, x + i * width);
        rms_norm(x + i * width, model.norm, width, facts.width, [&](int j, const Lanes& a) {
            if (to >= 0) N::round(attended + to * width + j, a);
            store(last, a);
            int size = least(LANES, facts.width - j);
            if (size <= 0) return;
            for (int t = 0; work.hidden && t < facts.taps; t++)
                if (model.tap[t] == facts.layers)
                    memcpy(states(i, t) + j, last, 4 * size);
        });
    }

    // What lies in memory, or other numbers, as inputs of a product; the rest of a row of ``padded`` numbers is zero.
    template <class F>
    void take(Input* to, int size, int padded, F number) const {
        float some[LANES];
        for (int j = 0; j < padded; j += LANES) {
            for (int i = 0; i < LANES; i++) some[i] = j + i < size ? number(j + i) : 0;
            N::round(to + j, load(some));
        }
    }

    // The hidden states of a token become inputs of the features.
    void take_sources(int i) {
        int size = model.source_width, all = model.sources * size;
        const float* from = work.sources + (size_t)i * all;
        float factor[LANES];
        for (int s = 0; s < model.sources; s++) {
            float squares = 0;
            for (int j = 0; j < size; j++) squares += from[s * size + j] * from[s * size + j];
            factor[s] = model.norm_sources ? 1.f / sqrtf(squares / size + model.source_epsilon) : 1.f;
        }
        const float* weight = model.source_norm;
        take(acted + (size_t)i * model.features.inputs, all, model.features.inputs, [&](int j) {
            return weight ? from[j] * factor[j / size] * weight[j] : from[j] * factor[j / size];
        });
    }

    void features() {
        each_token([&](int i) { take_sources(i); });
        linear(model.features, count, acted, 0, [] {}, [&](int g, int r, const float* sums) {
            memcpy(x + r * width + (size_t)g * GROUP, sums, 4 * GROUP);
        });
    }

    void layers() {
        for (int l = 0; l < facts.layers; l++) through(l);
    }

    void scores() {
        if (work.sources) features();
        each_token([&](int i) { joins() ? join(i) : embed(i, x + i * width); });
        layers();
        if (work.scored || ends) each_token([&](int i) { end(i); });
        if (!work.scored) return;
        linear(model.head, work.scored, attended, 0, [] {}, [&](int g, int r, float* sums) {
            float* to = work.logits + (size_t)r * facts.vocab + (size_t)g * GROUP;
            int size = least(GROUP, facts.vocab - g * GROUP);
            for (int i = 0; i < GROUP && (facts.logit_divisor != 1 || facts.logit_cap); i += LANES) {
                Lanes a = load(sums + i) / splat(facts.logit_divisor);
                store(sums + i, facts.logit_cap ? capped(a, facts.logit_cap) : a);
            }
            memcpy(to, sums, 4 * size);
            for (int i = size; i < GROUP; i++) sums[i] = sums[0];
            note(work.first_scored + r, g, sums);
        });
    }

    void note(int r, int g, const float* sums) {
        Lanes a = load(sums), b = load(sums + LANES);
        store(own.totals + r * LANES, load(own.totals + r * LANES) + a + b);
        float top = greatest(greater(a, b));
        if (!(top >= own.highest[r])) return;
        int i = 0;
        while (i < GROUP && sums[i] != top) i++;
        if (i == GROUP || (top == own.highest[r] && g * GROUP + i > own.best[r])) return;
        own.highest[r] = top, own.best[r] = g * GROUP + i;
    }

    void markov() {
        int rank = model.markov.inputs;
        each_token([&](int i) {
            const Weight* from = (const Weight*)model.markov_embedding + (size_t)work.tokens[i].token * model.rank;
            take(acted + (size_t)i * rank, model.rank, rank, [&](int j) { return number(from[j]); });
        });
        linear(model.markov, count, acted, 0, [] {}, [&](int g, int r, const float* sums) {
            const Token& node = work.tokens[r];
            size_t at = (size_t)g * GROUP, size = least(GROUP, facts.vocab - g * GROUP);
            const float* own = work.depths + ((size_t)node.row * work.block + node.position) * facts.vocab + at;
            float* to = work.logits + (size_t)r * facts.vocab + at;
            for (size_t i = 0; i < size; i++) to[i] = node.position < work.block ? own[i] + sums[i] : -INFINITY;
        });
    }

    void run() {
        if (work.mode == SCORES) scores();
        else if (work.mode == FEATURES) features(), layers();
        else markov();
    }
};

void forward(const Work* work, Phases* phases, const Shared* shared, Scratch* scratch, int thread, int threads) {
    for (; work; work = work->next)
        if (work->model->facts.activations == 8) Block<Portable>(*work, phases, *shared, *scratch, thread, threads).run();
        else if (work->model->facts.bfloat16) Block<Bfloat16>(*work, phases, *shared, *scratch, thread, threads).run();
        else Block<Float32>(*work, phases, *shared, *scratch, thread, threads).run();
}

}  // namespace

namespace draftwood {
extern const Kernels DRAFTWOOD_KERNELS;
const Kernels DRAFTWOOD_KERNELS{forward, exponentials, perturb, sum_of_exponentials, segment_maxima};
}  // namespace draftwood
