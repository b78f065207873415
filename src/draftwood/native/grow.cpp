// Trees of candidates of a drafter that scores a block: all levels of a round in one call. The rules are those of
// draft/adaptive/growers.py and candidates.py, which other drafters follow level by level.
#include <math.h>

#include <algorithm>
#include <chrono>

#include "api.h"

namespace {
typedef std::chrono::steady_clock Clock;

// The candidates of a row in order of creation.
struct RowTree {
    TreeCandidate* all;
    int64_t& count;
    double cut;                     // what a candidate must have to be among the best
    std::vector<int64_t> frontier;  // candidates that are expanded next

    double off_guess(int64_t i) const { return exp(all[i].log_prob) * (1 - all[i].guess); }

    void add(int64_t parent, int64_t token, double log_prob) {
        all[count] = {token, parent, all[parent].depth + 1, -1, log_prob, 0};
        count++;
    }

    // Change the conditional probability of a guessed candidate; guesses below it keep theirs.
    void raise(int64_t guess, double log_prob) {
        for (;; guess++) {
            all[guess].log_prob = all[all[guess].parent].log_prob + log_prob;
            if (!(all[guess].guess > 0)) return;
            log_prob = log(all[guess].guess);
        }
    }

    // A guessed child keeps its own conditional probability. The rest is divided among all children, it included.
    void add_children(int64_t parent, const int64_t* tokens, const double* chances, long most, double least) {
        const double guess = all[parent].guess, above = all[parent].log_prob + log1p(-guess);
        for (long i = 0; i < most && tokens[i] >= 0; i++) {
            const double log_prob = above + chances[i];
            if (guess > 0 && tokens[i] == all[parent + 1].token) raise(parent + 1, log(guess + (1 - guess) * exp(chances[i])));
            else if (log_prob >= least) add(parent, tokens[i], log_prob);
        }
    }

    // The root and the likeliest candidates, in order; returns how many.
    long rank(long nodes, int64_t* ranked) {
        std::vector<int64_t> order(count);
        for (int64_t i = 0; i < count; i++) order[i] = i;
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return all[a].log_prob > all[b].log_prob; });
        const long found = std::min<long>(nodes + 1, count);
        std::copy_n(order.begin(), found, ranked);
        std::fill_n(ranked + found, nodes + 1 - found, -1);
        cut = all[ranked[found - 1]].log_prob;
        return found;
    }

    // The best candidates of a depth. All but the first have a value of ``least`` or more, and none is one of ``stops``.
    void find_frontier(int depth, size_t width, double least, const int64_t* stops, long stops_count) {
        std::vector<std::pair<double, int64_t>> level;
        for (int64_t i = 0; i < count; i++)
            if (all[i].depth == depth && all[i].log_prob >= cut && all[all[i].parent].line >= 0) level.push_back({-off_guess(i), i});
        std::sort(level.begin(), level.end());
        level.resize(std::min(level.size(), width));
        frontier.clear();
        for (auto& [value, i] : level) {
            const bool stop = std::find(stops, stops + stops_count, all[i].token) != stops + stops_count;
            if (!stop && (-value >= least || i == level[0].second)) frontier.push_back(i);
        }
    }
};

class Growing {
  public:
    explicit Growing(TreeExpansion& expansion) : g_(expansion) {
        if (g_.rows < 1 || g_.nodes < 1 || g_.width < 1 || g_.count < 1 || g_.depths > g_.block)
            throw std::invalid_argument("a tree without rows, nodes or children, or deeper than its block");
        for (int r = 0; r < g_.rows; r++) {
            trees_.push_back({g_.candidates + (size_t)r * g_.most, g_.counts[r], -INFINITY, {}});
            if (g_.counts[r] < 1 || g_.counts[r] + (long)g_.depths * g_.width * g_.count > g_.most)
                throw std::invalid_argument("too little memory for the candidates of a row");
            if (g_.limits[r] > 0) trees_[r].frontier = {0};
        }
    }

    // Returns the depth of the first level that was not drafted.
    int run() {
        for (int depth = 0;; depth++) {
            TreeLevel& level = g_.levels[depth];
            level = {0, 0, 0, 0};
            for (RowTree& tree : trees_) {
                level.nodes = std::max<int64_t>(level.nodes, tree.frontier.size());
                for (int64_t i : tree.frontier) level.above += tree.off_guess(i) / g_.rows;
            }
            if (depth == g_.depths || !level.nodes || (depth && !(g_.gains[depth] * level.above >= g_.prices[level.nodes]))) return depth;
            expand(depth, level.nodes);
            end_level(depth, level);
            level.ended = std::chrono::duration<double>(Clock::now() - began_).count();
        }
    }

  private:
    // The children of all frontiers; scores that are no distribution have none.
    void expand(int depth, int nodes) {
        const size_t lines = (size_t)g_.rows * nodes, vocab = g_.vocab;
        std::vector<int64_t> tokens(lines), depths(lines, depth), keys(lines);
        scores_.resize(lines * vocab);
        for (size_t l = 0; l < lines; l++) {
            const size_t r = l / nodes, i = l % nodes;
            const RowTree& tree = trees_[r];
            tokens[l] = tree.all[i < tree.frontier.size() ? tree.frontier[i] : 0].token;
            if (g_.keys) keys[l] = g_.keys[r * g_.depths + depth];
            if (!g_.markov) std::copy_n(g_.scores + (r * g_.block + depth) * vocab, vocab, &scores_[l * vocab]);
        }
        if (g_.markov && draftwood_add_markov(g_.model, tokens.data(), depths.data(), g_.rows, nodes, g_.scores, g_.block,
                                              scores_.data(), g_.threads))
            throw std::runtime_error(draftwood_error());
        for (size_t l = 0; l < lines; l++)
            if (const float divisor = g_.temperatures[l / nodes]; divisor != 1)
                for (size_t i = l * vocab; i < (l + 1) * vocab; i++) scores_[i] /= divisor;
        const size_t at = line_ * g_.count;
        if (draftwood_best(scores_.data(), g_.rows, nodes, vocab, g_.cuts, g_.keys ? keys.data() : nullptr, g_.bases,
                           g_.bases_count, g_.columns, g_.count, g_.values + at, g_.tokens + at, g_.likeliest + line_, g_.weights,
                           g_.chances + at))
            throw std::runtime_error(draftwood_error());
        for (RowTree& tree : trees_) {
            const double least = tree.count > g_.nodes ? tree.cut : -INFINITY;  // in a full tree no other child is kept
            for (size_t i = 0; i < tree.frontier.size(); i++) {
                const size_t line = line_ + (&tree - trees_.data()) * nodes + i;
                tree.all[tree.frontier[i]].line = line;
                tree.add_children(tree.frontier[i], g_.tokens + line * g_.count, g_.chances + line * g_.count, g_.count, least);
            }
        }
        line_ += lines;
    }

    void end_level(int depth, TreeLevel& level) {
        double* values = g_.best_values + (size_t)depth * g_.nodes;
        std::fill_n(values, g_.nodes, 0);
        const double gain = g_.gains[depth + 1], share = (g_.prices[g_.width] - g_.prices[1]) / std::max(1, g_.width - 1);
        for (int r = 0; r < g_.rows; r++) {
            RowTree& tree = trees_[r];
            int64_t* ranked = g_.ranked + (size_t)r * (g_.nodes + 1);
            const long found = tree.rank(g_.nodes, ranked);
            level.best = std::max<int64_t>(level.best, found - 1);
            for (long i = 1; i < found; i++) values[i - 1] += exp(tree.all[ranked[i]].log_prob) / g_.rows;
            if (depth + 1 >= g_.limits[r]) tree.frontier.clear();
            else tree.find_frontier(depth + 1, g_.width, gain > 0 ? share / gain : 1, g_.stops + (size_t)r * g_.stops_count, g_.stops_count);
        }
    }

    TreeExpansion& g_;
    std::vector<RowTree> trees_;
    std::vector<float> scores_;
    size_t line_ = 0;  // lines of children so far
    const Clock::time_point began_ = Clock::now();
};
}  // namespace

int draftwood_grow(TreeExpansion* trees) try {
    return Growing(*trees).run();
} catch (...) {
    return failed();
}
