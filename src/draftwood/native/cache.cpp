// The KV cache: pages of rows, which rows share until one of them writes.
#include <string.h>

#include <algorithm>

#include "engine.h"
#include "page.h"

namespace draftwood {
namespace {
const size_t SPARE = 32u << 20;  // bytes of free pages that an engine keeps, at most

// Memory of its engine, which the rows that hold it keep.
struct Page {
    explicit Page(Engine& of) : engine(of), buffer(of.take_page()) {}
    ~Page() { engine.free_page(std::move(buffer)); }
    Engine& engine;
    std::unique_ptr<Buffer> buffer;
};

// Keys and values of a token, from a slot of a page to one of another.
template <class W>
void move_token(const char* from_page, char* to_page, int from, int to, const Model& m, int step) {
    for (int l = 0; l < m.facts.layers; l++) {
        const Layer& layer = m.layer[l];
        const int dim = layer.dim;
        for (int h = 0; layer.kind == ATTENTION && !layer.borrows && h < layer.kv_heads; h++) {
            const size_t at = head_at(layer, h);
            const W* keys = (const W*)from_page + at;
            W* to_keys = (W*)to_page + at;
            for (int i = 0; i < dim; i++) {
                to_keys[key_at(to, i, dim, step)] = keys[key_at(from, i, dim, step)];
                to_keys[head_size(dim) + value_at(to, i, dim, step)] = keys[head_size(dim) + value_at(from, i, dim, step)];
            }
        }
    }
}
}  // namespace

std::unique_ptr<Buffer> Engine::take_page() {
    std::unique_ptr<Buffer> page = std::make_unique<Buffer>();
    {
        std::lock_guard<std::mutex> lock(freeing_);
        if (!free_.empty()) page = std::move(free_.back()), free_.pop_back();
    }
    page->reserve(page_bytes());
    pages_++;
    return page;
}

void Engine::free_page(std::unique_ptr<Buffer> page) {
    pages_--;
    std::lock_guard<std::mutex> lock(freeing_);
    if ((free_.size() + 1) * Buffer::whole(page_bytes()) > SPARE) return;
    try {
        free_.push_back(std::move(page));
    } catch (const std::bad_alloc&) {  // it goes back to the system
    }
}

std::shared_ptr<char> Row::new_page() const {
    auto memory = std::make_shared<Page>(*engine_);
    const size_t bytes = engine_->page_bytes();
    char* page = (char*)memory->buffer->reserve(bytes);
    memset(page, 0, bytes);  // what nobody has written is multiplied by 0, and must be a number
    return {memory, page};
}

Row::Row(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {
    if (engine_->model().block_numbers) states_ = std::make_unique<States>(*engine_);
}

Row::Row(const Row& other, int length) : engine_(other.engine_) {
    if (length < 0 || length > other.text) throw std::invalid_argument("a fork of more tokens than the row holds");
    text = length = other.reach(length);
    if (length) written_ = other.written();
    if (other.states_ && length) states_ = std::make_unique<States>(*other.states_, written_, length);
    else if (other.states_) states_ = std::make_unique<States>(*engine_);
    pages_.assign(other.pages_.begin(), other.pages_.begin() + (length + PAGE - 1) / PAGE);
    if (length % PAGE) own(length / PAGE);
}

int Row::reach(int length) const { return !states_ || states_->hold(written(), length) ? length : 0; }

void Row::own(int page) {
    if (pages_[page].use_count() == 1) return;
    std::shared_ptr<char> copied = new_page();
    memcpy(copied.get(), pages_[page].get(), engine_->page_bytes());
    pages_[page] = copied;
}

void Row::cut(int length) {
    if (length < 0) throw std::invalid_argument("a text of fewer than 0 tokens");
    if (length < text) *this = Row(*this, length);  // whose states are of these tokens alone
    nodes = 0;
    pages_.resize(std::min((int)pages_.size(), (text + PAGE - 1) / PAGE));
    if (text % PAGE) own(text / PAGE);
}

void Row::reserve(int slots) { while ((int)pages_.size() * PAGE < slots) pages_.push_back(new_page()); }

void Row::restore(int length) {
    reserve(text = length);
    if (states_) states_ = std::make_unique<States>(*engine_, length);
}

std::pair<void*, long> Row::part(int index) {
    if (states_ && index < States::PARTS) return states_->part(text, index);
    const size_t page = index - (states_ ? States::PARTS : 0);
    if (page >= pages_.size()) return {nullptr, -1};
    return {pages_[page].get(), engine_->page_bytes()};
}

void Row::move(int from, int to) {
    const Model& m = engine_->model();
    char *source = pages_[from / PAGE].get(), *target = pages_[to / PAGE].get();
    if (m.facts.bfloat16) move_token<uint16_t>(source, target, from % PAGE, to % PAGE, m, 2);
    else move_token<float>(source, target, from % PAGE, to % PAGE, m, 1);
}

void Row::commit(const int* kept, int count) {
    for (int i = 0; i < count; i++)
        if (kept[i] < i || kept[i] >= nodes) throw std::invalid_argument("a node that the round does not have");
    for (int i = 0; i < count; i++)
        if (kept[i] != i) move(text + kept[i], text + i);
    if (states_) states_->commit(text, kept, count);
    text += count, nodes = 0;
}
}  // namespace draftwood
