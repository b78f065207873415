// The best tokens of lines of scores: of all, of those that truncation leaves, or under Gumbel noise.
#include <math.h>

#include <algorithm>
#include <functional>

#include "api.h"

namespace {
struct Candidate {
    float score;
    int token;
};

typedef std::vector<Candidate> Candidates;

const int64_t UNREACHED = INT64_MIN;  // the choice at a node whose path does not match

bool comes_before(const Candidate& a, const Candidate& b) {
    return a.score > b.score || (a.score == b.score && a.token < b.token);
}

void drop_below(float least, Candidates& candidates) {
    auto is_below = [&](const Candidate& one) { return one.score < least; };
    candidates.erase(std::remove_if(candidates.begin(), candidates.end(), is_below), candidates.end());
}

// The scores of a line, and the largest of each segment.
class Line {
  public:
    Line(const float* scores, long vocab) : scores_(scores), vocab_(vocab) {
        maxima_.resize((vocab + SEGMENT - 1) / SEGMENT);
        without_nan = kernels().segment_maxima(scores, vocab, maxima_.data());
    }

    bool without_nan;

    float highest() const { return *std::max_element(maxima_.begin(), maxima_.end()); }

    // All scores from ``least`` on.
    void from(float least, Candidates& candidates) const {
        candidates.clear();
        for (size_t s = 0; s < maxima_.size(); s++)
            for (long t = s * SEGMENT; maxima_[s] >= least && t < end(s); t++)
                if (scores_[t] >= least) candidates.push_back({scores_[t], (int)t});
    }

    // The ``count`` largest, and those that are equal to the last of them, in any order.
    void largest(size_t count, Candidates& candidates) const {
        float least = -INFINITY;  // one score of each of ``count`` segments is as large
        if (count <= maxima_.size()) least = nth(count, std::vector<float>(maxima_));
        from(least, candidates);
        if (candidates.size() <= count) return;
        std::vector<float> all;
        for (const Candidate& one : candidates) all.push_back(one.score);
        drop_below(nth(count, std::move(all)), candidates);
    }

    double sum_of_exponentials(float offset) const { return kernels().sum_of_exponentials(scores_, vocab_, offset); }

  private:
    long end(size_t segment) const { return std::min(vocab_, (long)(segment + 1) * SEGMENT); }

    static float nth(size_t count, std::vector<float> scores) {
        std::nth_element(scores.begin(), scores.begin() + count - 1, scores.end(), std::greater<float>());
        return scores[count - 1];
    }

    const float* scores_;
    long vocab_;
    std::vector<float> maxima_;
};

double sum_of_exponentials(const Candidates& candidates, float offset) {
    double sum = 0;
    for (const Candidate& one : candidates) sum += exp((double)one.score - offset);
    return sum;
}

// The scores that top-p leaves, of the candidates if top-k was before it: the last of equal tokens stay.
void keep_top_p(const Line& line, long vocab, const Cuts& cuts, Candidates& candidates) {
    const float highest = line.highest();
    const double all = cuts.top_k ? sum_of_exponentials(candidates, highest) : line.sum_of_exponentials(highest);
    size_t kept = 0;
    for (long count = 256;; count *= 8) {
        if (!cuts.top_k) line.largest(std::min(count, vocab), candidates);
        std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
            return a.score > b.score || (a.score == b.score && a.token > b.token);
        });
        double sum = 0;
        for (kept = 0; kept < candidates.size() && sum < cuts.top_p * all; kept++)
            sum += exp((double)candidates[kept].score - highest);
        if (kept < candidates.size() || cuts.top_k || count >= vocab) break;
    }
    candidates.resize(std::max<size_t>(kept, 1));
}

// Top-k, then top-p, then min-p, as ``draftwood.sampling.truncation.Truncation``.
void truncate(const Line& line, long vocab, const Cuts& cuts, Candidates& candidates) {
    const float least = line.highest() + (float)log(cuts.min_p);
    if (cuts.top_k) line.largest(std::min<long>(cuts.top_k, vocab), candidates);
    else if (cuts.top_p == 1) line.from(least, candidates);
    if (cuts.top_p < 1) keep_top_p(line, vocab, cuts, candidates);
    if (cuts.min_p > 0) drop_below(least, candidates);
}

// The noise of tokens under the key of a line.
class Noise {
  public:
    Noise(const int64_t* bases, long bases_count, const int64_t* columns)
        : bases_(bases), bases_count_(bases_count), columns_(columns) {}

    // Scores of a whole line with noise; lines that follow each other and have the same key have the same noise.
    const float* of_line(int64_t key, const float* scores, long vocab, float offset) {
        if (key != line_key_) {
            arrivals_.resize(vocab), own_bases_.resize(columns_ ? vocab : 0);
            for (size_t t = 0; t < own_bases_.size(); t++) own_bases_[t] = base(t);
            const int64_t* bases = columns_ ? own_bases_.data() : bases_;
            kernels().exponentials(&key, 1, bases, vocab, arrivals_.data());
            line_key_ = key;
        }
        perturbed_.resize(vocab);
        kernels().perturb(scores, arrivals_.data(), vocab, offset, perturbed_.data());
        return perturbed_.data();
    }

    // The same for candidates; a key of 0 is none.
    void add_to(Candidates& candidates, int64_t key, float offset) {
        const size_t size = candidates.size();
        line_key_ = 0, arrivals_.assign(size, 1.f);
        perturbed_.resize(size), own_bases_.resize(size);
        for (size_t i = 0; i < size; i++) {
            perturbed_[i] = candidates[i].score;
            if (key) own_bases_[i] = base(candidates[i].token);
        }
        if (key) kernels().exponentials(&key, 1, own_bases_.data(), size, arrivals_.data());
        kernels().perturb(perturbed_.data(), arrivals_.data(), size, offset, perturbed_.data());
        for (size_t i = 0; i < size; i++) candidates[i].score = perturbed_[i];
    }

  private:
    int64_t base(long t) const {
        const int64_t token = columns_ ? columns_[t] : t;
        if (token >= 0 && token < bases_count_) return bases_[token];
        throw std::invalid_argument("a score of a token without noise");
    }

    const int64_t* bases_;
    long bases_count_;
    const int64_t* columns_;
    int64_t line_key_ = 0;  // of ``arrivals_``, if they are those of a whole line
    std::vector<int64_t> own_bases_;
    std::vector<float> arrivals_, perturbed_;
};

// The ``count`` first of the candidates, in order.
void write_best(Candidates& candidates, size_t count, const int64_t* columns, float* values, int64_t* tokens) {
    const size_t available = std::min(count, candidates.size());
    std::partial_sort(candidates.begin(), candidates.begin() + available, candidates.end(), comes_before);
    for (size_t i = 0; i < count; i++) {
        const bool possible = i < available && candidates[i].score > -INFINITY;
        values[i] = possible ? candidates[i].score : -INFINITY;
        tokens[i] = !possible ? -1 : columns ? columns[candidates[i].token] : candidates[i].token;
    }
}

void best(const float* scores, long rows, long nodes, long vocab, const Cuts* cuts, const int64_t* keys, const int64_t* bases,
          long bases_count, const int64_t* columns, long count, float* values, int64_t* tokens, float* likeliest) {
    if (vocab < 1 || count < 1) throw std::invalid_argument("the best of no scores, or none of them");
    if (!columns && vocab > bases_count) throw std::invalid_argument("more scores than tokens with noise");
    Noise noise(bases, bases_count, columns);
    Candidates candidates;
    for (long l = 0; l < rows * nodes; l++, scores += vocab, values += count, tokens += count) {
        const Cuts& cut = cuts[l / nodes];
        if (cut.top_k < 0) throw std::invalid_argument("a top_k below 0");
        const bool whole = !cut.top_k && cut.top_p == 1 && cut.min_p == 0;
        const Line line(scores, vocab);
        float offset = line.highest();
        if (likeliest) likeliest[l] = NAN;
        candidates.clear();
        if (!line.without_nan || !isfinite(offset)) {
            write_best(candidates, count, columns, values, tokens);
            continue;
        }
        if (!whole) truncate(line, vocab, cut, candidates);
        if (likeliest) {
            const double all = whole ? line.sum_of_exponentials(offset) : sum_of_exponentials(candidates, offset);
            likeliest[l] = -(float)log(all), offset -= likeliest[l];
        }
        const int64_t key = keys ? keys[l] : 0;
        if (whole && key) {
            Line(noise.of_line(key, scores, vocab, offset), vocab).largest(count, candidates);
        } else {
            if (whole) line.largest(count, candidates);
            noise.add_to(candidates, key, offset);
        }
        write_best(candidates, count, columns, values, tokens);
    }
}

void accept(const double* weights, long lines, long count, const float* values, const int64_t* tokens, const float* likeliest,
            double* chances) {
    for (long l = 0; l < lines; l++, values += count, tokens += count, chances += count) {
        long possible = 0;
        while (possible < count && tokens[possible] >= 0) possible++;
        const double none = weights[2] - weights[3] * likeliest[l];
        double top = none, sum = 0;
        for (long i = 0; i < possible; i++) {
            chances[i] = weights[1] * log(i + 1.) - weights[0] * (values[0] - values[i]);
            top = std::max(top, chances[i]);
        }
        for (long i = 0; i < possible; i++) sum += exp(chances[i] - top);
        const double all = top + log(sum + exp(none - top));
        for (long i = 0; i < count; i++) chances[i] = i < possible ? chances[i] - all : -INFINITY;
    }
}
}  // namespace

int draftwood_best(const float* scores, long rows, long nodes, long vocab, const Cuts* cuts, const int64_t* keys,
                   const int64_t* bases, long bases_count, const int64_t* columns, long count, float* values, int64_t* tokens,
                   float* likeliest, const double* weights, double* chances) try {
    best(scores, rows, nodes, vocab, cuts, keys, bases, bases_count, columns, count, values, tokens, likeliest);
    if (weights) accept(weights, rows * nodes, count, values, tokens, likeliest, chances);
    return 0;
} catch (...) {
    return failed();
}

int draftwood_follow(const float* scores, long rows, long nodes, long vocab, const Cuts* cuts, const int64_t* keys, long depths,
                     const int64_t* bases, long bases_count, const int64_t* tokens, const int64_t* parents, const uint8_t* valid,
                     int64_t* paths, int64_t* next) try {
    std::vector<int64_t> choice(nodes), after(nodes);
    std::vector<long> depth(nodes), below(nodes);
    for (long row = 0; row < rows; row++, tokens += nodes, parents += nodes, valid += nodes, paths += nodes) {
        const int64_t* noise = keys ? keys + row * depths : nullptr;
        for (long node = 0; node < nodes; node++) {
            const long parent = parents[node];
            after[node] = below[node] = 0;
            choice[node] = UNREACHED;
            if (node && (!valid[node] || tokens[node] != choice[parent])) continue;
            depth[node] = node ? depth[parent] + 1 : 0;
            float value;
            best(scores + (row * nodes + node) * vocab, 1, 1, vocab, cuts + row, noise ? noise + depth[node] : nullptr, bases,
                 bases_count, nullptr, 1, &value, &choice[node], nullptr);
        }
        // Several children match where siblings were drawn independently: the first with the longest path below it is taken.
        for (long node = nodes - 1; node > 0; node--) {
            const long parent = parents[node];
            if (choice[node] == UNREACHED || below[node] + 1 < below[parent]) continue;
            below[parent] = below[node] + 1, after[parent] = node;
        }
        int64_t last = 0;
        for (long i = 0; i < nodes; i++) paths[i] = after[last], last = after[last] ? after[last] : last;
        next[row] = choice[last];
    }
    return 0;
} catch (...) {
    return failed();
}
