// The KV cache: pages of rows, which rows share until one of them writes.
#include <string.h>

#include <algorithm>

#include "engine.h"
#include "page.h"
#include "states.h"

namespace draftwood {
namespace {
const size_t SPARE = 32u << 20;  // bytes of free pages that an engine keeps, at most

// Keys and values of a token, from a slot of a page to one of another.
template <class W>
void move_token(const W* from_page, W* to_page, int from, int to, const Model& m, int step) {
    for (const Layer* layer = m.layer; layer < m.layer + m.facts.layers; layer++)
        for (int h = 0; layer->kind == ATTENTION && !layer->borrows && h < layer->kv_heads; h++)
            for (int i = 0, dim = layer->dim; i < dim; i++) {
                const size_t keys = head_at(*layer, h), values = keys + head_size(dim);
                to_page[keys + key_at(to, i, dim, step)] = from_page[keys + key_at(from, i, dim, step)];
                to_page[values + value_at(to, i, dim, step)] = from_page[values + value_at(from, i, dim, step)];
            }
}
}  // namespace

std::shared_ptr<char> Engine::new_page() {
    std::unique_ptr<Buffer> memory = std::make_unique<Buffer>();
    {
        std::lock_guard<std::mutex> lock(freeing_);
        if (!free_.empty()) memory = std::move(free_.back()), free_.pop_back();
    }
    void* page = memset(memory->reserve(page_bytes()), 0, page_bytes());  // unwritten numbers are multiplied by 0
    pages_++;
    return {(char*)page, [this, kept = memory.release()](char*) {
        std::unique_ptr<Buffer> own(kept);
        pages_--;
        std::lock_guard<std::mutex> lock(freeing_);
        if ((free_.size() + 1) * Buffer::whole(page_bytes()) > SPARE) return;
        try {
            free_.push_back(std::move(own));
        } catch (const std::bad_alloc&) {  // it goes back to the system
        }
    }};
}

Row::Row(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {
    if (engine_->model().block_numbers) states_ = std::make_unique<States>(*engine_, 0);
}

Row::Row(const Row& other, int length) : engine_(other.engine_) {
    if (length < 0 || length > other.text) throw std::invalid_argument("a fork of more tokens than the row holds");
    text = length = other.reach(length);
    if (length) written_ = other.written();
    const States* from = length ? other.states_.get() : nullptr;
    if (other.states_) states_ = std::make_unique<States>(*engine_, from ? from->source(written_, length) : 0, from);
    pages_.assign(other.pages_.begin(), other.pages_.begin() + (length + PAGE - 1) / PAGE);
}

int Row::reach(int length) const { return !states_ || states_->source(written(), length) >= 0 ? length : 0; }

void Row::own(int page) {
    if (pages_[page].use_count() == 1) return;
    std::shared_ptr<char> copied = engine_->new_page();
    memcpy(copied.get(), pages_[page].get(), engine_->page_bytes());
    pages_[page] = copied;
}

void Row::cut(int length) {
    if (length < 0) throw std::invalid_argument("a text of fewer than 0 tokens");
    if (length < text) *this = Row(*this, length);  // whose states are of these tokens alone
    nodes = 0;
    pages_.resize(std::min((int)pages_.size(), (text + PAGE - 1) / PAGE));
}

void Row::reserve(int slots) {
    if (text % PAGE) own(text / PAGE);
    while ((int)pages_.size() * PAGE < slots) pages_.push_back(engine_->new_page());
}

void Row::restore(int length) {
    reserve(length), text = length;
    if (states_) states_ = std::make_unique<States>(*engine_, checkpoint_of(length - 1));
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
    if (m.facts.bfloat16) move_token((uint16_t*)source, (uint16_t*)target, from % PAGE, to % PAGE, m, 2);
    else move_token((float*)source, (float*)target, from % PAGE, to % PAGE, m, 1);
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
