// The three forwards that Python asks for: of tokens of rows, of a drafter's block, and of a Markov head.
#include "api.h"
#include "plan.h"

int draftwood_read_tokens(const NewTokens* rows, int count, float* logits, float* hidden, float* highest, int64_t* best, int threads) try {
    auto plan = std::make_shared<Plan>(rows[0].row->shared());
    const Model& m = plan->engine->model();
    const bool joins = m.layer->hidden_norm || m.embeds;
    if (!m.head.outputs) throw std::logic_error("a model without a head scores nothing");
    for (int r = 0; r < count; r++) {
        const NewTokens& news = rows[r];
        Row& row = *news.row;
        if (joins != (news.sources || news.features) || (m.embeds && news.features))
            throw std::logic_error("features are for drafters that read them, and no other model");
        if (row.nodes + news.nodes != news.width) throw std::logic_error("the round has another number of nodes");
        const int base = row.text + news.pending, all = row.nodes + news.nodes, number = plan->add(row, base + all);
        plan->states.push_back(row.states(all));
        for (int i = 0; i < news.pending; i++) plan->text(number, news.text[i], row.text + i, 0);
        for (int i = 0; i < news.nodes; i++)
            plan->node(number, plan->known(news.tokens[i]), base + news.depths[i], base, row.nodes + i, all, true,
                       [&](int j) { return news.seen[(size_t)i * all + j]; });
        auto append = [&](std::vector<float>& to, const float* from, int numbers) {
            if (from) to.insert(to.end(), from, from + (size_t)(news.pending + news.nodes) * numbers);
        };
        append(plan->sources, news.sources, given_numbers(m));
        append(plan->features, news.features, m.facts.width);
    }
    Work work{};
    work.logits = logits, work.hidden = hidden;
    if (!plan->sources.empty()) work.sources = plan->sources.data();
    if (!plan->features.empty()) work.features = plan->features.data();
    work.states = plan->states.data();
    try {
        run({{plan, work}}, threads, highest, best);
    } catch (...) {
        for (int r = 0; m.block_numbers && r < count; r++) rows[r].row->cut(0);  // states may lie behind the text
        throw;
    }
    for (int r = 0; r < count; r++) rows[r].row->text += rows[r].pending, rows[r].row->nodes += rows[r].nodes;
    return 0;
} catch (...) {
    return failed();
}

int draftwood_draft_block(const NewHidden* rows, int count, const BlockShape* shape, float* logits, int threads) try {
    if (count < 1) throw std::invalid_argument("a block of no row");
    const std::shared_ptr<Engine>& engine = rows[0].row->shared();
    const Model& m = engine->model();
    if (shape->slots > BATCH) throw std::invalid_argument("a block of more tokens than go through the layers together");
    if (shape->scored < 0 || shape->scored > shape->slots) throw std::invalid_argument("a block that scores more than its tokens");
    auto news = std::make_shared<Plan>(engine), block = std::make_shared<Plan>(engine);
    const size_t source = given_numbers(m);
    for (int r = 0; r < count; r++) {
        const NewHidden& hidden = rows[r];
        const int base = hidden.row->text + hidden.count, slots = shape->slots;
        news->add(*hidden.row, base + slots);
        block->add(*hidden.row, base + slots);
        for (int i = 0; i < hidden.count; i++) news->text(r, 0, hidden.row->text + i, hidden.start);
        news->sources.insert(news->sources.end(), hidden.hidden, hidden.hidden + hidden.count * source);
        for (int i = 0; i < slots; i++)
            block->node(r, i ? -1 : block->known(hidden.root), hidden.start + base + i, base, i, slots, i >= slots - shape->scored,
                        [&](int j) { return j <= i || !shape->causal; });
    }
    Work reading{}, scoring{};
    reading.mode = FEATURES, reading.sources = news->sources.data();
    scoring.mode = SCORES, scoring.mask = shape->mask, scoring.logits = logits;
    run({{news, reading}, {block, scoring, shape->slots}}, threads);
    for (int r = 0; r < count; r++) rows[r].row->text += rows[r].count;
    return 0;
} catch (...) {
    return failed();
}

int draftwood_add_markov(void* model, const int64_t* tokens, const int64_t* depths, int rows, int nodes, const float* scores,
                         int block, float* logits, int threads) try {
    auto plan = std::make_shared<Plan>(*(Handle*)model);
    for (int i = 0; i < rows * nodes; i++) {
        if (depths[i] < 0) throw std::invalid_argument("a depth above the root");
        plan->tokens.push_back({i / nodes, plan->known(tokens[i]), (int)std::min<int64_t>(depths[i], block), 0, 0, 0, 0, 0, 0});
    }
    Work work{};
    work.mode = MARKOV, work.depths = scores, work.block = block, work.logits = logits;
    run({{plan, work}}, threads);
    return 0;
} catch (...) {
    return failed();
}
