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

// A row of a matrix; of null for an output that is padding.
struct MatrixRow {
    const Matrix* matrix;
    size_t row;
};
typedef std::function<MatrixRow(int output)> RowOf;

// The place of an input in parts of ``numbers``, each padded at its end; -1 of padding.
inline int place_in_parts(int input, int numbers, int padded) {
    return input % padded < numbers ? input / padded * numbers + input % padded : -1;
}

inline int padded_to(int number, int unit) { return (number + unit - 1) / unit * unit; }

// The column of each input of a matrix, or -1 of padding: parts of ``numbers`` are padded to whole strips.
typedef std::vector<int> Columns;
Columns columns_in_parts(int numbers, int parts = 1);

typedef std::vector<const Matrix*> Matrices;

// The memory of a model, and what packs its weights into it.
class Packer {
  public:
    // Numbers are bfloat16, or else float32; ``threads`` pack.
    Packer(bool bfloat16, int threads) : bfloat16_(bfloat16), threads_(threads) {}
    // A matrix whose outputs are rows of ``parts``.
    Linear pack(int outputs, const Columns& columns, const Matrices& parts, const RowOf& row);
    float* copy(const float* from, int size);  // padded to whole strips; null of null
    float* fill(int size, const std::function<float(int)>& number);
    void* reserve(size_t bytes);

    std::vector<std::pair<const char*, size_t>> weights;  // where all matrices lie, and their bytes

  private:
    static bool stay_codes(int outputs, const RowOf& row);
    Linear pack_codes(int outputs, const Columns& columns, const Matrices& parts, const RowOf& row);
    void pack_strip(int s, const Columns& columns, int count, const RowOf& row, char* to) const;
    void in_pieces(int count, const Matrices& parts, const std::function<void(int)>& one) const;

    bool bfloat16_;
    int threads_;
    std::vector<std::unique_ptr<Buffer>> memory_;
    char* next_ = nullptr;  // in the last block of memory
    size_t left_ = 0;       // bytes
};

// ``one(i)`` for 0 .. count - 1 on several threads.
void in_parallel(int threads, int count, const std::function<void(int)>& one);
}  // namespace draftwood
