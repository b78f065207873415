// What each phase of a forward is made of: chunks that threads claim, products of a matrix, and norms.
#pragma once
#include "gemm.h"
#include "panels.h"

namespace {
// These take numbers of a row; or sums of strips, as rows that are ``stride`` apart.
inline auto into_row(float* to) {
    return [=](int i, const Lanes& a) { store(to + i, a); };
}
inline auto into_inputs(Input* to) {
    return [=](int i, const Lanes& a) { N::store_input(to + i, a); };
}
inline auto into_rows(float* to, size_t stride) {
    return [=](int s, int r, const float* sums) { memcpy(to + r * stride + (size_t)s * STRIP, sums, sizeof(float) * STRIP); };
}

// A batch of tokens, as one thread sees it.
struct Batch {
    static const int STEP = N::tiles ? TILE_INPUTS : N::step;  // inputs that are added together
    const Work& work;
    const Model& model;
    const Facts& facts;
    Job& job;
    const Shared& shared;
    Scratch& own;
    const int thread, threads, count;
    int phase;
    const int phases_end;  // behind the last one
    const size_t width;
    int dim = 0, head_group = 0;              // of the layer: numbers of a head, heads that share keys
    size_t heads_width = 0, qkv_width = 0;
    float *residual, *qkv;
    Input *queries, *attended, *activated_inputs, *normed;
    Inputs coded{};

    Batch(const Work& batch, int number, const Worker& worker)
        : work(batch), model(*work.model), facts(model.facts), job(*worker.job), shared(*worker.shared), own(*worker.own),
          thread(worker.thread), threads(worker.threads), count(work.count), phase(number * phases_of(facts.layers)),
          phases_end(phase + phases_of(facts.layers)), width(model.padded_width), residual(shared.residual),
          qkv(shared.qkv), queries((Input*)shared.queries), attended((Input*)shared.attended),
          activated_inputs((Input*)shared.activated), normed((Input*)own.normed) {}

    // A layer of attention begins.
    void enter(const Layer& layer) {
        dim = layer.dim, head_group = facts.heads / layer.kv_heads;
        heads_width = (size_t)facts.heads * dim, qkv_width = layer.qkv.outputs;
    }

    // One phase: ``each(item)``, in chunks of ``size`` of all items.
    template <class F>
    void in_chunks(int items, int size, F each_item) {
        if (phase == phases_end) too_many_phases();
        int chunks = ceil_div(items, size);
        for (int c, done = 0; (c = claim(job, phase, chunks, thread, done)) >= 0; done++)
            for (int i = c * size; i < least(items, (c + 1) * size); i++) each_item(i);
        phase++;
    }

    template <class F>
    void each_token(F one) { in_chunks(count, ceil_div(count, 2 * threads), one); }

    // The products of rows with two panels.
    void multiply(const TwoPanels& a, int rows, const Input* in, size_t next, float* out, size_t next_out, bool more) {
#if defined(DRAFTWOOD_AMX)
        if (N::tiles) return tiles_of_amx(a, rows, (const uint16_t*)in, next, out, next_out, more, own.tile_rows);
#endif
        tiles(a, rows, in, next, out, next_out, more);
    }

    // A strip, or some of its inputs.
    static TwoPanels strip_of(const Weight* weights, int inputs, bool of_matrix) {
        return {weights, STRIP * N::step, LANES * N::step, inputs, of_matrix};
    }

    // The products of rows with a strip whose codes are expanded to numbers, EXPANDED inputs at a time.
    void multiply_expanded(const Linear& a, int strip, int rows, const Input* in, float* out) {
        alignas(64) uint16_t numbers[EXPANDED * STRIP];  // of bfloat16
        const Panel* panels = a.panels + 2 * strip;
        for (int k = 0; k < a.inputs; k += EXPANDED) {
            const int size = least(EXPANDED, a.inputs - k);
            for (int p = 0; p < 2; p++)
                for (int i = 0; i < size / QUANT; i++)
                    expand_group(panels[p], k / QUANT + i, numbers + i * QUANT * STRIP + p * LANES * N::step, STRIP * N::step);
            multiply(strip_of((const Weight*)numbers, size, false), rows, in + k, a.inputs, out, STRIP, k > 0);
        }
    }

    // The products of rows with a strip of a matrix, and its bias.
    void product(const Linear& a, int strip, int rows, const Input* in, float* out) {
        const bool codes = a.panels && a.panels[2 * strip].format;
        if (codes && N::integers) {
            for (int p = 0; p < 2; p++) multiply_panel(a.panels[2 * strip + p], coded, out + p * LANES, STRIP);
        } else if (codes) {
            multiply_expanded(a, strip, rows, in, out);
        } else {
            const Weight* matrix = (const Weight*)a.weights + (size_t)strip * STRIP * a.inputs;
            const Weight* weights = a.panels ? (const Weight*)a.panels[2 * strip].codes : matrix;
            multiply(strip_of(weights, a.inputs, true), rows, in, a.inputs, out, STRIP, false);
        }
        for (int r = 0; a.bias && r < rows; r++)
            for (int i = 0; i < STRIP; i += LANES)
                store(out + r * STRIP + i, load(out + r * STRIP + i) + load(a.bias + strip * STRIP + i));
    }

    // Rows of inputs of a matrix in codes become codes.
    void quantise_rows(const Linear& a, int rows, const Input* in) {
        if (!N::integers || !a.panels) return;
        int8_t* codes = (int8_t*)own.codes;
        coded = {codes, (InputGroup*)(codes + (size_t)rows * a.inputs), a.inputs, rows};
        quantise((const float*)in, coded);
#if defined(DRAFTWOOD_AMX)
        if (rows >= MANY_ROWS) configure_for_codes(own.tile_rows);
#endif
    }

    // One phase: products of rows with a matrix from a strip on; ``out(strip, row, sums)`` takes those of a strip. The inputs
    // ``normed`` are made of the residual stream, by ``norm`` or null.
    template <class F>
    void linear(const Linear& a, int rows, const Input* in, const float* norm, F out, int from = 0) {
        bool ready = false;
        float sums[BATCH * STRIP];
        in_chunks(a.outputs / STRIP - from, 1, [&](int s) {
            if (!ready && in == normed) norm_all(norm);
            if (!ready) quantise_rows(a, rows, in), ready = true;
            product(a, s + from, rows, in, sums);
            for (int r = 0; r < rows; r++) out(s + from, r, sums + r * STRIP);
        });
    }

    float inverse_rms(const float* row, int size, int numbers) const {
        Lanes squares = splat(0.f);
        for (int i = 0; i < size; i += LANES) squares = fma(load(row + i), load(row + i), squares);
        return 1.f / sqrtf(sum(squares) / numbers + facts.epsilon);
    }

    // RMSNorm of a row of ``numbers``, padded to ``size``.
    template <class F>
    void rms_norm(const float* row, const float* weight, int size, int numbers, F out) const {
        Lanes factor = splat(inverse_rms(row, size, numbers));
        for (int i = 0; i < size; i += LANES) out(i, load(row + i) * factor * load(weight + i));
    }

    // The residual stream of all tokens as inputs of a product, normed if there is a norm.
    void norm_all(const float* weight) {
        for (int r = 0; r < count; r++) {
            const float* row = residual + r * width;
            auto take = into_inputs(normed + r * width);
            if (weight) rms_norm(row, weight, width, facts.width, take);
            else for (size_t i = 0; i < width; i += LANES) take(i, load(row + i));
        }
    }

    // ``scalar``, or null, is what the sum is multiplied by.
    void add_to_residual(float* to, const Lanes& a, const float* scalar = nullptr) {
        const Lanes sum = load(to) + a * splat(facts.residual_scale);
        store(to, scalar ? sum * splat(*scalar) : sum);
    }
};
}  // namespace
