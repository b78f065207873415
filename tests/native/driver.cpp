// Reads texts and trees with random weights by the C interface, on a processor that may have no Python. Every node of a tree must
// have the bits of its path as a chain, and of its path as text. Prints a digest of the scores of each model.
#include <cstdio>
#include <cstring>

#include "engine.h"

using namespace draftwood;

extern "C" {
const char* draftwood_error();
int draftwood_use(const char* name);
void* draftwood_model(const Facts*, const int*, const Matrix*, const Matrix*, const float*, const LayerSource*, int);
int draftwood_rotate(void* model, const float* cos, const float* sin, int tables, int positions);
void* draftwood_row(void* model);
int draftwood_commit(void* row, const int* nodes, int count);
int draftwood_read_tokens(const NewTokens*, int, float* logits, float* hidden, Peak*, int threads);
void draftwood_free_row(void* row);
void draftwood_free_model(void* model);
}

namespace {

const int WIDTH = 40, HEADS = 6, KV_HEADS = 2, DIM = 12, INNER = 50, VOCAB = 45, POSITIONS = 200;
const int PARENTS[] = {0, 0, 0, 1, 2, 4}, NODES = 6;

struct Weights {
    bool bfloat16;
    uint32_t state = 1;
    std::vector<std::vector<float>> kept;

    float number() {
        state = state * 1664525u + 1013904223u;
        return (float)(int32_t)state / 2147483648.f;
    }
    const float* numbers(int count) {
        kept.emplace_back(count);
        for (float& one : kept.back()) one = number();
        return kept.back().data();
    }
    Matrix matrix(int rows, int columns) {
        char* found = (char*)numbers(rows * columns);
        for (int i = 0; bfloat16 && i < rows * columns; i++) {
            uint32_t bits;
            memcpy(&bits, found + 4 * i, 4);
            const uint16_t half = bits >> 16;
            memcpy(found + 2 * i, &half, 2);
        }
        return {found, -1, 0, 0};
    }
};

typedef std::vector<int> Ints;

// The scores of a tree behind a text, each node with its parent before it.
std::vector<float> read(void* row, const Ints& text, const Ints& tokens, const Ints& parents, int threads) {
    const int count = tokens.size();
    std::vector<int64_t> ids(tokens.begin(), tokens.end()), depths(count);
    std::vector<unsigned char> seen(count * count);
    for (int i = 0; i < count; i++) {
        if (i) memcpy(&seen[i * count], &seen[parents[i] * count], count);
        seen[i * count + i] = 1;
        depths[i] = i ? depths[parents[i]] + 1 : 0;
    }
    NewTokens given{(Row*)row, (int)text.size(), count, count, text.data(), ids.data(), depths.data(), seen.data(), nullptr, nullptr};
    std::vector<float> logits(count * VOCAB);
    std::vector<Peak> peaks(count);
    if (draftwood_read_tokens(&given, 1, logits.data(), nullptr, peaks.data(), threads))
        throw std::runtime_error(draftwood_error());
    return logits;
}

void* model_of(Weights& w, bool further) {
    Facts facts{};
    facts.layers = 2, facts.width = WIDTH, facts.heads = HEADS, facts.kv_heads = KV_HEADS, facts.head_dim = DIM;
    facts.inner = INNER, facts.vocab = VOCAB, facts.rotary_dim = DIM, facts.bfloat16 = w.bfloat16;
    facts.epsilon = 1e-6f, facts.scale = 0.3f;
    if (further) {
        facts.gelu = facts.joint_norms = 1, facts.embedding_scale = 2.5f, facts.residual_scale = 0.5f;
        facts.logit_divisor = 0.7f, facts.attention_cap = 2, facts.logit_cap = 3;
    }
    std::vector<LayerSource> layers(2);
    for (LayerSource& to : layers) {
        to.query = w.matrix(HEADS * DIM, WIDTH), to.key = w.matrix(KV_HEADS * DIM, WIDTH);
        to.value = w.matrix(KV_HEADS * DIM, WIDTH), to.out = w.matrix(WIDTH, HEADS * DIM);
        to.gate = w.matrix(INNER, WIDTH), to.up = w.matrix(INNER, WIDTH), to.down = w.matrix(WIDTH, INNER);
        to.norm = w.numbers(WIDTH), to.ffn_norm = w.numbers(WIDTH), to.window = further ? 9 : 0;
        if (further) to.out_norm = w.numbers(WIDTH), to.query_norm = w.numbers(HEADS * DIM);
    }
    const int none = 0;
    const Matrix embedding = w.matrix(VOCAB, WIDTH), head = w.matrix(VOCAB, WIDTH);
    const int size = POSITIONS * DIM / 2;
    const float *norm = w.numbers(WIDTH), *cos = w.numbers(size), *sin = w.numbers(size);
    void* found = draftwood_model(&facts, &none, &embedding, &head, norm, layers.data(), 2);
    draftwood_rotate(found, cos, sin, 1, POSITIONS);
    return found;
}

// A digest of the scores of a tree behind a text of this length.
uint64_t check(void* model, int length) {
    Ints text, tokens{5, 1, 2, 3, 4, 6};
    for (int i = 0; i < length; i++) text.push_back(7 * i % VOCAB);
    void* row = draftwood_row(model);
    const std::vector<float> tree = read(row, text, tokens, Ints(PARENTS, PARENTS + NODES), 1);
    for (int node = 0; node < NODES; node++) {
        Ints path, kept, parents, whole = text;
        for (int i = node; i; i = PARENTS[i]) kept.insert(kept.begin(), i);
        kept.insert(kept.begin(), 0);
        for (int i : kept) path.push_back(tokens[i]), parents.push_back(std::max(0, (int)path.size() - 2));
        whole.insert(whole.end(), path.begin(), path.end() - 1);
        void *other = draftwood_row(model), *plain = draftwood_row(model);
        const std::vector<float> chain = read(other, text, path, parents, 3), alone = read(plain, whole, {path.back()}, {0}, 2);
        const size_t bytes = 4 * VOCAB;
        if (memcmp(&tree[node * VOCAB], &chain[chain.size() - VOCAB], bytes) || memcmp(&tree[node * VOCAB], alone.data(), bytes))
            throw std::runtime_error("a tree has other bits than its paths");
        draftwood_free_row(other), draftwood_free_row(plain);
    }
    draftwood_free_row(row);
    uint64_t digest = 1469598103934665603u;
    for (size_t i = 0; i < 4 * tree.size(); i++) digest = (digest ^ ((const unsigned char*)tree.data())[i]) * 1099511628211u;
    return digest;
}

}  // namespace

int main() {
    if (draftwood_use("generic")) return puts(draftwood_error()), 1;
    for (int kind = 0; kind < 4; kind++) {
        Weights weights{kind % 2 == 1};
        void* model = model_of(weights, kind / 2);
        for (int length : {0, 1, 16, 63, 64, 130}) printf("%016llx\n", (unsigned long long)check(model, length));
        draftwood_free_model(model);
    }
}
