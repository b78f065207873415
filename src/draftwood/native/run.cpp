// A forward as jobs: its batches of tokens, and the memory that threads need for them.
#include <math.h>

#include "plan.h"

namespace draftwood {
namespace {
const size_t BATCHES = 32;  // of a job, at most

// What the batches of a job need at most.
struct Sizes {
    int slots = 0;   // of the longest row
    int tail = 0;    // tokens of a round that a node sees, and one
    int scored = 0;  // tokens of all batches
};

// Parts of one piece of memory, of numbers of 4 bytes: they are named one by one, then placed.
class Parts {
  public:
    template <class T>
    void add(T*& part, size_t numbers) {
        place_.push_back([&part, at = numbers_](float* start) { part = (T*)(start + at); });
        numbers_ += (numbers + 31) / 16 * 16;
    }
    void place(Buffer& memory) const {
        float* start = (float*)memory.reserve(sizeof(float) * numbers_);
        for (auto& one : place_) one(start);
    }

  private:
    std::vector<std::function<void(float*)>> place_;
    size_t numbers_ = 0;
};

// Numbers of inputs and outputs of a token's products, at most.
struct Widths {
    explicit Widths(const Model& m)
        : residual(m.padded_width), heads((size_t)m.facts.heads * m.padded_dim),
          qkv(m.most_outputs), mixed(m.channels + 2 * padded_to(m.facts.value_heads, LANES)),
          attended(std::max({heads, residual, (size_t)m.facts.value_heads * m.padded_value})),
          inner(std::max({m.padded_inner, m.features.inputs, m.markov.inputs, m.layer->qkv.inputs, m.layer->input_gate.outputs})),
          choices(m.facts.experts_per_token), layer_inputs(m.layer_projection.outputs) {}
    const size_t residual, heads, qkv, mixed, attended, inner, choices, layer_inputs;
};

void reserve_shared(Job& job, const Model& m) {
    const Widths w(m);
    Shared& shared = job.shared;
    Parts parts;
    parts.add(shared.residual, BATCH * w.residual);
    parts.add(shared.qkv, BATCH * std::max(w.qkv, (w.choices + 1) * w.residual));
    parts.add(shared.queries, BATCH * w.heads);
    parts.add(shared.attended, BATCH * w.attended);
    parts.add(shared.mixed, m.stateful ? BATCH * w.mixed : 0);
    parts.add(shared.activated, BATCH * w.inner);
    parts.add(shared.layer_inputs, BATCH * w.layer_inputs);
    parts.add(shared.experts, BATCH * w.choices);
    parts.add(shared.expert_weights, BATCH * (w.choices + 1));
    parts.place(job.shared_memory);
}

void reserve_own(Scratch& own, Buffer& memory, const Model& m, const Sizes& sizes) {
    const Widths w(m);
    const size_t stride = (size_t)(sizes.slots + PAGE - 1) / PAGE * PAGE, tail = sizes.tail + 2 * TILE_INPUTS;
    const size_t expert = w.choices ? BATCH * std::max<size_t>(w.residual, m.padded_inner / w.choices) : 0;
    Parts parts;
    parts.add(own.normed, std::max(BATCH * w.residual, w.layer_inputs));
    parts.add(own.softmax, QUERIES * (stride + tail));
    parts.add(own.gathered, std::max(expert, tail * m.padded_dim));
    // A code is a byte, and a group of 32 has 16 bytes more.
    parts.add(own.codes, m.facts.activations == 8 ? BATCH * std::max(w.attended, w.inner) / 8 * 3 : 0);
    parts.add(own.scores, QUERIES * stride);
    parts.add(own.sums, QUERIES * (size_t)m.padded_dim);
    parts.add(own.state, m.stateful ? (size_t)m.padded_key * m.padded_value : 0);
    parts.add(own.highest, sizes.scored);
    parts.add(own.best, sizes.scored);
    parts.add(own.totals, (size_t)sizes.scored * LANES);
    parts.place(memory);
    std::fill_n(own.highest, sizes.scored, -INFINITY);
    std::fill_n(own.best, sizes.scored, 0);
    std::fill_n(own.totals, (size_t)sizes.scored * LANES, 0.f);
}

void reserve(Job& job, const Model& m, const Sizes& sizes) {
    reserve_shared(job, m);
    while ((int)job.own_memory.size() < job.threads) job.own_memory.push_back(std::make_unique<Buffer>());
    if ((int)job.scratch.size() < job.threads) job.scratch.resize(job.threads);
    for (int t = 0; t < job.threads; t++) reserve_own(job.scratch[t], *job.own_memory[t], m, sizes);
}

// The highest score of a token, over all threads, NaN if a score is; and its token.
void find_highest(const Job& job, int scored, float& highest, int64_t& best) {
    float sum = 0;
    highest = -INFINITY, best = 0;
    for (int t = 0; t < job.threads; t++) {
        const Scratch& own = job.scratch[t];
        for (int i = 0; i < LANES; i++) sum += own.totals[scored * LANES + i];
        if (own.highest[scored] > highest || (own.highest[scored] == highest && own.best[scored] < best))
            highest = own.highest[scored], best = own.best[scored];
    }
    if (sum != sum) highest = sum;
}

// The batches of a step behind those of others, and what they need.
void add_batches(const Step& step, const Model& m, std::vector<Work>& works, Sizes& sizes) {
    Plan& plan = *step.plan;
    const size_t size = BATCH / step.unit * step.unit;
    plan.finish(size);
    for (auto& list : plan.pages) sizes.slots = std::max(sizes.slots, (int)list.size() * PAGE);
    for (const Token& token : plan.tokens) sizes.tail = std::max(sizes.tail, token.seen + 1);
    Work work = step.work;
    work.model = &m, work.path = plan.path.data(), work.pages = plan.lists.data();
    for (size_t from = 0; from < plan.tokens.size(); from += size) {
        work.tokens = plan.tokens.data() + from;
        work.count = std::min(plan.tokens.size() - from, size);
        work.scored = 0;
        for (int i = 0; i < work.count; i++) work.scored += work.tokens[i].scored >= 0;
        work.first_scored = sizes.scored;
        works.push_back(work);
        sizes.scored += work.scored;
        if (work.logits) work.logits += (size_t)work.scored * m.facts.vocab;
        if (work.sources) work.sources += (size_t)work.count * given_numbers(m);
        if (work.features) work.features += (size_t)work.count * m.facts.width;
    }
}
}  // namespace

void compute(Job& job, int thread) {
    Scratch& own = job.scratch[thread];
    own.tile_rows = 0;
    const Worker worker{&job, &job.shared, &own, thread, job.threads};
    kernels(&job.works[0].model->facts).forward(job.works.data(), job.works.size(), worker);
}

void run(std::vector<Step> steps, int threads, float* highest, int64_t* best) {
    const Model& m = steps[0].plan->engine->model();
    std::vector<Work> works;
    Sizes sizes;
    for (const Step& step : steps) add_batches(step, m, works, sizes);
    auto kept = std::make_shared<std::vector<Step>>(std::move(steps));
    for (size_t from = 0; from < works.size(); from += BATCHES) {
        const size_t count = std::min(works.size() - from, BATCHES);
        JobUse job = new_job(phases_of(m.facts.layers) * count, threads);
        reserve(*job, m, sizes);
        job->kept = kept;
        job->works.assign(works.begin() + from, works.begin() + from + count);
        run_job(*job);
        const Work &first = job->works.front(), &last = job->works.back();
        for (int i = first.first_scored; highest && i < last.first_scored + last.scored; i++)
            find_highest(*job, i, highest[i], best[i]);
    }
}
}  // namespace draftwood
