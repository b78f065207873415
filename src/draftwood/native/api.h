// Functions of the library that a driver in C++ calls too, so that one declaration is checked by both.
#pragma once

#include "engine.h"

using namespace draftwood;

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
int draftwood_read_tokens(const NewTokens*, int, float* logits, float* hidden, float* highest, int64_t* best, int threads);
void draftwood_exponentials(const int64_t* keys, long count, const int64_t* bases, long numbers, float* out);
int draftwood_best(const float* scores, long rows, long nodes, long vocab, const Cuts*, const int64_t* keys,
                   const int64_t* bases, long bases_count, const int64_t* columns, long count, float* values, int64_t* tokens,
                   float* likeliest, const double* weights, double* chances);
int draftwood_draft_block(const NewHidden*, int, const BlockShape*, float* logits, int threads);
int draftwood_add_markov(void*, const int64_t*, const int64_t*, int, int, const float*, int, float* logits, int threads);
void draftwood_free_row(void* row);
void draftwood_free_model(void* model);
}
#pragma GCC visibility pop
