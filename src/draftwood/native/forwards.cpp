// Forwards: which tokens see what, the memory that a job needs, and the instruction set that computes.
#include <math.h>
#include <string.h>

#include <algorithm>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#endif
#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "engine.h"

namespace draftwood {

// DRAFTWOOD_ISAS is ISA(name) for each one that was compiled, the best one last.
#define ISA(name) extern const Kernels kernels_##name;
DRAFTWOOD_ISAS
#undef ISA

namespace {

struct Isa {
    std::string name;
    const Kernels* kernels;
};

bool may_use_tiles() {
#if defined(DRAFTWOOD_EMULATED_TILES)
    return true;
#elif defined(__linux__) && defined(__x86_64__)
    unsigned a, b, c, d;
    const unsigned wanted = 1u << 22 | 1u << 24;  // AMX-BF16, AMX-TILE
    const int request = 0x1023, data = 18;        // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & wanted) == wanted && !syscall(SYS_arch_prctl, request, data);
#else
    return false;
#endif
}

#if defined(__x86_64__)
bool has_avx_vnni() {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1;
}

bool has_half_floats() {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && c >> 29 & 1;
}
#endif

#if defined(__aarch64__)
bool has_dot_products() {
#if defined(__linux__)
    return getauxval(AT_HWCAP) >> 20 & 1;  // HWCAP_ASIMDDP
#elif defined(__APPLE__)
    return true;  // all processors of Apple for computers
#else
    return false;
#endif
}
#endif

bool is_here(const std::string& name) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_half_floats();
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    bool vnni = avx512 && __builtin_cpu_supports("avx512vnni"), bf16 = vnni && __builtin_cpu_supports("avx512bf16");
    if (name == "avx2") return avx2;
    if (name == "avxvnni") return avx2 && has_avx_vnni();
    if (name == "avx512") return avx512;
    if (name == "avx512vnni") return vnni;
    if (name == "avx512bf16") return bf16;
    if (name == "amx") return bf16 && may_use_tiles();
#endif
#if defined(__aarch64__)
    if (name == "dotprod") return has_dot_products();
#endif
    return name == "generic";
}

const std::vector<Isa>& isas() {
    static const std::vector<Isa> found = [] {
        std::vector<Isa> all;
#define ISA(name) \
    if (is_here(#name)) all.push_back({#name, &kernels_##name});
        DRAFTWOOD_ISAS
#undef ISA
        return all;
    }();
    return found;
}

std::atomic<const Kernels*> chosen{nullptr};

// How much the threads of a job need for tokens of these rows.
void reserve(Job& job, const Model& m, int slots, int tail, int scored) {
    const Facts& f = m.facts;
    size_t width = m.padded_width, heads = (size_t)f.heads * m.padded_dim, qkv = heads + 2 * (size_t)f.kv_heads * m.padded_dim;
    size_t inner = std::max({m.padded_inner, m.features.inputs, m.markov.inputs, m.layer->qkv.inputs});
    size_t chosen = f.chosen, added = std::max<size_t>(1, chosen) * width;  // what is added to the residual stream
    size_t sizes[] = {width, std::max(qkv, added), heads, std::max(heads, width), inner, chosen, chosen};
    size_t total = 0, at = 0;
    for (size_t size : sizes) total += size;
    char* memory = (char*)job.shared_memory.reserve(4 * MOST * total);
    void* parts[7];
    for (int i = 0; i < 7; i++) parts[i] = memory + at, at += 4 * MOST * sizes[i];
    job.shared = {(float*)parts[0], (float*)parts[1], parts[2], parts[3], parts[4], (int*)parts[5], (float*)parts[6]};
    size_t stride = (slots + PAGE - 1) / PAGE * PAGE, rows = QUERIES;
    size_t gathered = chosen ? MOST * std::max<size_t>(width, m.padded_inner / chosen) : 0;
    const size_t longest = tail + 2 * SUMMED;
    gathered = std::max(gathered, longest * m.padded_dim);
    const size_t codes = f.activations == 8 ? MOST * std::max(heads, inner) / 8 * 3 : 0;  // with the scales of groups
    size_t own[] = {MOST * width, rows * (stride + longest), gathered, rows * stride,
                    rows * m.padded_dim, (size_t)scored, (size_t)scored, (size_t)scored * LANES, codes};
    for (int t = 0; t < job.threads; t++) {
        if ((int)job.own_memory.size() <= t) job.own_memory.push_back(std::make_unique<Buffer>());
        size_t all = 0;
        for (size_t size : own) all += (size + 31) / 16 * 16;
        float *start = (float*)job.own_memory[t]->reserve(4 * all), *place[9];
        for (int i = 0; i < 9; i++) place[i] = start, start += (own[i] + 31) / 16 * 16;
        if ((int)job.scratch.size() <= t) job.scratch.resize(t + 1);
        job.scratch[t] = {place[0], place[1], place[2], place[8], place[3], place[4], 0, place[5], place[7], (int*)place[6]};
        std::fill_n(place[5], scored, -INFINITY);
        std::fill_n((int*)place[6], scored, 0);
        std::fill_n(place[7], (size_t)scored * LANES, 0.f);
    }
}

void part(Job& job, int thread) {
    job.scratch[thread].tile_rows = 0;
    kernels().forward(job.works.data(), &job.phases, &job.shared, &job.scratch[thread], thread, job.threads);
}

// All tokens of a forward, and what they point to.
struct Plan {
    std::shared_ptr<Engine> engine;
    std::vector<Token> tokens;
    std::vector<int> path;
    std::vector<std::vector<void*>> pages;
    std::vector<void* const*> lists;
    std::vector<float> sources, features;
    int nodes = 0, texts = 0;  // so many of each were added

    explicit Plan(const std::shared_ptr<Engine>& engine) : engine(engine) {}

    // Take a row's pages, which have room for all new tokens; returns its number.
    int add(Row& row, int slots) {
        row.reserve(slots);
        pages.emplace_back();
        for (auto& page : row.pages()) pages.back().push_back(page.get());
        return pages.size() - 1;
    }

    // A token of the text in ``slot``, which is ``start`` positions further in the text.
    void text(int row, int token, int slot, int start) {
        tokens.push_back({row, known(token), placed(start + slot), slot, slot + 1, 0, 0, -1, texts++});
    }

    // A token behind a text of ``base`` slots, which sees the tokens behind it for which ``sees(j)``, itself among them.
    template <class F>
    void node(int row, int token, int position, int base, int number, int all, bool scored, F sees) {
        if (!sees(number)) throw std::invalid_argument("a node that does not see itself");
        int first = path.size();
        for (int j = 0; j < all; j++)
            if (sees(j)) path.push_back(base + j);
        int seen = (int)path.size() - first;
        tokens.push_back({row, token, placed(position), base + number, base, first, seen, scored ? 0 : -1, nodes++});
    }

    // A token that the model reads.
    int known(int64_t token) const {
        const int all = engine->model().facts.tokens;
        if (token >= 0 && token < all) return token;
        throw std::invalid_argument("token " + std::to_string(token) + " is none of the model's " + std::to_string(all));
    }

    // Beyond a model's context no score is used.
    int placed(int position) const {
        if (position < 0) throw std::invalid_argument("a position before the text");
        return std::min(position, engine->model().rotary.positions - 1);
    }

    // The tokens are computed in blocks of ``most``.
    void finish(size_t most) {
        for (auto& list : pages) lists.push_back(list.data());
        int scored = 0;
        for (size_t i = 0; i < tokens.size(); i++) {
            if (i % most == 0) scored = 0;
            if (tokens[i].scored >= 0) tokens[i].scored = scored++;
            if (tokens[i].seen == 0) tokens[i].state += nodes;  // text comes after all nodes
        }
    }
};

// The highest score of a token, over all threads, NaN if a score is; and its token.
void find_highest(const Job& job, int scored, float& highest, int64_t& best) {
    float sum = 0;
    highest = -INFINITY, best = 0;
    for (int t = 0; t < job.threads; t++) {
        const Scratch& s = job.scratch[t];
        for (int i = 0; i < LANES; i++) sum += s.totals[scored * LANES + i];
        if (s.highest[scored] > highest || (s.highest[scored] == highest && s.best[scored] < best))
            highest = s.highest[scored], best = s.best[scored];
    }
    if (sum != sum) highest = sum;
}

// The tokens of a plan, and what is computed for them: pointers are those of the first token.
struct Step {
    std::shared_ptr<Plan> plan;
    Work work;
    int unit = 1;  // tokens that stay in one block, as they see each other
};

const size_t WORKS = 32;  // of a job, at most

// Compute these steps one after the other, in one job unless they are long; each goes through all layers in blocks of tokens.
void run(std::vector<Step> steps, int threads, float* highest = nullptr, int64_t* best = nullptr) {
    const Model& m = steps[0].plan->engine->model();
    const int phases = 9 * m.facts.layers + 5;  // of a block, at most
    std::vector<Work> works;
    int slots = 0, tail = 0, scored = 0;
    for (Step& step : steps) {
        Plan& plan = *step.plan;
        const size_t most = MOST / step.unit * step.unit;
        plan.finish(most);
        Work work = step.work;
        work.model = &m, work.path = plan.path.data(), work.pages = plan.lists.data();
        for (auto& list : plan.pages) slots = std::max(slots, (int)list.size() * PAGE);
        for (const Token& token : plan.tokens) tail = std::max(tail, token.seen + 1);
        for (size_t from = 0; from < plan.tokens.size(); from += most) {
            work.tokens = plan.tokens.data() + from;
            work.count = std::min(plan.tokens.size() - from, most), work.scored = 0;
            for (int i = 0; i < work.count; i++) work.scored += work.tokens[i].scored >= 0;
            work.phase = phases * (works.size() % WORKS), work.first_scored = scored;
            works.push_back(work);
            scored += work.scored;
            if (work.logits) work.logits += (size_t)work.scored * m.facts.vocab;
            if (work.sources) work.sources += (size_t)work.count * m.sources * m.source_width;
            if (work.features) work.features += (size_t)work.count * m.facts.width;
        }
    }
    auto kept = std::make_shared<std::vector<Step>>(std::move(steps));
    for (size_t from = 0; from < works.size(); from += WORKS) {
        size_t size = std::min(works.size() - from, WORKS);
        JobUse job = new_job(phases * size, threads);
        reserve(*job, m, slots, tail, scored);
        job->kept = kept;
        job->works.assign(works.begin() + from, works.begin() + from + size);
        for (size_t i = 0; i + 1 < size; i++) job->works[i].next = &job->works[i + 1];
        run_job(*job, part);
        int first = job->works.front().first_scored, last = job->works.back().first_scored + job->works.back().scored;
        for (int i = first; highest && i < last; i++) find_highest(*job, i, highest[i], best[i]);
    }
}

}  // namespace

std::string instruction_sets() {
    std::string names;
    for (const Isa& isa : isas()) names += (names.empty() ? "" : " ") + isa.name;
    return names;
}

void use_instruction_set(const std::string& name) {
    for (const Isa& isa : isas())
        if (isa.name == name) {
            chosen = isa.kernels;
            return;
        }
    throw std::invalid_argument("this processor does not have it");
}

const Kernels& kernels() { return *chosen.load(); }

void read_tokens(const NewTokens* rows, int count, float* logits, float* hidden, float* highest, int64_t* best, int threads) {
    auto plan = std::make_shared<Plan>(rows[0].row->shared());
    const Model& m = plan->engine->model();
    const bool joins = m.layer->hidden_norm;
    for (int r = 0; r < count; r++) {
        const NewTokens& given = rows[r];
        Row& row = *given.row;
        if (joins != (given.sources || given.features))
            throw std::logic_error("features are for drafters that read them, and no other model");
        if (row.nodes + given.nodes != given.width) throw std::logic_error("the round has another number of nodes");
        const int base = row.text + given.pending, all = row.nodes + given.nodes, number = plan->add(row, base + all);
        for (int i = 0; i < given.pending; i++) plan->text(number, given.text[i], row.text + i, 0);
        for (int i = 0; i < given.nodes; i++)
            plan->node(number, plan->known(given.tokens[i]), base + given.depths[i], base, row.nodes + i, all, true,
                       [&](int j) { return given.seen[(size_t)i * all + j]; });
        auto append = [&](std::vector<float>& to, const float* from, int numbers) {
            if (from) to.insert(to.end(), from, from + (size_t)(given.pending + given.nodes) * numbers);
        };
        append(plan->sources, given.sources, m.sources * m.source_width);
        append(plan->features, given.features, m.facts.width);
    }
    Work work{};
    work.logits = logits, work.hidden = hidden;
    if (!plan->sources.empty()) work.sources = plan->sources.data();
    if (!plan->features.empty()) work.features = plan->features.data();
    run({{plan, work}}, threads, highest, best);
    for (int r = 0; r < count; r++) rows[r].row->text += rows[r].pending, rows[r].row->nodes += rows[r].nodes;
}

void draft_block(const NewHidden* rows, int count, const BlockShape& shape, float* logits, int threads) {
    if (count < 1) throw std::invalid_argument("a block of no row");
    const std::shared_ptr<Engine>& engine = rows[0].row->shared();
    const Model& m = engine->model();
    if (shape.slots > MOST) throw std::invalid_argument("a block of more tokens than go through the layers together");
    if (shape.scored < 0 || shape.scored > shape.slots) throw std::invalid_argument("a block that scores more than its tokens");
    auto news = std::make_shared<Plan>(engine), block = std::make_shared<Plan>(engine);
    const size_t source = (size_t)m.sources * m.source_width;
    for (int r = 0; r < count; r++) {
        const NewHidden& given = rows[r];
        const int base = given.row->text + given.count, slots = shape.slots;
        news->add(*given.row, base + slots), block->add(*given.row, base + slots);
        for (int i = 0; i < given.count; i++) news->text(r, 0, given.row->text + i, given.start);
        news->sources.insert(news->sources.end(), given.hidden, given.hidden + given.count * source);
        for (int i = 0; i < slots; i++)
            block->node(r, i ? -1 : block->known(given.root), given.start + base + i, base, i, slots, i >= slots - shape.scored,
                        [&](int j) { return j <= i || !shape.causal; });
    }
    Work reading{}, scoring{};
    reading.mode = FEATURES, reading.sources = news->sources.data();
    scoring.mode = SCORES, scoring.mask = shape.mask, scoring.logits = logits;
    run({{news, reading}, {block, scoring, shape.slots}}, threads);
    for (int r = 0; r < count; r++) rows[r].row->text += rows[r].count;
}

void add_markov(const std::shared_ptr<Engine>& engine, const int64_t* tokens, const int64_t* depths, int rows, int nodes,
                const float* scores, int block, float* logits, int threads) {
    auto plan = std::make_shared<Plan>(engine);
    for (int i = 0; i < rows * nodes; i++) {
        if (depths[i] < 0) throw std::invalid_argument("a depth above the root");
        plan->tokens.push_back({i / nodes, plan->known(tokens[i]), (int)std::min<int64_t>(depths[i], block), 0, 0, 0, 0, 0, 0});
    }
    Work work{};
    work.mode = MARKOV, work.depths = scores, work.block = block, work.logits = logits;
    run({{plan, work}}, threads);
}

}  // namespace draftwood
