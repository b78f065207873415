// Uses every function of the C interface with random weights: for sanitizers, and for processors that may have no Python. Every node
// of a tree must have the bits of its path as a chain, and of its path as text; and everything the same bits on other threads, also
// of several callers at a time. Arguments: an instruction set; and "all", or "trees", "codes" or "rest" for these parts alone, or "short",
// which gives the library arrays that lack their last number. Prints digests: 49 of trees, 19 of trees of models in codes with inputs of 8
// bits, and two of the rest.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <future>

#include "api.h"

namespace {

const int HEADS = 6, KV_HEADS = 2, VOCAB = 45, POSITIONS = 300, TAPS = 2, RANK = 6, BLOCK = 3, EXPERTS_INNER = 20;
const int KEY_HEADS = 2, VALUE_HEADS = 4, CONVOLVED = 4;
typedef std::vector<int> Ints;
typedef std::vector<float> Floats;
const Ints PARENTS{0, 0, 0, 1, 2, 4}, TOKENS{5, 1, 2, 3, 4, 6};

void need(bool holds, const char* what) {
    if (!holds) throw std::runtime_error(std::string(what) + ": " + draftwood_error());
}

struct Digest {
    uint64_t value = 1469598103934665603u;
    void add(const float* from, size_t count) {
        for (size_t i = 0; i < 4 * count; i++) value = (value ^ ((const unsigned char*)from)[i]) * 1099511628211u;
    }
};

int missing = 0;  // numbers at the end of every array

enum Drafts { NOTHING, BY_FEATURES, BY_BLOCKS, BY_HEAD };
enum Codes { NUMBERS, OF_32, OF_256 };

// Types of codes: GGML's number, and where a block has its scale and its other scale.
struct Type {
    int kind, scale, low;
};
const std::vector<Type> TYPES[] = {
    {},
    {{2, 0, -1}, {3, 0, 2}, {6, 0, -1}, {7, 0, 2}, {8, 0, -1}, {20, 0, -1}, {39, -1, -1}},
    {{10, 80, 82}, {11, 108, -1}, {12, 0, 2}, {13, 0, 2}, {14, 208, -1}, {23, 0, -1}},
};

// A model of two layers, with its weights in codes or not, or a drafter of one. A model with a window and the further facts is a
// mixture of experts, one of which all tokens have, or with sinks one of experts with biases, in float32 by sigmoids. The first layer may have a running
// state. Layers that are varied are three: the last two have wider heads and the same keys and values, and all have inputs and a scalar.
class Tiny {
  public:
    Tiny(bool bfloat16, bool further = false, int window = 0, Codes codes = NUMBERS, int activations = 16, Drafts drafts = NOTHING,
         LayerKind state = ATTENTION, bool sinks = false, bool varied = false)
        : width(codes ? codes == OF_32 ? 64 : 256 : 40), dim_(codes ? codes == OF_32 ? 32 : 128 : 12),
          inner_(codes ? codes == OF_32 ? 96 : 256 : 50), experts_inner_(codes ? 32 : EXPERTS_INNER), key_(codes ? 32 : 8), value_(codes ? 32 : 12),
          inputs_(codes ? 32 : 10),
          bfloat16_(bfloat16), codes_(codes), joins_(drafts == BY_FEATURES), embeds_(drafts == BY_HEAD),
          gated_(embeds_ || state == DELTA_RULE), has_state_(state == DELTA_RULE || state == MAMBA), sinks_(sinks), varied_(varied) {
        Facts facts{};
        std::vector<LayerSource> layers = {layer(further, window, state), layer(further, window, ATTENTION, 1)};
        if (varied) layers.push_back(layer(further, window, ATTENTION, 2));
        const int count = layers.size(), wide = varied ? 2 * dim_ : dim_;
        facts.layers = drafts ? 1 : count, facts.width = width, facts.heads = HEADS, facts.kv_heads = KV_HEADS, facts.head_dim = wide;
        facts.inner = inner_, facts.vocab = facts.tokens = VOCAB, facts.rotary_dim = wide, facts.taps = drafts == BY_BLOCKS ? 0 : TAPS;
        facts.norm_values = varied, facts.layer_inputs = varied ? inputs_ : 0;
        facts.bfloat16 = bfloat16, facts.activations = activations, facts.epsilon = 1e-6f, facts.scale = 0.3f;
        if (further && window) {
            facts.experts = 7, facts.experts_per_token = 3, facts.expert_inner = experts_inner_, facts.normalise_experts = 1;
        } else if (further) {
            facts.gelu = facts.joint_norms = 1, facts.embedding_scale = 2.5f, facts.residual_scale = 0.5f;
            facts.logit_divisor = 0.7f, facts.attention_cap = 2, facts.logit_cap = 3;
        }
        if (sinks) facts.swiglu_limit = 0.1f, facts.swiglu_alpha = 1.7f, facts.sigmoid_routing = !bfloat16;
        if (state) facts.taps_of_convolution = CONVOLVED;
        if (has_state_)
            facts.key_heads = KEY_HEADS, facts.value_heads = VALUE_HEADS, facts.key_size = key_, facts.value_size = value_;
        if (gated_) facts.gated = 1, facts.tiled = bfloat16;
        const int taps[] = {!varied, 2 - varied}, size = POSITIONS * wide / 2;
        const Matrix embedding = matrix(VOCAB, width), head = matrix(VOCAB, width);
        handle = draftwood_model(&facts, taps, &embedding, &head, numbers(width), 2);
        need(handle, "model");
        for (int l = 0; l < facts.layers; l++) need(!draftwood_layer(handle, &layers[l]), "layer");
        need(draftwood_layer(handle, &layers[0]) < 0, "a layer too many");
        if (varied) {
            const Matrix table = matrix(VOCAB, count * inputs_), projection = matrix(count * inputs_, width);
            need(!draftwood_layer_inputs(handle, &table, &projection, numbers(inputs_), 3), "layer_inputs");
        }
        const float *cos = numbers(size), *sin = numbers(size);
        need(!draftwood_rotate(handle, cos, sin, sinks ? numbers(POSITIONS) : nullptr, 1, POSITIONS), "rotate");
        if (!drafts) return;
        DrafterSource source{};
        source.sources = TAPS, source.source_width = width, source.norm_sources = 1, source.norm_residual = joins_;
        source.rank = RANK, source.source_epsilon = 1e-6f, source.features = weights(width * TAPS * width);
        source.source_norm = numbers(TAPS * width), source.feature_norm = numbers(width);
        source.embeds = embeds_, given_ = numbers(VOCAB * width);
        source.markov_in = weights(VOCAB * RANK), source.markov_out = plain(VOCAB, RANK);
        need(!draftwood_drafter(handle, &source), "drafter");
    }
    ~Tiny() { draftwood_free_model(handle); }

    // The scores of what is pending and of a tree in all rows, each node with its parent before it.
    Floats read(const std::vector<void*>& rows, const std::vector<Ints>& texts, const Ints& tokens, const Ints& parents, int threads,
                Digest* digest = nullptr) {
        const int count = tokens.size(), all = count * rows.size();
        std::vector<int64_t> ids(tokens.begin(), tokens.end()), depths(count);
        std::vector<unsigned char> seen(count * count);
        for (int i = 0; i < count; i++) {
            if (i) memcpy(&seen[i * count], &seen[parents[i] * count], count);
            seen[i * count + i] = 1;
            depths[i] = i ? depths[parents[i]] + 1 : 0;
        }
        std::vector<NewTokens> given;
        size_t pending = 0;
        for (const Ints& text : texts) pending += text.size();
        for (size_t row = 0; row < rows.size(); row++) {
            const int size = texts[row].size();
            float* inputs = joins_ ? numbers((size + count) * (pending ? TAPS * width : width)) : nullptr;
            if (embeds_) inputs = numbers((size + count) * width);
            for (int i = 0; embeds_ && i < size + count; i++)  // of a token, so that paths read the same
                memcpy(inputs + i * width, given_ + width * (i < size ? texts[row][i] : tokens[i - size]), sizeof(float) * width);
            const bool sources = embeds_ || pending;  // drafted nodes of other drafters have features only
            given.push_back({(Row*)rows[row], size, count, count, texts[row].data(), ids.data(), depths.data(), seen.data(),
                             sources ? inputs : nullptr, sources ? nullptr : inputs});
        }
        Floats logits(all * VOCAB), hidden((all + pending) * TAPS * width);
        Floats highest(all);
        std::vector<int64_t> best(all);
        need(!draftwood_read_tokens(given.data(), rows.size(), logits.data(), hidden.data(), highest.data(), best.data(), threads),
             "read_tokens");
        for (int node = 0; node < all; node++)
            for (int token = 0; token < VOCAB; token++) {
                const float score = logits[node * VOCAB + token], most = highest[node];
                need(std::isfinite(score) && score <= most && (token != best[node] || score == most), "scores");
            }
        if (digest) {
            digest->add(logits.data(), logits.size());
            digest->add(hidden.data(), joins_ ? all * TAPS * width : hidden.size());
        }
        return logits;
    }

    // Reads hidden states, scores a block in all rows, and nodes of it.
    void draft(const std::vector<void*>& rows, const Floats& hidden, int threads, Digest& digest) {
        const int count = rows.size(), size = hidden.size() / (TAPS * width);
        std::vector<NewHidden> given;
        for (int row = 0; row < count; row++) given.push_back({(Row*)rows[row], row, size, 3 + row, hidden.data()});
        const BlockShape shape{BLOCK, BLOCK, 1, numbers(width)};
        Floats scores(count * BLOCK * VOCAB), below(count * 2 * VOCAB);
        need(!draftwood_draft_block(given.data(), count, &shape, scores.data(), threads), "draft_block");
        std::vector<int64_t> tokens, depths;
        for (int row = 0; row < count; row++) tokens.insert(tokens.end(), {1, 2}), depths.insert(depths.end(), {0, BLOCK});
        need(!draftwood_add_markov(handle, tokens.data(), depths.data(), count, 2, scores.data(), BLOCK, below.data(), threads),
             "add_markov");
        digest.add(scores.data(), scores.size());
        for (int row = 0; row < count; row++) {
            digest.add(&below[2 * row * VOCAB], VOCAB);
            for (int i = 0; i < VOCAB; i++) need(std::isinf(below[(2 * row + 1) * VOCAB + i]), "nodes beyond the block");
        }
        grow(count, scores, threads);
    }

    // Grows trees below a block; the first token of each row's guess is likely.
    void grow(int rows, const Floats& scores, int threads) {
        const int nodes = 9, width = 3, count = 4, most = 3 + BLOCK * width * count, lines = rows * (1 + width * (BLOCK - 1));
        const std::vector<Cuts> cuts(rows, {7, 0.9, 0});
        const Floats temperatures(rows, 0.7f);
        std::vector<int64_t> bases(VOCAB), keys(rows * BLOCK, 5), limits(rows, BLOCK), stops{0}, counts(rows, 3);
        std::vector<int64_t> ranked(rows * (nodes + 1)), tokens(lines * count);
        std::vector<double> gains(BLOCK + 1, 1), prices(width + 1), best(BLOCK * nodes), chances(lines * count);
        const double weights[] = {1, -0.4, -3, 0.9};
        Floats values(lines * count), likeliest(lines);
        std::vector<TreeLevel> levels(BLOCK + 1);
        std::vector<TreeCandidate> candidates(rows * most);
        for (int token = 0; token < VOCAB; token++) bases[token] = token * 977;
        for (int row = 0; row < rows; row++) {
            stops.resize(rows, 1), limits[row] -= row;
            TreeCandidate* first = &candidates[row * most];
            first[0] = {3, 0, 0, -1, 0, 0.9}, first[1] = {1, 0, 1, -1, log(0.9), 0.5}, first[2] = {2, 1, 2, -1, log(0.45), 0};
        }
        TreeExpansion expansion{handle, scores.data(), nullptr, VOCAB, BLOCK, 1, threads, rows, nodes, width, BLOCK, count, most, 1,
                      VOCAB, bases.data(), keys.data(), cuts.data(), temperatures.data(), limits.data(), stops.data(), weights,
                      gains.data(), prices.data(), candidates.data(), counts.data(), ranked.data(), levels.data(), best.data(),
                      tokens.data(), values.data(), likeliest.data(), chances.data()};
        need(draftwood_grow(&expansion) == BLOCK, "grow");
        for (int row = 0; row < rows; row++)
            for (int i = 3; i < counts[row]; i++) need(candidates[row * most + i].parent < i, "parents");
        need(draftwood_grow(&expansion) < 0, "memory for the candidates");
    }

    const int width;
    void* handle;

  private:
    float* numbers(size_t count) {
        kept_.emplace_back(count - missing);
        for (float& one : kept_.back()) state_ = state_ * 1664525u + 1013904223u, one = (float)(int32_t)state_ / 2147483648.f;
        return kept_.back().data();
    }
    const void* weights(size_t count) {
        char* found = (char*)numbers(count);
        for (size_t i = 0; bfloat16_ && i < count; i++) memmove(found + 2 * i, found + 4 * i + 2, 2);
        return found;
    }
    Matrix plain(int rows, int columns) { return {weights((size_t)rows * columns), -1, 0, 0}; }
    Matrix matrix(int rows, int columns) {
        if (!codes_) return plain(rows, columns);
        const Type& type = TYPES[codes_][matrices_++ % TYPES[codes_].size()];
        const uint16_t scale = codes_ == OF_32 ? 0x1c00 : 0x0400;  // 2 ** -8, and 2 ** -14
        const CodeKind& codes = *code_kind(type.kind);
        const int count = rows * columns / codes.block;
        char* found = (char*)numbers((size_t)count * codes.bytes / 4 + 1);
        for (int block = 0; block < count; block++) {
            char* place = found + (size_t)block * codes.bytes;
            if (type.scale >= 0) memcpy(place + type.scale, &scale, 2);
            else place[0] = 119;  // 2 ** -9
            if (type.low >= 0) memcpy(place + type.low, &scale, 2);
        }
        return {found, type.kind, INTERLEAVED + CODED, 0};
    }
    // Weights of a layer that keeps a running state; shares and decays are numbers among codes.
    void keep_state(LayerSource& to, LayerKind kind) {
        const int values = VALUE_HEADS * value_, channels = has_state_ ? 2 * KEY_HEADS * key_ + values : width;
        const int rows = kind == MAMBA ? channels + values + VALUE_HEADS : kind == DELTA_RULE ? channels : 3 * width;
        to.kind = kind, to.out = matrix(width, has_state_ ? values : width), to.mixed = matrix(rows, width);
        to.convolution = numbers(channels * CONVOLVED);
        if (!has_state_) return;
        float* rate = numbers(VALUE_HEADS);
        for (int h = 0; h < VALUE_HEADS; h++) rate[h] = -std::abs(rate[h]);
        to.decay_rate = rate, to.decay_bias = numbers(VALUE_HEADS), to.state_norm = numbers(kind == MAMBA ? values : value_);
        if (kind == MAMBA) to.convolution_bias = numbers(channels), to.skip = numbers(VALUE_HEADS);
        else to.mixed_gate = matrix(values, width), to.share = plain(VALUE_HEADS, width), to.decay = plain(VALUE_HEADS, width);
    }
    LayerSource layer(bool further, int window, LayerKind state = ATTENTION, int number = 0) {
        LayerSource to{};
        const bool wide = varied_ && number, last = varied_ && number == 2;
        const int dim = wide ? 2 * dim_ : dim_, kv_heads = wide ? 1 : KV_HEADS, inner = last ? 2 * inner_ : inner_;
        const int attended = HEADS * dim, queries = gated_ ? 2 * attended : attended;
        const int keys = kv_heads * dim, read = joins_ ? 2 * width : width;
        to.query = matrix(queries, read), to.key = matrix(keys, read), to.value = matrix(keys, read);
        to.out = matrix(width, attended), to.out_bias = numbers(width);
        to.query_bias = numbers(queries), to.key_bias = numbers(keys), to.value_bias = numbers(keys), to.norm = numbers(width);
        if (further && window) {
            to.router = plain(7, width), to.rotary = -1;
            if (!sinks_ && !varied_) to.shared_gate = plain(1, width);
            if (varied_) {
                to.dense_norm = numbers(width), to.mixture_norm = numbers(width), to.experts_norm = numbers(width);
                to.router_norm = numbers(width), to.expert_scales = numbers(7), to.down_norm = numbers(width);
            }
            to.experts_gate = matrix(7 * (codes_ ? 1 : 2) * experts_inner_, width);
            if (codes_) to.experts_up = matrix(7 * experts_inner_, width);
            to.experts_down = matrix(7 * width, experts_inner_);
            if (sinks_) {
                to.experts_gate.flags |= ALTERNATING * !codes_, to.sinks = numbers(HEADS), to.router_bias = numbers(7);
                to.experts_gate_bias = numbers(7 * experts_inner_), to.experts_up_bias = numbers(7 * experts_inner_);
                to.experts_down_bias = numbers(7 * width);
            }
        }
        if (!sinks_) to.gate = matrix(inner, width), to.up = matrix(inner, width), to.down = matrix(width, inner);
        if (!further || !window) {
            to.gate_bias = numbers(inner), to.up_bias = numbers(inner), to.down_bias = numbers(width);
        }
        if (further && !window) {
            to.query_norm = numbers(attended), to.key_norm = numbers(keys);
            to.out_norm = numbers(width), to.down_norm = numbers(width);
        } else {
            to.query_norm = numbers(dim), to.key_norm = numbers(dim), to.ffn_norm = numbers(width);
        }
        if (joins_) to.hidden_norm = numbers(width);
        to.window = window;
        if (state) keep_state(to, state);
        if (!varied_) return to;
        to.head_dim = dim, to.kv_heads = kv_heads, to.inner = inner, to.lender = last;
        to.input_gate = matrix(inputs_, width), to.input_projection = matrix(width, inputs_);
        to.input_norm = numbers(width), to.scalar = numbers(1);
        return to;
    }

    const int dim_, inner_, experts_inner_, key_, value_, inputs_;
    const bool bfloat16_;
    const Codes codes_;
    const bool joins_, embeds_, gated_, has_state_, sinks_, varied_;
    const float* given_ = nullptr;  // hidden states that come with each token of a head
    int matrices_ = 0;
    uint32_t state_ = 1;
    std::vector<Floats> kept_;
};

Ints text(int length) {
    Ints found;
    for (int i = 0; i < length; i++) found.push_back(7 * i % VOCAB);
    return found;
}

// A digest of the scores of a tree behind a text, each node of which has the bits of its path: behind long texts the deepest one.
uint64_t tree(Tiny& model, int length) {
    void* row = draftwood_row(model.handle);
    const Floats scores = model.read({row}, {text(length)}, TOKENS, PARENTS, 1);
    for (size_t node = length > 16 ? TOKENS.size() - 1 : 0; node < TOKENS.size(); node++) {
        Ints path, kept, parents, whole = text(length);
        for (int i = node; i; i = PARENTS[i]) kept.insert(kept.begin(), i);
        kept.insert(kept.begin(), 0);
        for (int i : kept) path.push_back(TOKENS[i]), parents.push_back(std::max(0, (int)path.size() - 2));
        whole.insert(whole.end(), path.begin(), path.end() - 1);
        void *other = draftwood_row(model.handle), *plain = draftwood_row(model.handle);
        const Floats chain = model.read({other}, {text(length)}, path, parents, 3);
        const Floats alone = model.read({plain}, {whole}, {path.back()}, {0}, 2);
        const float* mine = &scores[node * VOCAB];
        need(!memcmp(mine, &chain[chain.size() - VOCAB], 4 * VOCAB) && !memcmp(mine, alone.data(), 4 * VOCAB), "paths");
        draftwood_free_row(other), draftwood_free_row(plain);
    }
    draftwood_free_row(row);
    Digest digest;
    digest.add(scores.data(), scores.size());
    return digest.value;
}

void show(Tiny& model, const Ints& lengths) {
    for (int length : lengths) printf("%016llx\n", (unsigned long long)tree(model, length));
}

// Rows that come, are forked, cut and dropped; prompts, trees and drafts.
uint64_t everything(bool bfloat16, int threads) {
    Digest digest;
    const int nodes[] = {0, 2, 4}, none[] = {9};
    for (int kind = 0; kind < (bfloat16 ? 9 : 6); kind++) {
        const LayerKind state = kind == 4 ? DELTA_RULE : kind == 5 ? SHORT_CONVOLUTION : ATTENTION;
        const bool further = kind == 2 || kind == 3 || kind == 6 || kind == 8;
        const int window = kind % 2 || kind == 8 ? 9 : 0;
        Tiny model(bfloat16, further, window, kind < 6 ? NUMBERS : OF_32, kind < 7 ? 16 : 8, NOTHING, state, false, kind == 2);
        void *first = draftwood_row(model.handle), *second = draftwood_row(model.handle);
        model.read({first, second}, {text(270), text(3)}, TOKENS, PARENTS, threads, &digest);
        for (void* row : {first, second}) need(!draftwood_commit(row, nodes, 3), "commit");
        void* third = draftwood_fork(first, 70);
        need(!draftwood_cut(first, 65), "cut");
        need(draftwood_commit(third, none, 1) < 0, "a node that is not there");
        model.read({third, first, second}, {{1}, {2, 3}, {}}, {9}, {0}, threads, &digest);
        need(draftwood_memory_bytes(model.handle) > 0, "pages");
        for (void* row : {first, second, third}) draftwood_free_row(row);
        need(!draftwood_memory_bytes(model.handle), "pages that stay");
        draftwood_read(model.handle, threads);
    }
    Tiny features(bfloat16, false, 0, NUMBERS, 16, BY_FEATURES), blocks(bfloat16, false, 0, NUMBERS, 16, BY_BLOCKS);
    std::vector<void*> rows{draftwood_row(features.handle), draftwood_row(features.handle)};
    const std::vector<std::vector<Ints>> portions = {{text(270), text(3)}, {{}, {}}, {{1, 2}, {}}};
    for (const std::vector<Ints>& pending : portions) {
        features.read(rows, pending, TOKENS, PARENTS, threads, &digest);
        for (void* row : rows) need(!draftwood_commit(row, nodes, 1), "commit");
    }
    for (void* row : rows) draftwood_free_row(row);
    Floats hidden;
    for (int i = 0; i < 270 * TAPS * blocks.width; i++) hidden.push_back(i % 97 / 48.f - 1);
    rows = {draftwood_row(blocks.handle), draftwood_row(blocks.handle)};
    for (int i = 0; i < 2; i++) blocks.draft(rows, hidden, threads, digest);
    for (void* row : rows) draftwood_free_row(row);
    return digest.value;
}

}  // namespace

// Sampling from lines of many lengths, each at the end of its memory.
void sample() {
    for (long vocab : {1, 15, 16, 63, 64, 65, 200})
        for (long count : {1L, vocab / 2 + 1, vocab})
            for (const Cuts& cuts : {Cuts{0, 1, 0}, Cuts{3, 1, 0}, Cuts{0, 0.8f, 0}, Cuts{9, 0.5f, 0.1f}, Cuts{0, 1, 0.2f}}) {
                Floats scores(2 * vocab), times(2 * vocab), values(2 * count), likeliest(2);
                std::vector<int64_t> keys{-5, 7}, bases(vocab), tokens(2 * count);
                const double weights[] = {1, -0.4, -3, 0.9};
                std::vector<double> chances(2 * count);
                for (long i = 0; i < vocab; i++) bases[i] = i * 977 - 5, scores[i] = i % 7, scores[vocab + i] = -INFINITY;
                draftwood_exponentials(keys.data(), 2, bases.data(), vocab, times.data());
                const Cuts both[] = {cuts, cuts};
                need(!draftwood_best(scores.data(), 2, 1, vocab, both, keys.data(), bases.data(), vocab, nullptr, count,
                                     values.data(), tokens.data(), likeliest.data(), weights, chances.data()), "best");
                need(tokens[0] >= 0 && tokens[count] == -1 && std::isnan(likeliest[1]), "the best tokens");
                need(chances[0] < 0 && chances[count] == -INFINITY, "the chances of children");
            }
}

void trees_of_numbers() {
    for (int kind = 0; kind < 4; kind++) {
        Tiny model(kind % 2, kind / 2);
        show(model, kind ? Ints{0, 1, 16, 63, 64} : Ints{0, 1, 16, 63, 64, 260});
    }
    for (LayerKind state : {DELTA_RULE, SHORT_CONVOLUTION, MAMBA})
        for (bool bfloat16 : {false, true}) {
            Tiny model(bfloat16, false, 0, NUMBERS, 16, NOTHING, state);
            show(model, state == MAMBA ? Ints{15, 63} : Ints{0, 15, 63});
        }
    for (bool bfloat16 : {false, true}) {
        Tiny sinks(bfloat16, true, 9, NUMBERS, 16, NOTHING, ATTENTION, true);
        Tiny varied(bfloat16, true, bfloat16 ? 9 : 0, NUMBERS, 16, NOTHING, ATTENTION, false, true);  // a mixture, or none
        Tiny head(bfloat16, true, 9, NUMBERS, 16, BY_HEAD);  // an MTP head, whose layer is a mixture
        for (Tiny* model : {&sinks, &varied, &head}) show(*model, {1, 63});
    }
}

void trees_of_codes() {
    for (Codes codes : {OF_32, OF_256}) {
        Tiny model(true, false, 0, codes, 8);
        show(model, codes == OF_32 ? Ints{0, 1, 16, 63, 64} : Ints{1, 16});
    }
    for (LayerKind state : {ATTENTION, DELTA_RULE, SHORT_CONVOLUTION, MAMBA}) {
        Tiny model(true, !state, state ? 0 : 9, OF_32, 8, NOTHING, state);  // a mixture, and layers with a running state
        show(model, {1, 63});
    }
    for (bool varied : {false, true}) {
        Tiny model(true, true, 9, OF_32, 8, NOTHING, ATTENTION, !varied, varied);
        show(model, {1, 63});
    }
}

void rest() {
    sample();
    const uint64_t alone[] = {everything(false, 1), everything(true, 1)};
    for (int i = 0; i < 2; i++) {  // callers whose forwards wait for one another
        std::vector<std::future<uint64_t>> callers;
        for (bool bfloat16 : {false, true, false}) callers.push_back(std::async(std::launch::async, everything, bfloat16, 3));
        for (int caller = 0; caller < 3; caller++) need(callers[caller].get() == alone[caller % 2], "other bits on other threads");
    }
    for (uint64_t digest : alone) printf("%016llx\n", (unsigned long long)digest);
}

int main(int, char** arguments) {
    if (draftwood_use(arguments[1])) return puts(draftwood_error()), 1;
    const std::string part = arguments[2];
    missing = part == "short";
    if (part != "codes" && part != "rest") trees_of_numbers();
    if (part != "rest") trees_of_codes();
    if (part == "all" || part == "rest") rest();
}
