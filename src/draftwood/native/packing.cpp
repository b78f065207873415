// Weights in panels, packed while their file is read.
#include "packing.h"

#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <system_error>
#include <thread>

#include "floats.h"

namespace draftwood {
namespace {
const size_t RESERVE = 64u << 20;  // bytes that are reserved together, so that they lie in large pages
const int PAGE_OUT = 21;           // MADV_PAGEOUT, which older headers lack: changed pages of tensors stay
const int PIECE = 256;             // strips or panels after which a file's pages leave the process

// A row of a matrix as numbers of 2 or 4 bytes.
const void* numbers(const Matrix& matrix, size_t row, int columns, size_t bytes, std::vector<float>& room) {
    if (matrix.kind < 0 || matrix.kind == (bytes == 2 ? BFLOAT16 : FLOAT32))
        return (const char*)matrix.data + row * columns * bytes;
    room.resize(columns);
    if (const CodeKind* kind = code_kind(matrix.kind)) {
        const size_t row_bytes = (size_t)(columns / kind->block) * kind->bytes;
        expand_codes(*kind, (const char*)matrix.data + row * row_bytes, columns, room.data());
    } else {
        for (int i = 0; i < columns; i++) room[i] = plain_number(matrix.kind, matrix.data, row * columns + i);
    }
    uint16_t* shorter = (uint16_t*)room.data();
    for (int i = 0; bytes == 2 && i < columns; i++) {
        const uint16_t number = to_bfloat16(room[i]);
        memcpy(shorter + i, &number, 2);
    }
    return room.data();
}

// The pages of a file leave the process; they are read again where they are needed.
void let_go(const Matrix& matrix) {
#ifdef __linux__
    const size_t page = sysconf(_SC_PAGESIZE), start = ((size_t)matrix.data + page - 1) / page * page;
    const size_t end = ((size_t)matrix.data + matrix.mapped) / page * page;
    if (start < end) madvise((void*)start, end - start, matrix.kind < 0 ? PAGE_OUT : MADV_DONTNEED);
#else
    (void)matrix;
#endif
}

bool stays_code(const Matrix& matrix) { return code_kind(matrix.kind) && matrix.flags & CODED; }

// A row becomes an output of a strip.
template <class W>
void pack_row(W* strip, int output, const Columns& columns, int step, const W* row) {
    for (size_t k = 0; k < columns.size(); k++)
        strip[(k / step * STRIP + output) * step + k % step] = columns[k] < 0 ? W(0) : row[columns[k]];
}
}  // namespace

void in_parallel(int threads, int count, const std::function<void(int)>& one) {
    std::vector<std::thread> others;
    auto part = [&](int t) {
        for (int i = (long)count * t / threads; i < (long)count * (t + 1) / threads; i++) one(i);
    };
    int started = 1;
    try {
        for (; started < threads; started++) others.emplace_back(part, started);
    } catch (const std::system_error&) {  // there may be no more threads: the rest is done here
    }
    part(0);
    for (int t = started; t < threads; t++) part(t);
    for (auto& thread : others) thread.join();
}

Columns columns_in_parts(int numbers, int parts) {
    const int padded = padded_to(numbers, STRIP);
    Columns columns(parts * padded);
    for (int k = 0; k < parts * padded; k++) columns[k] = place_in_parts(k, numbers, padded);
    return columns;
}

void expand(const Matrix& matrix, size_t rows, int columns, bool bfloat16, void* to) {
    const size_t bytes = bfloat16 ? 2 : 4;
    std::vector<float> room;
    for (size_t row = 0; row < rows; row++)
        memcpy((char*)to + row * columns * bytes, numbers(matrix, row, columns, bytes, room), columns * bytes);
    let_go(matrix);
}

void* Packer::reserve(size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    if (bytes > left_) {
        left_ = std::max(bytes, RESERVE);
        memory_.push_back(std::make_unique<Buffer>());
        next_ = (char*)memory_.back()->reserve(left_);
    }
    char* start = next_;
    next_ += bytes, left_ -= bytes;
    return start;
}

Linear Packer::pack(int outputs, const Columns& columns, const Matrices& parts, const RowOf& row) {
    const int inputs = columns.size(), strips = outputs / STRIP;
    const int count = std::count_if(columns.begin(), columns.end(), [](int column) { return column >= 0; });
    if (bfloat16_ && count == inputs && stay_codes(outputs, row)) return pack_codes(outputs, columns, parts, row);
    const size_t strip_bytes = (size_t)STRIP * inputs * (bfloat16_ ? 2 : 4);
    char* packed = (char*)reserve(strip_bytes * strips);
    in_pieces(strips, parts, [&](int s) { pack_strip(s, columns, count, row, packed + s * strip_bytes); });
    weights.emplace_back(packed, strip_bytes * strips);
    return {outputs, inputs, packed, nullptr, nullptr};
}

// A strip of numbers.
void Packer::pack_strip(int s, const Columns& columns, int count, const RowOf& row, char* to) const {
    const size_t bytes = bfloat16_ ? 2 : 4;
    memset(to, 0, STRIP * columns.size() * bytes);
    std::vector<float> room;
    for (int output = 0; output < STRIP; output++) {
        const MatrixRow from = row(s * STRIP + output);
        if (!from.matrix) continue;
        const void* all = numbers(*from.matrix, from.row, count, bytes, room);
        if (bfloat16_) pack_row((uint16_t*)to, output, columns, 2, (const uint16_t*)all);
        else pack_row((float*)to, output, columns, 1, (const float*)all);
    }
}

// Whether codes stay codes: some do, and no strip has rows of numbers too.
bool Packer::stay_codes(int outputs, const RowOf& row) {
    bool some = false;
    for (int s = 0; s < outputs; s += STRIP) {
        bool codes = false, numbers = false;
        for (int output = s; output < s + STRIP; output++)
            if (const Matrix* from = row(output).matrix) (stays_code(*from) ? codes : numbers) = true;
        if (codes && numbers) return false;
        some |= codes;
    }
    return some;
}

// The outputs of a panel are rows of one matrix. A panel of padding has the format of its strip's other one; a strip of numbers
// lies in its first panel.
Linear Packer::pack_codes(int outputs, const Columns& columns, const Matrices& parts, const RowOf& row) {
    const int count = outputs / PANEL, inputs = columns.size();
    std::vector<const CodeKind*> kinds(count);  // null: of a strip of numbers
    std::vector<size_t> starts(count + 1);
    for (int p = 0; p < count; p++) {
        const Matrix *own = row(p * PANEL).matrix, *other = row((p ^ 1) * PANEL).matrix, *from = own ? own : other;
        kinds[p] = from && stays_code(*from) ? code_kind(from->kind) : nullptr;
        starts[p + 1] = starts[p] + (kinds[p] ? kinds[p]->format.panel_bytes(inputs) : (size_t)PANEL * inputs * 2);
    }
    uint8_t* codes = (uint8_t*)reserve(starts[count]);
    Panel* panels = (Panel*)reserve(count * sizeof(Panel));
    in_pieces(count, parts, [&](int p) {
        panels[p] = {codes + starts[p], kinds[p] ? &kinds[p]->format : nullptr};
        if (!kinds[p]) {
            if (p % 2 == 0) pack_strip(p / 2, columns, inputs, row, (char*)codes + starts[p]);
            return;
        }
        const uint8_t* rows[PANEL];
        for (int output = 0; output < PANEL; output++) {
            const MatrixRow from = row(p * PANEL + output);
            const size_t row_bytes = (size_t)inputs / kinds[p]->block * kinds[p]->bytes;
            rows[output] = from.matrix ? (const uint8_t*)from.matrix->data + from.row * row_bytes : nullptr;
        }
        pack_panel(*kinds[p], rows, inputs, codes + starts[p]);
    });
    weights.emplace_back((const char*)codes, starts[count]);
    return {outputs, inputs, codes, nullptr, panels};
}

// ``one(i)`` for 0 .. count - 1 on all threads; the pages of the parts leave the process piece by piece.
void Packer::in_pieces(int count, const Matrices& parts, const std::function<void(int)>& one) const {
    for (int i = 0; i < count; i += PIECE) {
        in_parallel(threads_, std::min(count - i, PIECE), [&](int j) { one(i + j); });
        for (const Matrix* part : parts) let_go(*part);
    }
}

float* Packer::copy(const float* from, int size) {
    if (!from) return nullptr;
    return fill(padded_to(size, STRIP), [&](int i) { return i < size ? from[i] : 0.f; });
}

float* Packer::fill(int size, const std::function<float(int)>& number) {
    float* to = (float*)reserve(sizeof(float) * size);
    for (int i = 0; i < size; i++) to[i] = number(i);
    return to;
}
}  // namespace draftwood
