// Kernels of sampling: the Gumbel noise of tokens, the normaliser of a softmax, and where the largest scores are.
#pragma once

namespace {
using draftwood::LANES;
using draftwood::SEGMENT;

// The noise mixer: 63 bits of a token's counter under a key. Its twin in PyTorch is ``draftwood.sampling.counters.exponential``.
inline int64_t mixed_bits(int64_t key, uint64_t base) {
    uint64_t x = (base ^ (uint64_t)key) * 0xBF58476D1CE4E5B9;
    x = (x ^ (uint64_t)((int64_t)x >> 29)) * 0x94D049BB133111EB;
    return (int64_t)(x & INT64_MAX);
}

// Exponential numbers of mean 1, as ``draftwood.sampling.counters.exponential``: [key][base].
void exponentials(const int64_t* keys, long count, const int64_t* bases, long numbers, float* out) {
    const float below_one = 1.f - 0x1p-24f;
    for (long k = 0; k < count; k++, out += numbers)
        for (long from = 0; from < numbers; from += SEGMENT) {
            const int size = numbers - from < SEGMENT ? (int)(numbers - from) : SEGMENT;
            alignas(64) uint64_t counters[SEGMENT] = {};
            alignas(64) float u[SEGMENT], left[SEGMENT], logs[SEGMENT];
            memcpy(counters, bases + from, size * sizeof *bases);
            for (int i = 0; i < SEGMENT; i++) {
                u[i] = (float)mixed_bits(keys[k], counters[i]) * (below_one * 0x1p-63f);
                left[i] = 1.f - u[i];
            }
            logarithms<SEGMENT>(left, logs);
            for (int i = 0; i < SEGMENT; i++) {
                const float exact = logs[i] * u[i] / (left[i] - 1.f);  // the quotient undoes the rounding of ``left``
                logs[i] = left[i] == 1.f ? u[i] : exact;
            }
            memcpy(out + from, logs, size * sizeof *logs);
        }
}

// The scores of a line less ``offset``, with Gumbel noise: minus the logarithms of exponential numbers, the arrivals.
void perturb(const float* scores, const float* arrivals, long vocab, float offset, float* out) {
    for (long from = 0; from < vocab; from += SEGMENT) {
        const int size = vocab - from < SEGMENT ? (int)(vocab - from) : SEGMENT;
        alignas(64) float part[SEGMENT] = {}, logs[SEGMENT];
        memcpy(part, arrivals + from, size * sizeof *part);
        logarithms<SEGMENT>(part, logs);
        for (int i = 0; i < size; i++) out[from + i] = scores[from + i] - offset - logs[i];
    }
}

// The sum of e to the power of scores less ``offset``, in one order.
double sum_of_exponentials(const float* scores, long vocab, float offset) {
    double all = 0;  // a float would lose the small ones
    for (long from = 0; from < vocab; from += SEGMENT) {
        alignas(64) float part[SEGMENT];
        for (int i = 0; i < SEGMENT; i++) part[i] = from + i < vocab ? scores[from + i] - offset : -INFINITY;
        Lanes sums = exponential(load(part));
        for (int i = LANES; i < SEGMENT; i += LANES) sums = sums + exponential(load(part + i));
        all += sum(sums);
    }
    return all;
}

// The largest score of each SEGMENT tokens; returns whether none is NaN. What is left at the end counts as one more segment.
bool segment_maxima(const float* scores, long vocab, float* out) {
    const Lanes lowest = splat(-1e30f);
    Lanes sums = splat(0.f);  // NaN if a score is
    for (long from = 0; from < vocab; from += SEGMENT) {
        alignas(64) float rest[SEGMENT];
        const float* part = scores + from;
        if (vocab - from < SEGMENT) {
            for (int i = 0; i < SEGMENT; i++) rest[i] = from + i < vocab ? part[i] : -INFINITY;
            part = rest;
        }
        Lanes top = load(part);
        sums = sums + greater(lowest, top);  // in this order NaN stays NaN
        for (int i = LANES; i < SEGMENT; i += LANES) {
            const Lanes more = load(part + i);
            sums = sums + greater(lowest, more);
            top = greater(top, more);
        }
        out[from / SEGMENT] = greatest(top);
    }
    const float all = sum(sums);
    return all == all;
}
}  // namespace
