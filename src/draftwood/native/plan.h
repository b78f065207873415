// Which tokens a forward has, and what each of them sees; how it is run.
#pragma once
#include <algorithm>

#include "engine.h"

namespace draftwood {
// All tokens of a forward, and what they point to.
struct Plan {
    std::shared_ptr<Engine> engine;
    std::vector<Token> tokens;
    std::vector<int> path;
    std::vector<std::vector<void*>> pages;
    std::vector<void* const*> lists;
    std::vector<RowStates> states;
    std::vector<float> sources, features;
    int nodes = 0, texts = 0;  // so many of each were added

    explicit Plan(const std::shared_ptr<Engine>& of) : engine(of) {}

    // Take a row's pages, which have room for all new tokens; returns its number.
    int add(Row& row, int slots) {
        row.reserve(slots);
        pages.emplace_back();
        for (auto& page : row.pages()) pages.back().push_back(page.get());
        return pages.size() - 1;
    }

    // A token of the text in ``slot``, which is ``start`` positions further in the text.
    void text(int row, int token, int slot, int start) {
        tokens.push_back({row, known(token), in_context(start + slot), slot, slot + 1, 0, 0, -1, texts++});
    }

    // A token behind a text of ``base`` slots, which sees the tokens behind it for which ``sees(j)``, itself among them.
    template <class F>
    void node(int row, int token, int position, int base, int number, int all, bool scored, F sees) {
        if (!sees(number)) throw std::invalid_argument("a node that does not see itself");
        const int first = path.size();
        for (int j = 0; j < all; j++)
            if (sees(j)) path.push_back(base + j);
        const int seen = (int)path.size() - first;
        if (engine->model().block_numbers && position != base + seen - 1)
            throw std::invalid_argument("layers with a running state need trees: a node sees one token of each depth");
        tokens.push_back({row, token, in_context(position), base + number, base, first, seen, scored ? 0 : -1, nodes++});
    }

    // A token that the model reads.
    int known(int64_t token) const {
        const int all = engine->model().facts.tokens;
        if (token >= 0 && token < all) return token;
        throw std::invalid_argument("token " + std::to_string(token) + " is none of the model's " + std::to_string(all));
    }

    // Beyond a model's context no score is used.
    int in_context(int position) const {
        if (position < 0) throw std::invalid_argument("a position before the text");
        return std::min(position, engine->model().rotary.positions - 1);
    }

    // The tokens are computed in batches of ``size``.
    void finish(size_t size) {
        for (auto& list : pages) lists.push_back(list.data());
        int scored = 0;
        for (size_t i = 0; i < tokens.size(); i++) {
            if (i % size == 0) scored = 0;
            if (tokens[i].scored >= 0) tokens[i].scored = scored++;
            if (tokens[i].seen == 0) tokens[i].state += nodes;  // text comes after all nodes
        }
    }
};

// The tokens of a plan, and what is computed for them: pointers are those of the first token.
struct Step {
    std::shared_ptr<Plan> plan;
    Work work;
    int unit = 1;  // tokens that stay in one batch, as they see each other
};

// Compute these steps one after the other, in one job unless they are long; each goes through all layers in batches of tokens.
void run(std::vector<Step> steps, int threads, float* highest = nullptr, int64_t* best = nullptr);
}  // namespace draftwood
