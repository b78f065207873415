// The plain C interface that Python calls, as far as a driver in C++ calls it too, so that one declaration is checked by both. A
// function that fails returns null or -1, and draftwood_error says why.
#pragma once

#include "engine.h"

using namespace draftwood;

typedef std::shared_ptr<Engine> Handle;

// -1, in a handler of an exception, which draftwood_error says then.
int failed();

// A candidate of a tree: the number of its parent, the logarithm of its path's probability, the line of its children or -1, and the
// conditional probability of its guessed child or 0. That child is the next candidate.
struct TreeCandidate {
    int64_t token, parent;
    int depth, line;
    double log_prob, guess;
};

// A level of trees: the probability above it, its nodes in the row that has most, the number of best candidates in the
// row that has most, and when it ended, in seconds from the beginning.
struct TreeLevel {
    double above;
    int64_t nodes, best;
    double ended;
};

// Trees below the roots of a block, and how far they grow (draft/adaptive/block_grower.py).
struct TreeExpansion {
    void* model;
    const float* scores;  // [row][depth][vocab], to which the model adds what a node's token says if ``markov``
    const int64_t* columns;
    int vocab, block, markov, threads, rows, nodes, width, depths, count, most, stops_count;
    long bases_count;
    const int64_t *bases, *keys;  // those of the noise: [row][depth], or null
    const Cuts* cuts;             // [row]
    const float* temperatures;
    const int64_t *limits, *stops;  // [row]: of depth; [row][stop]: tokens that end the text
    const double *weights, *gains, *prices;  // four, as for draftwood_best; [depths + 1]; [width + 1], by number of nodes
    // Results; candidates and counts also hold roots and guesses on entry.
    TreeCandidate* candidates;  // [row][most]
    int64_t *counts, *ranked;   // [row]; [row][1 + nodes], the root first, -1 after the last
    TreeLevel* levels;          // [depths + 1]: those that were drafted, then the one that was not
    double* best_values;        // [depth][nodes]: means over the rows of the probabilities of the best, 0 after the last
    int64_t* tokens;            // children of all lines: [line][count], level by level, [row][node] within
    float *values, *likeliest;
    double* chances;
};

#pragma GCC visibility push(default)
extern "C" {
const char* draftwood_error();
int draftwood_use(const char* name);
void* draftwood_model(const Facts*, const int*, const Matrix*, const Matrix*, const float*, int);
int draftwood_layer(void* model, const LayerSource*);
int draftwood_rotate(void* model, const float* cos, const float* sin, const float* queries, int tables, int positions);
int draftwood_drafter(void* model, const DrafterSource*);
int draftwood_layer_inputs(void* model, const Matrix* table, const Matrix* projection, const float* norm, float scale);
int draftwood_share_head(void* model, void* lender);
long draftwood_read(void* model, int threads);
long draftwood_memory_bytes(void* model);
void* draftwood_row(void* model);
void* draftwood_fork(const void* row, int length);
int draftwood_cut(void* row, int length);
int draftwood_reach(const void* row, int length);
int draftwood_commit(void* row, const int* nodes, int count);
void draftwood_exponentials(const int64_t* keys, long count, const int64_t* bases, long numbers, float* out);
void draftwood_free_row(void* row);
void draftwood_free_model(void* model);

// Reads them; ``logits`` are [node][vocab]; ``hidden`` is [token][tap][width], of all nodes and then of all text, or null.
// ``highest`` is the highest score of each node, NaN if a score is, and ``best`` its token, the first one if several have it.
int draftwood_read_tokens(const NewTokens* rows, int count, float* logits, float* hidden, float* highest, int64_t* best, int threads);

// Reads hidden states, and scores a block after each root: [row][scored][vocab].
int draftwood_draft_block(const NewHidden* rows, int count, const BlockShape* shape, float* logits, int threads);

// Scores of nodes from those of their depths: [row][node][vocab]. They are -inf beyond the block.
int draftwood_add_markov(void* model, const int64_t* tokens, const int64_t* depths, int rows, int nodes, const float* scores,
                         int block, float* logits, int threads);

// The ``count`` best possible tokens of each line, [row][node], under Gumbel noise: [line][count], in falling order, of equal
// scores the first token first; -inf and token -1 where there are fewer.
// ``cuts`` are those of the rows. ``keys`` are those of the lines' noise, 0 for none, or null; ``bases`` are those of
// ``bases_count`` tokens, and ``columns`` the tokens of the scores, or null. Values are log-probabilities with noise, and
// ``likeliest`` is the highest without, NaN where no token is possible. Null: values are known up to a constant.
// With ``weights`` the ``chances`` are logarithms of the probabilities that the target chooses each of them, [line][count]: a
// multinomial logit of four weights over them and none of them, as ``draftwood.draft.adaptive.expand.AcceptanceModel``.
int draftwood_best(const float* scores, long rows, long nodes, long vocab, const Cuts* cuts, const int64_t* keys,
                   const int64_t* bases, long bases_count, const int64_t* columns, long count, float* values, int64_t* tokens,
                   float* likeliest, const double* weights, double* chances);

// The longest path from the root of each row's tree on which every token is the best possible one at its parent, and the best
// token after it. ``keys`` are those of the noise of each depth, [row][depth], or null; a tree is [row][node], and so are the
// nodes of the paths, which end with zeros.
int draftwood_follow(const float* scores, long rows, long nodes, long vocab, const Cuts* cuts, const int64_t* keys, long depths,
                     const int64_t* bases, long bases_count, const int64_t* tokens, const int64_t* parents, const uint8_t* valid,
                     int64_t* paths, int64_t* next);

// Grows all levels that pay; returns how many.
int draftwood_grow(TreeExpansion* expansion);
}
#pragma GCC visibility pop
