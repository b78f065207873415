#include "engine.h"

#include <math.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <new>
#include <system_error>
#include <thread>

#include "codes.h"

namespace draftwood {
namespace {

const size_t BLOCK = 64u << 20;  // bytes
const int PAGE_OUT = 21;         // MADV_PAGEOUT, which older headers lack: changed pages of tensors stay
const int PIECE = 256;           // groups or panels after which a file's pages leave the process

// Memory that counts itself; the rows that hold it keep their engine.
struct Page {
    explicit Page(std::atomic<long>& count) : count(count) { count++; }
    ~Page() { count--; }
    std::atomic<long>& count;
    Buffer buffer;
};

int padded(int number, int unit) { return (number + unit - 1) / unit * unit; }

// ``one(i)`` for 0 .. count - 1 on several threads.
template <class F>
void in_parallel(int threads, int count, F one) {
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

uint16_t rounded(float number) {
    uint32_t bits;
    memcpy(&bits, &number, 4);
    return number == number ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : 0x7fc0;
}

// A row of a matrix as numbers of 2 or 4 bytes.
const void* numbers(const Matrix& matrix, size_t row, int columns, size_t bytes, std::vector<float>& room) {
    if (matrix.kind < 0 || matrix.kind == (bytes == 2 ? BFLOAT16 : FLOAT32)) return (const char*)matrix.data + row * columns * bytes;
    room.resize(columns);
    if (const CodeKind* kind = code_kind(matrix.kind)) {
        expand_codes(*kind, (const char*)matrix.data + row * (columns / kind->block) * kind->bytes, columns, room.data());
    } else {
        for (int i = 0; i < columns; i++) room[i] = plain_number(matrix.kind, matrix.data, row * columns + i);
    }
    uint16_t* shorter = (uint16_t*)room.data();
    for (int i = 0; bytes == 2 && i < columns; i++) {
        uint16_t number = rounded(room[i]);
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
#endif
}

template <class W, class C>
void pack_row(W* to, int lane, int inputs, int step, const W* row, C column) {
    for (int k = 0; k < inputs; k++) {
        int from = column(k);
        to[(k / step * GROUP + lane) * step + k % step] = from < 0 ? W(0) : row[from];
    }
}

// A matrix in the model's format.
Matrix plain(const void* from) { return {from, -1, 0, 0}; }

// The rows of a matrix, one for each output.
auto rows_of(const Matrix& matrix, int rows) {
    return [=, &matrix](int output) { return MatrixRow{output < rows ? &matrix : nullptr, (size_t)output}; };
}

// The places of inputs in parts of so many numbers, each padded at the end.
auto in_parts(int numbers, int padded) {
    return [=](int k) { return k < numbers ? k : k % padded < numbers ? k / padded * numbers + k % padded : -1; };
}

}  // namespace

void expand(const Matrix& matrix, size_t rows, int columns, bool bfloat16, void* to) {
    const size_t bytes = bfloat16 ? 2 : 4;
    std::vector<float> room;
    for (size_t row = 0; row < rows; row++)
        memcpy((char*)to + row * columns * bytes, numbers(matrix, row, columns, bytes, room), columns * bytes);
    let_go(matrix);
}

void* Engine::reserve(size_t bytes) {
    // Parts of large blocks, which lie in large pages.
    bytes = (bytes + 63) / 64 * 64;
    if (bytes > left_) {
        size_t block = std::max(bytes, BLOCK);
        memory_.push_back(std::make_unique<Buffer>());
        next_ = (char*)memory_.back()->reserve(block), left_ = block;
    }
    char* found = next_;
    next_ += bytes, left_ -= bytes;
    return found;
}

// ``source(output)`` is the row of an output; ``column(k)`` the place of an input in it, or -1.
template <class S, class C>
Linear Engine::pack(int outputs, int inputs, int columns, std::initializer_list<const Matrix*> parts, S source, C column) {
    bool codes = model_.facts.bfloat16 && columns == inputs;  // codes stay codes if no input is padded
    for (const Matrix* part : parts) codes = codes && code_kind(part->kind) && part->flags & CODED;
    if (codes) return pack_panels(outputs, inputs, **parts.begin(), parts, source);
    const size_t group = (size_t)GROUP * inputs * number_bytes_;
    const int groups = outputs / GROUP;
    char* weights = (char*)reserve(group * groups);
    in_pieces(groups, parts, [&](int g) {
        char* place = (char*)memset(weights + g * group, 0, group);
        std::vector<float> room;
        for (int lane = 0; lane < GROUP; lane++) {
            const MatrixRow from = source(g * GROUP + lane);
            if (!from.matrix) continue;
            const void* row = numbers(*from.matrix, from.row, columns, number_bytes_, room);
            if (model_.facts.bfloat16) pack_row((uint16_t*)place, lane, inputs, 2, (const uint16_t*)row, column);
            else pack_row((float*)place, lane, inputs, 1, (const float*)row, column);
        }
    });
    weights_.emplace_back(weights, group * groups);
    return {outputs, inputs, weights, nullptr, nullptr};
}

// The outputs of a panel are rows of one matrix; those of a panel of padding have the format of ``any``.
template <class S>
Linear Engine::pack_panels(int outputs, int inputs, const Matrix& any, std::initializer_list<const Matrix*> parts, S source) {
    const int count = outputs / PANEL;
    std::vector<const CodeKind*> kinds(count);
    std::vector<size_t> starts(count + 1);
    for (int p = 0; p < count; p++) {
        const MatrixRow from = source(p * PANEL);
        kinds[p] = code_kind((from.matrix ? *from.matrix : any).kind);
        starts[p + 1] = starts[p] + kinds[p]->format.panel_bytes(inputs);
    }
    uint8_t* codes = (uint8_t*)reserve(starts[count]);
    Panel* panels = (Panel*)reserve(count * sizeof(Panel));
    in_pieces(count, parts, [&](int p) {
        const uint8_t* rows[PANEL];
        for (int output = 0; output < PANEL; output++) {
            const MatrixRow from = source(p * PANEL + output);
            const size_t row_bytes = (size_t)inputs / kinds[p]->block * kinds[p]->bytes;
            rows[output] = from.matrix ? (const uint8_t*)from.matrix->data + from.row * row_bytes : nullptr;
        }
        pack_panel(*kinds[p], rows, inputs, codes + starts[p]);
        panels[p] = {codes + starts[p], &kinds[p]->format};
    });
    weights_.emplace_back((const char*)codes, starts[count]);
    return {outputs, inputs, codes, nullptr, panels};
}

// ``one(i)`` for 0 .. count - 1 on all threads; the pages of the parts leave the process piece by piece.
template <class F>
void Engine::in_pieces(int count, std::initializer_list<const Matrix*> parts, F one) const {
    for (int i = 0; i < count; i += PIECE) {
        in_parallel(threads_, std::min(count - i, PIECE), [&](int j) { one(i + j); });
        for (const Matrix* part : parts) let_go(*part);
    }
}

// The embedding stays where it is, unless it is in another format.
void Engine::embed(const Matrix& embedding) {
    Model& m = model_;
    const bool codes = code_kind(embedding.kind) && embedding.flags & CODED && m.facts.bfloat16;
    m.embedding = embedding.data, m.embedding_codes = codes ? code_kind(embedding.kind) : nullptr;
    if (codes || embedding.kind < 0 || embedding.kind == (m.facts.bfloat16 ? BFLOAT16 : FLOAT32)) return;
    void* to = reserve((size_t)m.facts.tokens * m.facts.width * number_bytes_);
    expand(embedding, m.facts.tokens, m.facts.width, m.facts.bfloat16, to);
    m.embedding = to;
}

float* Engine::copy(const float* from, int size, int padded) {
    if (!from) return nullptr;
    float* to = (float*)reserve(4 * padded);
    memset(to, 0, 4 * padded);
    memcpy(to, from, 4 * size);
    return to;
}

template <class F>
float* Engine::bias(int outputs, F of) {
    float* to = (float*)reserve(4 * outputs);
    for (int o = 0; o < outputs; o++) to[o] = of(o);
    return to;
}

Engine::Engine(const Facts& facts, const int* taps, const Matrix& embedding, const Matrix& head, const float* norm,
               const LayerSource* layers, int threads)
    : number_bytes_(facts.bfloat16 ? 2 : 4), threads_(threads), taps_(taps, taps + facts.taps) {
    Model& m = model_;
    m.facts = facts;
    for (float* factor : {&m.facts.embedding_scale, &m.facts.residual_scale, &m.facts.logit_divisor})
        if (!*factor) *factor = 1;
    int width = m.padded_width = padded(facts.width, GROUP), dim = m.padded_dim = padded(facts.head_dim, GROUP);
    m.padded_inner = std::max(padded(facts.inner, GROUP), facts.chosen * padded(facts.expert_inner, GROUP));
    if (facts.experts > EXPERTS) throw std::invalid_argument("a mixture of more than 512 experts");
    if (facts.kv_heads < 1 || facts.heads % facts.kv_heads || facts.rotary_dim > facts.head_dim || facts.chosen > facts.experts)
        throw std::invalid_argument("numbers of heads, of rotated numbers or of experts that do not fit together");
    m.tap = taps_.data();
    m.page_numbers = (size_t)facts.layers * facts.kv_heads * 2 * PAGE * dim;
    m.norm = copy(norm, facts.width, width);
    // Heads are padded one by one: an output or input of all heads is one of a head, or none.
    auto in_head = in_parts(facts.head_dim, dim), in_half = in_parts(facts.width, width);
    for (int l = 0; l < facts.layers; l++) {
        const LayerSource& s = layers[l];
        Layer to{};
        struct Part {
            const Matrix* matrix;
            const float* bias;
            int heads;
        } parts[] = {{&s.query, s.query_bias, facts.heads}, {&s.key, s.key_bias, facts.kv_heads}, {&s.value, s.value_bias, facts.kv_heads}};
        auto part_of = [&](int& output) {
            for (Part& part : parts) {
                if (output < part.heads * dim) return part;
                output -= part.heads * dim;
            }
            throw std::logic_error("an output of no head");
        };
        int outputs = (facts.heads + 2 * facts.kv_heads) * dim, halves = s.hidden_norm ? 2 : 1;
        to.qkv = pack(outputs, halves * width, halves * facts.width, {&s.query, &s.key, &s.value}, [&](int output) {
            Part part = part_of(output);
            int at = in_head(output), half = facts.head_dim / 2;
            if (at < 0) return MatrixRow{};
            if (part.matrix->flags & INTERLEAVED) at = at / (2 * half) * 2 * half + at % half * 2 + at / half % 2;
            return MatrixRow{part.matrix, (size_t)at};
        }, in_half);
        if (s.query_bias || s.key_bias || s.value_bias) to.qkv.bias = bias(outputs, [&](int output) {
            Part part = part_of(output);
            int at = in_head(output);
            return at < 0 || !part.bias ? 0.f : part.bias[at];
        });
        to.out = pack(width, facts.heads * dim, facts.heads * facts.head_dim, {&s.out}, rows_of(s.out, facts.width), in_head);
        to.out.bias = copy(s.out_bias, facts.width, width);
        auto pack_up = [&](const Matrix& gate, const Matrix& up, int inner) {
            return pack(2 * padded(inner, GROUP), width, facts.width, {&gate, &up}, [&](int output) {
                int at = output / GROUP * LANES + output % LANES;
                return MatrixRow{at >= inner ? nullptr : output % GROUP < LANES ? &gate : &up, (size_t)at};
            }, in_half);
        };
        auto pack_down = [&](const Matrix& from, int inner) {
            int all = padded(inner, GROUP);
            return pack(width, all, inner, {&from}, rows_of(from, facts.width), in_parts(inner, all));
        };
        if (s.router) {
            const Matrix router = plain(s.router);
            to.router = pack(padded(facts.experts, GROUP), width, facts.width, {&router}, rows_of(router, facts.experts), in_half);
            Linear* of = (Linear*)reserve(2 * facts.experts * sizeof(Linear));
            to.experts_up = of, to.experts_down = of + facts.experts;
            const size_t size = (size_t)facts.width * facts.expert_inner * number_bytes_;
            for (int e = 0; e < facts.experts; e++) {
                const char* gate = (const char*)s.experts_up + 2 * e * size;
                of[e] = pack_up(plain(gate), plain(gate + size), facts.expert_inner);
                of[facts.experts + e] = pack_down(plain((const char*)s.experts_down + e * size), facts.expert_inner);
            }
        } else {
            to.gate_up = pack_up(s.gate, s.up, facts.inner), to.down = pack_down(s.down, facts.inner);
        }
        if (s.gate_bias || s.up_bias) to.gate_up.bias = bias(to.gate_up.outputs, [&](int output) {
            const float* part = output % GROUP < LANES ? s.gate_bias : s.up_bias;
            int at = output / GROUP * LANES + output % LANES;
            return part && at < facts.inner ? part[at] : 0.f;
        });
        to.down.bias = copy(s.down_bias, facts.width, width);
        to.norm = copy(s.norm, facts.width, width), to.ffn_norm = copy(s.ffn_norm, facts.width, width);
        to.out_norm = copy(s.out_norm, facts.width, width), to.down_norm = copy(s.down_norm, facts.width, width);
        auto head_norm = [&](const float* from, int heads) {
            return !from ? nullptr : bias((facts.joint_norms ? heads : 1) * dim, [&](int i) {
                return in_head(i) < 0 ? 0.f : from[in_head(i)];
            });
        };
        to.query_norm = head_norm(s.query_norm, facts.heads), to.key_norm = head_norm(s.key_norm, facts.kv_heads);
        to.hidden_norm = copy(s.hidden_norm, facts.width, width);
        to.window = s.window, to.rotary = s.rotary;
        layers_.push_back(to);
    }
    m.layer = layers_.data();
    m.head = pack(padded(facts.vocab, GROUP), width, facts.width, {&head}, rows_of(head, facts.vocab), in_half);
    embed(embedding);
}

void Engine::drafter(const DrafterSource& source) {
    if (source.sources > LANES) throw std::invalid_argument("a drafter of hidden states of more than 16 layers");
    Model& m = model_;
    int numbers = source.sources * source.source_width;
    m.sources = source.sources, m.source_width = source.source_width, m.norm_sources = source.norm_sources;
    m.norm_residual = source.norm_residual, m.source_epsilon = source.source_epsilon, m.rank = source.rank;
    auto packed = [&](const void* from, int outputs, int inputs) {
        const Matrix matrix = plain(from);
        const int all = padded(inputs, GROUP);
        return pack(padded(outputs, GROUP), all, inputs, {&matrix}, rows_of(matrix, outputs), in_parts(inputs, all));
    };
    m.features = packed(source.features, m.facts.width, numbers);
    m.source_norm = copy(source.source_norm, numbers, numbers);
    m.feature_norm = copy(source.feature_norm, m.facts.width, m.padded_width);
    m.markov_embedding = source.markov_in;
    if (source.rank) m.markov = packed(source.markov_out, m.facts.vocab, source.rank);
}

void Engine::rotate(const float* cos, const float* sin, int tables, int positions) {
    size_t size = (size_t)tables * positions * (model_.facts.rotary_dim / 2);
    for (const Layer& layer : layers_)
        if (layer.rotary >= tables) throw std::invalid_argument("fewer tables of rotations than the layers use");
    cos_.assign(cos, cos + size);
    sin_.assign(sin, sin + size);
    model_.rotary = {cos_.data(), sin_.data(), positions};
}

long Engine::read(int threads) const {
    std::atomic<long> found{0};
    in_parallel(threads, threads, [&](int t) {
        long sum[8] = {0};
        for (auto& [start, bytes] : weights_) {
            const long* words = (const long*)start;
            size_t count = bytes / 64, from = count * t / threads, to = count * (t + 1) / threads;
            for (size_t i = from; i < to; i++)
                for (int j = 0; j < 8; j++) sum[j] ^= words[8 * i + j];
        }
        for (long part : sum) found += part;
    });
    return found;
}

std::shared_ptr<char> Row::new_page() const {
    auto memory = std::make_shared<Page>(engine_->pages);
    size_t bytes = engine_->page_bytes();
    char* page = (char*)memory->buffer.reserve(bytes);
    memset(page, 0, bytes);  // what nobody has written is multiplied by 0, and must be a number
    return {memory, page};
}

Row::Row(const Row& other, int length) : text(length), engine_(other.engine_) {
    if (length < 0 || length > other.text) throw std::invalid_argument("a fork of more tokens than the row holds");
    pages_.assign(other.pages_.begin(), other.pages_.begin() + (length + PAGE - 1) / PAGE);
    if (length % PAGE) own(length / PAGE);
}

void Row::own(int page) {
    if (pages_[page].use_count() == 1) return;
    std::shared_ptr<char> copied = new_page();
    memcpy(copied.get(), pages_[page].get(), engine_->page_bytes());
    pages_[page] = copied;
}

void Row::cut(int length) {
    if (length < 0) throw std::invalid_argument("a text of fewer than 0 tokens");
    text = std::min(text, length), nodes = 0;
    pages_.resize(std::min((int)pages_.size(), (text + PAGE - 1) / PAGE));
    if (text % PAGE) own(text / PAGE);
}

void Row::reserve(int slots) {
    while ((int)pages_.size() * PAGE < slots) pages_.push_back(new_page());
}

template <class W>
static void move_numbers(char* from_page, char* to_page, int from, int to, const Model& m, int step) {
    int dim = m.padded_dim;
    for (int part = 0; part < m.facts.layers * m.facts.kv_heads; part++) {
        W *source = (W*)from_page + (size_t)part * 2 * PAGE * dim, *target = (W*)to_page + (size_t)part * 2 * PAGE * dim;
        auto key = [&](W* keys, int slot, int i) -> W& {
            return keys[slot / LANES * LANES * dim + i / step * LANES * step + slot % LANES * step + i % step];
        };
        auto value = [&](W* keys, int slot, int i) -> W& {
            return keys[PAGE * dim + slot / step * dim * step + i * step + slot % step];
        };
        for (int i = 0; i < dim; i++) key(target, to, i) = key(source, from, i), value(target, to, i) = value(source, from, i);
    }
}

void Row::move(int from, int to) {
    char *source = pages_[from / PAGE].get(), *target = pages_[to / PAGE].get();
    if (engine_->model().facts.bfloat16) move_numbers<uint16_t>(source, target, from % PAGE, to % PAGE, engine_->model(), 2);
    else move_numbers<float>(source, target, from % PAGE, to % PAGE, engine_->model(), 1);
}

void Row::commit(const int* kept, int count) {
    for (int i = 0; i < count; i++)
        if (kept[i] < i || kept[i] >= nodes) throw std::invalid_argument("a node that the round does not have");
    for (int i = 0; i < count; i++)
        if (kept[i] != i) move(text + kept[i], text + i);
    text += count, nodes = 0;
}

}  // namespace draftwood
