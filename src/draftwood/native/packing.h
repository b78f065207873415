// Matrices as they come, and how they are packed in the order in which they are read.
#pragma once
#include <functional>
#include <utility>

#include "threads.h"

namespace draftwood {
// A matrix as it comes, [output][input]: in the model's format, or as in a GGUF file.
struct Matrix {
    const void* data;
    int kind;       // GGML's number of the type; -1: the model's format
    int flags;      // of MatrixFlags
    size_t mapped;  // bytes of a file, whose pages are let go once they are packed; 0: it is no file's
};

enum MatrixFlags {
    INTERLEAVED = 1,  // outputs of a head are in the order in which llama.cpp rotates them
    CODED = 2,        // codes stay codes, where the model is bfloat16
    ALTERNATING = 4   // gates and ups of an expert take turns
};

// Rows of a matrix as numbers, [row][column]: bfloat16, or else float32.
void expand(const Matrix& matrix, size_t rows, int columns, bool bfloat16, void* to);

// Outputs of a matrix: parts of ``size`` rows, each ``stride`` rows behind the one before, and padded; every ``step``th row.
struct Segment {
    const Matrix* matrix;  // without data: of zeros
    const float* bias;     // from the first row on, without a step; or null
    size_t first;
    int parts, size, padded, stride = 0, step = 1;
};
typedef std::vector<Segment> Segments;

// Where an output comes from: ``number`` is that of its bias in the segment. Padding has none.
struct Output {
    const Segment* segment = nullptr;
    int number = 0;
};
typedef std::vector<Output> Outputs;
// All outputs of these segments, whose lifetime they share. Those of the first two may take turns, panel by panel.
Outputs outputs_of(const Segments& segments, bool take_turns = false);

inline int padded_to(int number, int unit) { return (number + unit - 1) / unit * unit; }

// Inputs of a matrix: parts of ``numbers`` columns, each padded to whole strips.
struct Columns {
    int numbers, parts = 1;

    int padded() const { return padded_to(numbers, STRIP); }
    int inputs() const { return parts * padded(); }
    int all() const { return parts * numbers; }
};

// The memory of a model, and what packs its weights into it.
class Packer {
  public:
    // Numbers are bfloat16, or else float32; ``threads`` pack.
    Packer(bool bfloat16, int threads) : bfloat16_(bfloat16), threads_(threads) {}
    // A matrix whose outputs are rows of segments, and their biases if there are any; they may take turns as in ``outputs_of``.
    Linear pack(const Segments& segments, const Columns& columns, bool take_turns = false);
    float* copy(const float* from, int numbers, int parts = 1);  // each part padded to whole strips; null of null
    float* fill(int size, const std::function<float(int)>& number);
    void* reserve(size_t bytes);

    std::vector<std::pair<const char*, size_t>> weights;  // where all matrices lie, and their bytes

  private:
    Linear pack_codes(const Segments& segments, const Outputs& outputs, int inputs);
    void pack_strip(const Output* outputs, const Columns& columns, char* to) const;
    void in_pieces(int count, const Segments& segments, const std::function<void(int)>& one) const;

    bool bfloat16_;
    int threads_;
    std::vector<std::unique_ptr<Buffer>> memory_;
    char* next_ = nullptr;  // in the last block of memory
    size_t left_ = 0;       // bytes
};

// ``one(i)`` for 0 .. count - 1 on several threads.
void in_parallel(int threads, int count, const std::function<void(int)>& one);
}  // namespace draftwood
