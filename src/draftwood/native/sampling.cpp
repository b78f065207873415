// The best tokens of lines of scores: of all, of those that stay possible, or under noise.
#include <math.h>

#include <algorithm>
#include <functional>

#include "engine.h"

namespace draftwood {
namespace {

struct Peak {
    float score;
    int token;
};

bool comes_before(const Peak& a, const Peak& b) { return a.score > b.score || (a.score == b.score && a.token < b.token); }

// The scores of a line, and where the largest are.
class Scores {
  public:
    Scores(const float* scores, long vocab) : scores_(scores), vocab_(vocab) {
        maxima_.resize((vocab + SAMPLED_BLOCK - 1) / SAMPLED_BLOCK);
        numbers = kernels().block_maxima(scores, vocab, maxima_.data());
    }

    bool numbers;  // no score is NaN

    float highest() const { return *std::max_element(maxima_.begin(), maxima_.end()); }

    // All scores from ``least`` on.
    void find(float least, std::vector<Peak>& found) const {
        found.clear();
        for (size_t block = 0; block < maxima_.size(); block++)
            for (long t = block * SAMPLED_BLOCK; maxima_[block] >= least && t < end(block); t++)
                if (scores_[t] >= least) found.push_back({scores_[t], (int)t});
    }

    // The ``count`` largest, and those that are equal to the last of them, in any order.
    void largest(size_t count, std::vector<Peak>& found) const {
        float least = -INFINITY;  // one score of each of ``count`` blocks is as large
        if (count <= maxima_.size()) least = nth(count, std::vector<float>(maxima_));
        find(least, found);
        if (found.size() <= count) return;
        std::vector<float> all;
        for (const Peak& one : found) all.push_back(one.score);
        least = nth(count, std::move(all));
        found.erase(std::remove_if(found.begin(), found.end(), [&](const Peak& one) { return one.score < least; }), found.end());
    }

  private:
    long end(size_t block) const { return std::min(vocab_, (long)(block + 1) * SAMPLED_BLOCK); }

    static float nth(size_t count, std::vector<float> scores) {
        std::nth_element(scores.begin(), scores.begin() + count - 1, scores.end(), std::greater<float>());
        return scores[count - 1];
    }

    const float* scores_;
    long vocab_;
    std::vector<float> maxima_;
};

double total(const std::vector<Peak>& found, float highest) {
    double sum = 0;
    for (const Peak& one : found) sum += exp((double)one.score - highest);
    return sum;
}

// The scores that stay possible under top-k, then top-p, then min-p, as ``draftwood.sampling.truncation.Truncation``.
void cut(const float* scores, const Scores& line, long vocab, const Cuts& cuts, std::vector<Peak>& found) {
    const float highest = line.highest();
    if (cuts.top_k) line.largest(std::min<long>(cuts.top_k, vocab), found);
    else if (cuts.top_p == 1) line.find(highest + (float)log(cuts.min_p), found);
    if (cuts.top_p < 1) {
        const double all = cuts.top_k ? total(found, highest) : kernels().sum_of_exponentials(scores, vocab, highest);
        double sum = 0;
        size_t kept = 0;
        for (long count = 256;; count *= 8, sum = 0, kept = 0) {
            if (!cuts.top_k) line.largest(std::min(count, vocab), found);
            std::sort(found.begin(), found.end(), [](const Peak& a, const Peak& b) {
                return a.score > b.score || (a.score == b.score && a.token > b.token);  // the last of equal tokens stay
            });
            for (; kept < found.size() && sum < cuts.top_p * all; kept++) sum += exp((double)found[kept].score - highest);
            if (kept < found.size() || cuts.top_k || count >= vocab) break;
        }
        found.resize(std::max<size_t>(kept, 1));
    }
    if (cuts.min_p > 0) {
        const float least = highest + (float)log(cuts.min_p);
        found.erase(std::remove_if(found.begin(), found.end(), [&](const Peak& one) { return one.score < least; }), found.end());
    }
}

// The ``count`` first of them.
void put(std::vector<Peak>& found, size_t count, float* values, int64_t* tokens) {
    const size_t here = std::min(count, found.size());
    std::partial_sort(found.begin(), found.begin() + here, found.end(), comes_before);
    for (size_t i = 0; i < count; i++) {
        const bool possible = i < here && found[i].score > -INFINITY;
        values[i] = possible ? found[i].score : -INFINITY, tokens[i] = possible ? found[i].token : -1;
    }
}

}  // namespace

void best(const float* scores, long lines, long vocab, const Cuts& cuts, const int64_t* keys, const int64_t* bases,
          long known, const int64_t* columns, long count, float* values, int64_t* tokens, float* likeliest) {
    if (vocab < 1 || count < 1 || cuts.top_k < 0) throw std::invalid_argument("the best of no scores, or none of them");
    if (!columns && vocab > known) throw std::invalid_argument("more scores than tokens with noise");
    auto base = [&](long t) {
        const int64_t token = columns ? columns[t] : t;
        return token >= 0 && token < known ? bases[token] : throw std::invalid_argument("a score of a token without noise");
    };
    const bool whole = !cuts.top_k && cuts.top_p == 1 && cuts.min_p == 0;
    std::vector<Peak> found;
    std::vector<int64_t> own;
    std::vector<float> times, perturbed;
    int64_t timed = 0;  // the key of ``times``, if they are those of the whole line
    for (long l = 0; l < lines; l++, scores += vocab, values += count, tokens += count) {
        const Scores line(scores, vocab);
        float offset = line.highest();
        if (likeliest) likeliest[l] = NAN;
        found.clear();
        if (!line.numbers || !isfinite(offset)) {
            put(found, count, values, tokens);
            continue;
        }
        if (!whole) cut(scores, line, vocab, cuts, found);
        if (likeliest) {
            const double all = whole ? kernels().sum_of_exponentials(scores, vocab, offset) : total(found, offset);
            likeliest[l] = -(float)log(all), offset -= likeliest[l];
        }
        const int64_t key = keys ? keys[l] : 0;
        if (whole && key && key != timed) {
            times.resize(vocab), own.resize(columns ? vocab : 0), timed = key;
            for (size_t t = 0; t < own.size(); t++) own[t] = base(t);
            kernels().exponentials(&key, 1, columns ? own.data() : bases, vocab, times.data());
        }
        if (whole && key) {
            perturbed.resize(vocab);
            kernels().perturb(scores, times.data(), vocab, offset, perturbed.data());
            Scores(perturbed.data(), vocab).largest(count, found);
        } else {
            if (whole) line.largest(count, found);
            const size_t size = found.size();
            timed = 0, times.assign(size, 1.f), perturbed.resize(size), own.resize(size);
            for (size_t i = 0; i < size; i++) {
                perturbed[i] = found[i].score;
                if (key) own[i] = base(found[i].token);
            }
            if (key) kernels().exponentials(&key, 1, own.data(), size, times.data());
            kernels().perturb(perturbed.data(), times.data(), size, offset, perturbed.data());
            for (size_t i = 0; i < size; i++) found[i].score = perturbed[i];
        }
        put(found, count, values, tokens);
        for (long i = 0; columns && i < count; i++) tokens[i] = tokens[i] < 0 ? -1 : columns[tokens[i]];
    }
}

}  // namespace draftwood
