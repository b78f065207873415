// What the forward works on. Plain structures: files of several instruction sets share them, and no code.
//
// A panel of a matrix is sixteen outputs, the lanes of a vector. Two of them are a strip, which is computed together. In bfloat16
// a vector has pairs of inputs; in float32 single ones:
//
//     strip    inputs 0, 1 of panel 0       inputs 0, 1 of panel 1         inputs 2, 3 of panel 0
//     s        w00 w01 w10 w11 .. wf0 wf1   wg0 wg1 wh0 wh1 .. wv0 wv1     w02 w03 w12 w13 ..       (first output, then input)
//     s + 1    ...
//
// A panel of codes (codes.h) has superblocks of up to eight quantisation groups of 32 inputs:
//
//     scales, lows | group 0: line 0: 4 inputs of output 0, of output 1, ..; line 1; .. | group 1 | ..        next superblock
//
// A page of the KV cache has 64 tokens of a row, for each layer and each head of keys and values:
//
//     layer 0, head 0                    keys: 4 panels whose outputs are tokens    values: panels whose inputs are tokens
//     layer 0, head 1 ..                 [token / 16][number / step][token % 16][step]    [token / step][number][step]
//
// so products of queries with keys, and of weights with values, are those of a matrix (page.h has the places).
//
// A layer with a running state keeps entries of tokens instead, and the state before a checkpoint (states.h).
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "codes.h"

namespace draftwood {
const int LANES = 16;          // outputs of a panel
const int STRIP = 2 * LANES;   // outputs of two panels, which lie together and are computed together
const int PAGE = 64;           // tokens of a page of the KV cache
const int BATCH = 256;         // tokens that go through all layers together, at most
const int TILE = 16;           // rows of a tile of AMX, at most
const int TILE_INPUTS = 32;    // inputs of a tile of AMX
const int QUERIES = 48;        // rows of queries that attend together, at most
const int EXPERTS = 512;       // of a layer, at most
const int SEGMENT = 64;        // tokens of a segment in which the largest scores are looked for, and noise is made
const int EXPANDED = 128;      // inputs whose codes are expanded together
const int INTERVAL = 16;       // tokens from a checkpoint of running states to the next one
const int ROUND = 32;          // nodes of a round whose entries count as a row's memory

const int MAX_TAPS = 8;        // of a convolution
const int MAX_STATE = 256;     // numbers of a value of the delta rule, at most

// How a layer mixes tokens.
enum LayerKind { ATTENTION, DELTA_RULE, SHORT_CONVOLUTION, MAMBA };

// A matrix in the order in which it is read: [strip][input / step][panel of the strip][output of the panel][step].
// Outputs are padded to whole strips and inputs to the lanes, with zeros.
// Or as panels of codes, two of each strip (codes.h).
struct Linear {
    int outputs, inputs;  // padded
    const void* weights;
    const float* bias;    // or null
    const Panel* panels;  // or null
};

// Rows of numbers by token, as they came.
struct Table {
    const void* rows;             // [token][number]
    const struct CodeKind* codes; // their type, or null for numbers in the model's format
};

// What a layer is, and vectors that are packed as they come; each may be null.
struct LayerFacts {
    int kind;            // of LayerKind; for others than attention ``qkv`` makes all that the layer reads of a token
    int window, rotary;  // tokens that a token sees at most, 0 for all; its table of rotations, below 0 none
    // Norms: of the inputs of attention and of the feed-forward network, of what both add to the residual stream, and of the first
    // layer of a drafter that reads [token's embedding; feature].
    const float *norm, *ffn_norm, *out_norm, *down_norm, *hidden_norm;
    const float* sinks;                // of each head, a score that takes its share of the softmax and has no value
    const float *input_norm, *scalar;  // of a token's further inputs; what the residual stream is multiplied by at last
    // Of a mixture next to a network of all tokens: norms of what either makes, and of inputs of experts and of the router; and
    // what weights of experts are multiplied by, [expert].
    const float *dense_norm, *mixture_norm, *experts_norm, *router_norm, *expert_scales;
};

struct Layer : LayerFacts {
    Linear qkv, out, gate_up, down;  // gate_up: a strip is a panel of gates and that of the same ups
    float *query_norm, *key_norm;    // of each head, or of all heads together, or null
    float* value_norm;               // ones, if values are normed, or null
    int head_dim, dim, kv_heads;     // numbers of a head, and padded ones; heads of keys and values
    size_t keys;                     // place of those in a page
    bool borrows;                    // they are an earlier layer's
    int number;                      // among the layers with a state
    size_t entries;                  // place in a block of entries
    Linear input_gate, input_projection;  // of what the layer adds of a token alone, without weights if it adds nothing
    // [tap][channel]; [channel] or null; [head], below 0; [head]; of a head's output, or of all of Mamba-2; [head] of Mamba-2.
    float *convolution, *convolution_bias, *decay, *decay_bias, *state_norm, *skip;
    // Of a mixture of experts, each with matrices of its own, or null; gate_up and down are those of an expert that all tokens have,
    // by the sigmoid of the router's last output, or null too.
    Linear router;
    float* choice_bias;  // [expert], or null
    const Linear *experts_up, *experts_down;
};

struct Facts {
    int layers, width, heads, kv_heads, head_dim, inner, vocab, tokens;  // tokens: that it reads; vocab: that it scores
    int rotary_dim;   // leading numbers of a head that are rotated; of a smaller head all
    int taps;         // number of hidden states that are returned
    int bfloat16;     // weights, keys and values; else float32
    int activations;  // bits of the inputs of products with codes: 8, and all else is float32; or 16: bfloat16 as all others
    float epsilon, scale;
    int gelu;         // the activation is GELU by tanh; else SiLU
    int joint_norms;  // query and key norms are of all heads together
    int norm_values;  // values are normed, without a weight
    int layer_inputs; // numbers of a token that each layer has of its own; 0: none
    // Factors, and caps of scores; 0 for none.
    float embedding_scale, residual_scale, logit_divisor, attention_cap, logit_cap;
    float swiglu_limit, swiglu_alpha;  // SwiGLU with clamped inputs, and the factor in its sigmoid; limit 0: without
    // Of a mixture of experts: those of a layer and of a token; whether the weights of a token's experts add up to one.
    // Without a softmax a weight is a sigmoid, and the choice is by it and a bias.
    int experts, experts_per_token, expert_inner, normalise_experts, sigmoid_routing;
    int gated;  // attention is multiplied by the sigmoids of gates, which follow each head's queries in its matrix
    // Of layers with a running state: taps of the convolution, and heads of the state with their numbers. Queries, keys and values
    // of the delta rule are C, B and x of Mamba-2.
    int taps_of_convolution, key_heads, value_heads, key_size, value_size;
    int tiled;  // value heads take turns with key heads, as in GGUF files; else those of a key head follow each other
};

struct Rotary {
    const float *cos, *sin;  // [table][position][rotary_dim / 2]
    int positions;
    const float* queries;    // what queries are multiplied by, [position], or null
};

// What a row keeps for layers with a running state (states.h).
struct RowStates {
    float* states[2];  // checkpoints take turns
    int* checkpoints;
    float* const* blocks;
};

// Of a drafter of hidden states: keys and values of the text are made of the target's hidden states, and what a token adds to the
// scores of the next one is a product of low rank.
struct DrafterFacts {
    int sources, source_width, norm_sources;  // hidden states of a token, at most LANES; whether each is normed first
    int norm_residual;                        // the first layer adds to the normed feature
    int embeds;  // 1: the first source is the embedding of a token, and the first layer reads features and nothing else
    int rank;    // 0: no Markov head
    float source_epsilon;
};

struct Model : DrafterFacts {
    Facts facts;
    int padded_width, padded_dim, padded_inner;  // padded numbers are zero; inner: of all experts of a token
    int padded_key, padded_value;                // of a head of a state
    int channels, stateful;          // inputs of a convolution; layers with a state
    int most_outputs;                // of ``qkv`` of a layer
    int keeping;                     // layers until the last one that keeps something of a token
    size_t block_numbers;            // of a block of entries of all layers; 0: no layer has a running state
    Layer* layer;
    Table embedding, layer_embedding;  // [width]; [layer][layer_inputs], or null
    Linear layer_projection;         // of the embedding: a further input for each layer, padded one by one
    float *layer_norm, layer_scale;  // of each of these inputs; what those of the table are multiplied by
    Linear head;
    float* norm;
    Rotary rotary;
    // Which hidden states are returned: 0 is the embedding, i the output of layer i, the last one is normed; layers + 1 is that
    // one before its norm.
    const int* tap;
    size_t page_numbers;  // numbers of a page: [layer with keys of its own][kv head][keys, values][PAGE * dim]
    Linear features, markov;         // of a drafter of hidden states
    float *source_norm, *feature_norm;  // the first of all sources, or null
    const void* markov_embedding;  // [tokens][rank], as it came
};

// Numbers of hidden states that come with a token.
inline size_t given_numbers(const Model& m) { return (size_t)(m.sources - m.embeds) * m.source_width; }

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
    int scored;       // index of its scores among those of the batch, or -1
    int state;        // index of its hidden states among those of the forward
};

// What the threads compute for at most BATCH tokens.
struct Work {
    Mode mode;
    const Model* model;
    const Token* tokens;
    int count, scored, first_scored;
    const int* path;
    void* const* const* pages;  // [row][page]
    const RowStates* states;    // [row]
    float* logits;              // [scored][vocab]
    float* hidden;              // [state][tap][width], or null
    const float* mask;          // [width]: the input of tokens below 0
    const float* sources;       // FEATURES, or what features of SCORES are made of: [token][sources * source_width]
    const float* features;      // or the features themselves: [token][width]
    const float* depths;        // MARKOV: [row][depth][vocab] scores
    int block;                  // MARKOV: number of depths
};

// Memory of a batch of tokens, shared by all threads. Inputs of products have the format that the kernel wants.
struct Shared {
    float* residual; // [token][width]: the residual stream
    float* qkv;      // [token][qkv]; also what is added to the residual stream, if it is normed or of several experts
    void* queries;   // [head of keys][token][head of the group][dim]
    void* attended;  // [token][heads * dim]; also inputs of experts, and of the head
    void* activated; // [token][inner]; also inputs of the first layer of a drafter, and of features
    float* layer_inputs;  // [token][layer][padded number]
    float* mixed;    // [token][channel], then of each head of the delta rule its share of an update and its decay
    int* experts;    // [token][choice]
    float* expert_weights;  // [token][choice], then [token] of the expert that all tokens have
};

// Memory of one thread.
struct Scratch {
    void* normed;      // [token][width]: inputs of products
    void* softmax;     // [query][slot], then [query][slot of the tail]: weights of values
    void* gathered;    // [slot of the tail][dim], or inputs of an expert
    void* codes;       // inputs in 8 bits, and their groups
    float* scores;     // [query][slot]
    float* sums;       // [query][dim] of attention
    float* state;      // [key][value]: behind nodes, of a head of the delta rule
    int tile_rows;     // of the processor's tiles, as they are configured; -1: for codes
    // Of the scores that this thread computed, for each scored token: the highest one, the token that has it, and the lanes of
    // the scores' sum, which is NaN if a score is.
    float* highest;
    int* best;
    float* totals;
};

// Phases of a forward of a batch, at most. Of a layer with a mixture of experts next to a network of all tokens: qkv, heads, attention
// or a state, what is kept of that, out, its norm, router, up, down, sum, three of that network, and three of the layer's own
// inputs. Outside of layers: features are two, then embedding, last norm, head.
inline int phases_of(int layers) { return 16 * layers + 5; }

// What threads do together (threads.h).
struct Job;
// The next chunk of a phase for a thread that has done ``done`` of them: of its own part, which lies together in memory, or then
// of another thread's; -1 once all of them are done, by whichever thread.
int claim(Job& job, int phase, int chunks, int thread, int done);
// End the process: a forward has more phases than it told.
[[noreturn]] void too_many_phases();

// One thread of a job.
struct Worker {
    Job* job;
    const Shared* shared;
    Scratch* own;
    int thread, threads;
};

struct Kernels {
    void (*forward)(const Work* works, int count, const Worker& worker);  // of batches, one after the other
    void (*advance)(const Model& model, const RowStates& row, int checkpoint);  // make states of those one before
    void (*exponentials)(const int64_t* keys, long count, const int64_t* bases, long numbers, float* out);
    void (*perturb)(const float* scores, const float* arrivals, long vocab, float offset, float* out);
    double (*sum_of_exponentials)(const float* scores, long vocab, float offset);
    bool (*segment_maxima)(const float* scores, long vocab, float* out);
};
}  // namespace draftwood
