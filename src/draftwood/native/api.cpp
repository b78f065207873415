// Functions of the plain C interface for models and rows; the others are in forwards.cpp, sampling.cpp and grow.cpp.
#include <string.h>

#include "api.h"

namespace {
thread_local std::string problem;

// 0, or -1 where it fails.
template <class F>
int done(F what) {
    try {
        return what(), 0;
    } catch (...) {
        return failed();
    }
}

// What it makes, or null where it fails.
template <class F>
void* made(F what) {
    void* found = nullptr;
    done([&] { found = what(); });
    return found;
}
}  // namespace

int failed() {
    try {
        throw;
    } catch (const std::bad_alloc&) {
        problem = "there is not enough memory";
    } catch (const std::exception& error) {
        problem = error.what();
    }
    return -1;
}

#pragma GCC visibility push(default)
extern "C" {

const char* draftwood_version() { return DRAFTWOOD_VERSION; }
const char* draftwood_error() { return problem.c_str(); }

const char* draftwood_instruction_sets() {
    static const std::string names = instruction_sets();
    return names.c_str();
}

// Bytes of a structure that Python mirrors; 0 of one that is none.
size_t draftwood_size_of(const char* structure) {
#define SIZE(name) \
    if (!strcmp(structure, #name)) return sizeof(name);
    SIZE(Facts) SIZE(Matrix) SIZE(LayerSource) SIZE(DrafterSource) SIZE(NewTokens) SIZE(NewHidden) SIZE(BlockShape) SIZE(Cuts) SIZE(TreeExpansion)
    SIZE(TreeCandidate) SIZE(TreeLevel)
#undef SIZE
    return 0;
}

int draftwood_use(const char* name) { return done([&] { use_instruction_set(name); }); }

void* draftwood_model(const Facts* facts, const int* taps, const Matrix* embedding, const Matrix* head, const float* norm,
                      int threads) {
    return made([&] { return new Handle(std::make_shared<Engine>(*facts, taps, *embedding, *head, norm, threads)); });
}

// The next layer of a model, which is used once it has all.
int draftwood_layer(void* model, const LayerSource* layer) { return done([&] { (*(Handle*)model)->add(*layer); }); }

int draftwood_expand(const Matrix* matrix, long rows, int columns, int bfloat16, void* to) {
    return done([&] { expand(*matrix, rows, columns, bfloat16, to); });
}

void draftwood_free_model(void* model) {
    delete (Handle*)model;
    forget_jobs();
}

int draftwood_rotate(void* model, const float* cos, const float* sin, const float* queries, int tables, int positions) {
    return done([&] { (*(Handle*)model)->rotate(cos, sin, queries, tables, positions); });
}

long draftwood_read(void* model, int threads) { return (*(Handle*)model)->read(threads); }

// Bytes that the memory of all rows takes.
long draftwood_memory_bytes(void* model) { return (*(Handle*)model)->memory_bytes(); }

long draftwood_row_bytes(void* model) { return (*(Handle*)model)->row_bytes(); }

// Bytes of a page for each of its tokens.
long draftwood_token_bytes(void* model) { return Buffer::whole((*(Handle*)model)->page_bytes()) / PAGE; }
void* draftwood_row(void* model) { return made([&] { return new Row(*(Handle*)model); }); }

void* draftwood_fork(const void* row, int length) {
    return made([&] { return new Row(*(const Row*)row, length); });
}

void draftwood_free_row(void* row) {
    delete (Row*)row;
    forget_jobs();
}
int draftwood_length(const void* row) { return ((const Row*)row)->text; }
int draftwood_reach(const void* row, int length) { return ((const Row*)row)->reach(length); }
int draftwood_restore(void* row, int length) { return done([&] { ((Row*)row)->restore(length); }); }

long draftwood_part(void* row, int index, void** start) {
    const auto [place, bytes] = ((Row*)row)->part(index);
    *start = place;
    return bytes;
}

int draftwood_cut(void* row, int length) { return done([&] { ((Row*)row)->cut(length); }); }

int draftwood_commit(void* row, const int* nodes, int count) { return done([&] { ((Row*)row)->commit(nodes, count); }); }

int draftwood_drafter(void* model, const DrafterSource* source) {
    return done([&] { (*(Handle*)model)->drafter(*source); });
}

int draftwood_layer_inputs(void* model, const Matrix* table, const Matrix* projection, const float* norm, float scale) {
    return done([&] { (*(Handle*)model)->layer_inputs(*table, *projection, norm, scale); });
}

int draftwood_share_head(void* model, void* lender) {
    return done([&] { (*(Handle*)model)->share_head(*(Handle*)lender); });
}

void draftwood_exponentials(const int64_t* keys, long count, const int64_t* bases, long numbers, float* out) {
    kernels().exponentials(keys, count, bases, numbers, out);
}
}
#pragma GCC visibility pop
