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

// The matrix of an output; null of padding, and of zeros.
const Matrix* matrix_of(const Output& output) {
    return output.segment && output.segment->matrix->data ? output.segment->matrix : nullptr;
}

// Its row there. llama.cpp rotates neighbours, this engine numbers half a head apart.
size_t row_of(const Output& output) {
    const Segment& from = *output.segment;
    const size_t row = from.first + (size_t)output.number * from.step, half = from.size / 2;
    return from.matrix->flags & INTERLEAVED ? row / (2 * half) * 2 * half + row % half * 2 + row / half % 2 : row;
}

bool stays_code(const Matrix& matrix) { return code_kind(matrix.kind) && matrix.flags & CODED; }

// Whether codes stay codes: some do, and no strip has rows of numbers too.
bool stay_codes(const Outputs& outputs) {
    bool some = false;
    for (size_t s = 0; s < outputs.size(); s += STRIP) {
        bool codes = false, numbers = false;
        for (size_t output = s; output < s + STRIP; output++)
            if (const Matrix* from = matrix_of(outputs[output])) (stays_code(*from) ? codes : numbers) = true;
        if (codes && numbers) return false;
        some |= codes;
    }
    return some;
}

// A row becomes an output of a strip.
template <class W>
void pack_row(W* strip, int output, const Columns& columns, int step, const W* row) {
    for (int part = 0, k = 0; part < columns.parts; part++, k = part * columns.padded())
        for (int i = 0; i < columns.numbers; i++, k++) strip[(k / step * STRIP + output) * step + k % step] = *row++;
}
}  // namespace

Outputs outputs_of(const Segments& segments, bool take_turns) {
    int all = 0, first = 0;
    for (const Segment& one : segments) all += one.parts * one.padded;
    const int turns = take_turns ? segments[0].padded : 0;
    Outputs outputs(padded_to(all, STRIP));
    for (const Segment& one : segments)
        for (int part = 0; part < one.parts; part++, first += one.padded)
            for (int i = 0; i < one.size; i++) {
                int at = first + i;
                if (at < 2 * turns) at = at % turns / LANES * STRIP + at / turns * LANES + at % LANES;
                outputs[at] = {&one, part * one.stride + i};
            }
    return outputs;
}

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

Linear Packer::pack(const Segments& segments, const Columns& columns, bool take_turns) {
    const Outputs outputs = outputs_of(segments, take_turns);
    const int inputs = columns.inputs(), count = outputs.size();
    Linear packed{};
    if (bfloat16_ && columns.all() == inputs && stay_codes(outputs)) {
        packed = pack_codes(segments, outputs, inputs);
    } else {
        const size_t strip_bytes = (size_t)STRIP * inputs * (bfloat16_ ? 2 : 4), bytes = strip_bytes * (count / STRIP);
        char* to = (char*)reserve(bytes);
        in_pieces(count / STRIP, segments, [&](int s) { pack_strip(&outputs[s * STRIP], columns, to + s * strip_bytes); });
        weights.emplace_back(to, bytes);
        packed = {count, inputs, to, nullptr, nullptr};
    }
    const auto has_bias = [](const Segment& one) { return one.bias != nullptr; };
    if (std::any_of(segments.begin(), segments.end(), has_bias))
        packed.bias = fill(count, [&](int i) {
            const Segment* from = outputs[i].segment;
            return from && from->bias ? from->bias[outputs[i].number] : 0.f;
        });
    return packed;
}

// A strip of numbers.
void Packer::pack_strip(const Output* outputs, const Columns& columns, char* to) const {
    const size_t bytes = bfloat16_ ? 2 : 4;
    memset(to, 0, STRIP * columns.inputs() * bytes);
    std::vector<float> room;
    for (int output = 0; output < STRIP; output++) {
        const Matrix* from = matrix_of(outputs[output]);
        if (!from) continue;
        const void* all = numbers(*from, row_of(outputs[output]), columns.all(), bytes, room);
        if (bfloat16_) pack_row((uint16_t*)to, output, columns, 2, (const uint16_t*)all);
        else pack_row((float*)to, output, columns, 1, (const float*)all);
    }
}

// The outputs of a panel are rows of one matrix. A panel of padding has the format of its strip's other one; a strip of numbers
// lies in its first panel.
Linear Packer::pack_codes(const Segments& segments, const Outputs& outputs, int inputs) {
    const int count = outputs.size() / PANEL;
    std::vector<const CodeKind*> kinds(count);  // null: of a strip of numbers
    std::vector<size_t> starts(count + 1);
    for (int p = 0; p < count; p++) {
        const Matrix *own = matrix_of(outputs[p * PANEL]), *from = own ? own : matrix_of(outputs[(p ^ 1) * PANEL]);
        kinds[p] = from && stays_code(*from) ? code_kind(from->kind) : nullptr;
        starts[p + 1] = starts[p] + (kinds[p] ? kinds[p]->format.panel_bytes(inputs) : (size_t)PANEL * inputs * 2);
    }
    uint8_t* codes = (uint8_t*)reserve(starts[count]);
    Panel* panels = (Panel*)reserve(count * sizeof(Panel));
    in_pieces(count, segments, [&](int p) {
        panels[p] = {codes + starts[p], kinds[p] ? &kinds[p]->format : nullptr};
        if (!kinds[p]) {
            if (p % 2 == 0) pack_strip(&outputs[p * PANEL], {inputs}, (char*)codes + starts[p]);
            return;
        }
        const uint8_t* rows[PANEL];
        for (int i = 0; i < PANEL; i++) {
            const Matrix* from = matrix_of(outputs[p * PANEL + i]);
            const size_t row_bytes = (size_t)inputs / kinds[p]->block * kinds[p]->bytes;
            rows[i] = from ? (const uint8_t*)from->data + row_of(outputs[p * PANEL + i]) * row_bytes : nullptr;
        }
        pack_panel(*kinds[p], rows, inputs, codes + starts[p]);
    });
    weights.emplace_back((const char*)codes, starts[count]);
    return {(int)outputs.size(), inputs, codes, nullptr, panels};
}

// ``one(i)`` for 0 .. count - 1 on all threads; the pages of the matrices leave the process piece by piece.
void Packer::in_pieces(int count, const Segments& segments, const std::function<void(int)>& one) const {
    for (int i = 0; i < count; i += PIECE) {
        in_parallel(threads_, std::min(count - i, PIECE), [&](int j) { one(i + j); });
        for (const Segment& from : segments) let_go(*from.matrix);
    }
}

float* Packer::copy(const float* from, int numbers, int parts) {
    if (!from) return nullptr;
    const int padded = padded_to(numbers, STRIP);
    return fill(parts * padded, [&](int i) { return i % padded < numbers ? from[i / padded * numbers + i % padded] : 0.f; });
}

float* Packer::fill(int size, const std::function<float(int)>& number) {
    float* to = (float*)reserve(sizeof(float) * size);
    for (int i = 0; i < size; i++) to[i] = number(i);
    return to;
}
}  // namespace draftwood
