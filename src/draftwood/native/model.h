// What the forward works on. Plain structures: files of several instruction sets share them, and no code.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "codes.h"

namespace draftwood {

const int LANES = 16;        // outputs of a block
const int GROUP = 2 * LANES; // outputs of two blocks, which lie together and are computed together
const int PAGE = 64;         // tokens of a page of keys and values
const int MOST = 256;        // tokens that go through all layers together
const int TILE = 16;         // rows of a tile of AMX, at most
const int SUMMED = 32;       // inputs of a tile of AMX
const int QUERIES = 48;      // rows of queries that attend together, at most
const int EXPERTS = 512;     // of a layer, at most
const int SEGMENT = 64;      // tokens of a segment in which the largest scores are looked for, and noise is made
const int EXPANDED = 128;    // inputs whose codes are expanded together

// A matrix in the order in which it is read: [group][input / step][block of the group][output of the block][step].
// Outputs are padded to whole groups and inputs to the lanes, with zeros.
// Or as panels of codes, two of each group (codes.h).
struct Linear {
    int outputs, inputs;  // padded
    const void* weights;
    const float* bias;    // or null
    const Panel* panels;  // or null
};

struct Layer {
    Linear qkv, out, gate_up, down;  // gate_up: a group is a block of gates and the same block of ups
    float *norm, *ffn_norm;          // of the inputs of attention and of the feed-forward network, or null
    float *out_norm, *down_norm;     // of what attention and that network add to the residual stream, or null
    float *query_norm, *key_norm;    // of each head, or of all heads together, or null
    float* hidden_norm;              // of the first layer of a drafter that reads [token's embedding; feature], or null
    int window;                      // tokens that a token sees at most; 0 for all
    int rotary;                      // its table of rotations; below 0: none
    // Of a mixture of experts, each with matrices of its own instead of gate_up and down: gate_up and down of each, or null.
    Linear router;
    const Linear *experts_up, *experts_down;
};

struct Facts {
    int layers, width, heads, kv_heads, head_dim, inner, vocab, tokens;  // tokens: that it reads; vocab: that it scores
    int rotary_dim;   // leading numbers of a head that are rotated
    int taps;         // number of hidden states that are returned
    int bfloat16;     // weights, keys and values; else float32
    int activations;  // bits of the inputs of products with codes: 8, and everything else is float32; or 16: bfloat16 as all others
    float epsilon, scale;
    int gelu;         // the activation is GELU by tanh; else SiLU
    int joint_norms;  // query and key norms are of all heads together
    // Factors, and caps of scores; 0 for none.
    float embedding_scale, residual_scale, logit_divisor, attention_cap, logit_cap;
    // Of a mixture of experts: those of a layer and of a token; whether the shares of a token's experts add up to one.
    int experts, chosen, expert_inner, whole_shares;
};

struct Rotary {
    const float *cos, *sin;  // [table][position][rotary_dim / 2]
    int positions;
};

struct Model {
    Facts facts;
    int padded_width, padded_dim, padded_inner;  // padded numbers are zero; inner: of all experts of a token
    Layer* layer;
    const void* embedding;  // [tokens][width], as it came
    const struct CodeKind* embedding_codes;  // its type, or null for numbers
    Linear head;
    float* norm;
    Rotary rotary;
    const int* tap;  // which hidden states: 0 is the embedding, i the output of layer i, the last one is normed; layers + 1 is
                     // that one before its norm
    size_t page_numbers;  // numbers of a page: [layer][kv head][keys, values][PAGE * padded_dim]
    // Of a drafter of hidden states: keys and values of the text are made of the target's hidden states, and what a token adds
    // to the scores of the next one is a product of low rank.
    int sources, source_width, norm_sources;  // hidden states of a token; whether each is normed first
    int norm_residual;                        // the first layer adds to the normed feature
    float source_epsilon;
    Linear features, markov;
    float *source_norm, *feature_norm;  // the first of all sources, or null
    const void* markov_embedding;  // [tokens][rank], as it came
    int rank;
};

// What a job computes.
enum Mode {
    SCORES,    // of tokens
    FEATURES,  // keys and values of hidden states
    MARKOV     // scores of nodes, from those of their depths and from their tokens
};

// A token of a forward.
struct Token {
    int row, token, position, slot;  // MARKOV: position is the depth
    int text;         // slots [0, text) hold what it sees first
    int first, seen;  // further slots that it sees, itself among them: path[first .. first + seen)
    int scored;       // index of its scores among those of the block, or -1
    int state;        // index of its hidden states among those of the forward
};

// What the threads compute for a block of at most MOST tokens.
struct Work {
    const Work* next;  // what they compute then, from a phase on, or null
    int phase;
    Mode mode;
    const Model* model;
    const Token* tokens;
    int count, scored, first_scored;
    const int* path;
    void* const* const* pages;  // [row][page]
    float* logits;              // [scored][vocab]
    float* hidden;              // [state][tap][width], or null
    const float* mask;          // [width]: the input of tokens below 0
    const float* sources;       // FEATURES, or what features of SCORES are made of: [token][sources * source_width]
    const float* features;      // or the features themselves: [token][width]
    const float* depths;        // MARKOV: [row][depth][vocab] scores
    int block;                  // MARKOV: number of depths
};

// Memory of a block of tokens, shared by all threads.
struct Shared {
    float *x, *qkv;
    void *queries, *attended, *acted;
    int* chosen;    // [token][choice] experts
    float* shares;  // [token][choice]
};

// Memory of one thread.
struct Scratch {
    void *normed, *weights, *gathered;
    void* codes;  // of inputs
    float *scores, *found;
    int tile_rows;  // of the processor's tiles, as they are configured
    // Of the scores that this thread computed: per scored token the highest one, the lanes of their sum, which is NaN if a score
    // is, and the token of the highest.
    float *highest, *totals;
    int* best;
};

// The chunks of a job's phases (threads.cpp).
struct Phases;
// The next chunk of a phase for a thread that has done ``done`` of them: of its own part, which lies together in memory, or then
// of another thread's; -1 once all of them are done, by whichever thread.
int claim(Phases* phases, int phase, int chunks, int thread, int done);

struct Kernels {
    void (*forward)(const Work* work, Phases* phases, const Shared* shared, Scratch* scratch, int thread, int threads);
    void (*exponentials)(const int64_t* keys, long count, const int64_t* bases, long numbers, float* out);
    void (*perturb)(const float* scores, const float* arrivals, long vocab, float offset, float* out);
    double (*sum_of_exponentials)(const float* scores, long vocab, float offset);
    bool (*segment_maxima)(const float* scores, long vocab, float* out);
};

}  // namespace draftwood
