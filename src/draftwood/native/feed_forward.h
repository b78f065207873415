// The feed-forward network of a layer: SwiGLU or GeGLU, and mixtures of experts.
#pragma once
#include "attention.h"

namespace {
struct FeedForward : Attention {
    using Attention::Attention;

    // SwiGLU: gates through SiLU (or GELU) times ups; or gates, up to a limit, times sigmoids of them times ups within it, plus one.
    void activate(Input* to, const float* sums) const {
        const Lanes gate = load(sums), up = load(sums + LANES), limit = splat(facts.swiglu_limit);
        if (!facts.swiglu_limit) return N::store_input(to, activated(gate, facts.gelu) * up);
        const Lanes low = lesser(limit, gate), clamped = lesser(limit, greater(splat(0.f) - limit, up));
        N::store_input(to, low * sigmoid(low * splat(facts.swiglu_alpha)) * (clamped + splat(1.f)));
    }

    // One phase, or two: products that are added to the residual stream, normed before if there is such a norm.
    void linear_added(const Linear& a, const Input* in, const float* norm, const float* scalar = nullptr) {
        linear(a, count, in, nullptr, [&](int s, int r, const float* sums) {
            const size_t at = r * width + (size_t)s * STRIP;
            if (norm) memcpy(qkv + at, sums, sizeof(float) * STRIP);
            else for (int i = 0; i < STRIP; i += LANES) add_to_residual(residual + at + i, load(sums + i), scalar);
        });
        if (norm) each_token([&](int i) {
            rms_norm(qkv + i * width, norm, width, facts.width, [&](int j, const Lanes& sum) {
                add_to_residual(residual + i * width + j, sum, scalar);
            });
        });
    }

    // One phase: gates and ups of all tokens.
    void gate_up(const Layer& layer, const Input* in) {
        linear(layer.gate_up, count, in, layer.ffn_norm, [&](int s, int r, const float* sums) {
            activate(activated_inputs + (size_t)r * layer.down.inputs + (size_t)s * LANES, sums);
        });
    }

    void feed_forward(const Layer& layer) {
        if (layer.experts_up) return mixture(layer);
        gate_up(layer, normed);
        linear_added(layer.down, activated_inputs, layer.down_norm, layer.input_gate.outputs ? nullptr : layer.scalar);
    }

    // The experts of a token, those with the highest scores, and their weights, a softmax or sigmoids; the input of all of them is
    // in ``attended``.
    void route(const Layer& layer, int i) {
        Input* row = attended + i * width;
        auto take = into_inputs(row);
        rms_norm(residual + i * width, layer.router_norm ? layer.router_norm : layer.ffn_norm, width, facts.width, take);
        float scores[EXPERTS + STRIP], top = -INFINITY, all = 0, of_chosen = 0;
        for (int s = 0; s < layer.router.outputs / STRIP; s++) product(layer.router, s, 1, row, scores + s * STRIP);
        if (layer.gate_up.weights) {
            float share[LANES];
            store(share, sigmoid(splat(scores[facts.experts])));
            shared.expert_weights[count * facts.experts_per_token + i] = share[0];
        }
        for (int e = 0; e < facts.experts; e++) top = scores[e] > top ? scores[e] : top;
        for (int e = 0; e < facts.experts; e += LANES) {
            const Lanes a = load(scores + e);
            store(scores + e, facts.sigmoid_routing ? sigmoid(a) : exponential(a - splat(top)));
        }
        for (int e = 0; e < facts.experts; e++) all += scores[e];
        bool taken[EXPERTS] = {false};
        auto value = [&](int e) { return layer.choice_bias ? scores[e] + layer.choice_bias[e] : scores[e]; };
        const int choices = facts.experts_per_token;
        float* weight = shared.expert_weights + i * choices;
        for (int c = 0; c < choices; c++) {
            int best = -1;
            for (int e = 0; e < facts.experts; e++)
                if (!taken[e] && (best < 0 || value(e) > value(best))) best = e;
            taken[best] = true, shared.experts[i * choices + c] = best;
            of_chosen += weight[c] = scores[best];
        }
        const float of_none = facts.sigmoid_routing ? 1 : all, least = facts.sigmoid_routing ? 1e-6f : 0;
        for (int c = 0; c < choices; c++) weight[c] /= facts.normalise_experts ? of_chosen + least : of_none;
        for (int c = 0; layer.expert_scales && c < choices; c++) weight[c] *= layer.expert_scales[shared.experts[i * choices + c]];
        if (layer.experts_norm) rms_norm(residual + i * width, layer.experts_norm, width, facts.width, take);
    }

    // One phase: products of the choices of tokens with their experts' matrices; ``in(choice)`` is an input, and
    // ``out(strip, choice, sums)`` takes the sums of a strip. The number of chunks does not depend on the choices, which only a
    // thread with a chunk may look at: another one may come when they are those of a later layer.
    template <class I, class F>
    void experts(const Linear* of, I in, F out) {
        const int choices = count * facts.experts_per_token, strips = of->outputs / STRIP;
        int e = -1, nth = -1, rows = 0, choice[BATCH];  // e is the nth that is used, from 0 on
        float sums[BATCH * STRIP];
        Input* gathered = (Input*)own.gathered;
        auto is_used = [&](int expert) {
            for (int i = 0; i < choices; i++)
                if (shared.experts[i] == expert) return 1;
            return 0;
        };
        in_chunks(least(facts.experts, choices) * strips, 1, [&](int chunk) {
            const int wanted = chunk / strips;  // among those that are used
            if (wanted < nth) e = nth = -1;
            if (wanted != nth) {
                while (nth < wanted && e < facts.experts) nth += is_used(++e);
                nth = wanted, rows = 0;  // also if there are not so many
                for (int i = 0; i < choices; i++)
                    if (shared.experts[i] == e) {
                        memcpy(gathered + (size_t)rows * of->inputs, in(i), of->inputs * sizeof(Input));
                        choice[rows++] = i;
                    }
                quantise_rows(of[least(e, facts.experts - 1)], rows, gathered);
            }
            if (!rows) return;
            product(of[e], chunk % strips, rows, gathered, sums);
            for (int r = 0; r < rows; r++) out(chunk % strips, choice[r], sums + r * STRIP);
        });
    }

    void mixture(const Layer& layer) {
        const size_t inner = layer.experts_down->inputs, choices = facts.experts_per_token;
        each_token([&](int i) { route(layer, i); });
        experts(layer.experts_up, [&](int i) { return attended + i / choices * width; }, [&](int s, int i, const float* sums) {
            activate(activated_inputs + i * inner + (size_t)s * LANES, sums);
        });
        experts(layer.experts_down, [&](int i) { return activated_inputs + i * inner; }, into_rows(qkv, width));
        each_token([&](int i) {
            float* first = qkv + i * choices * width;
            for (size_t j = 0; j < width; j += LANES) {
                Lanes sum = splat(0.f);
                for (size_t c = i * choices; c < (i + 1) * choices; c++)
                    sum = fma(load(qkv + c * width + j), splat(shared.expert_weights[c]), sum);
                if (layer.mixture_norm) store(first + j, sum);
                else add_to_residual(residual + i * width + j, sum);
            }
            if (layer.mixture_norm) rms_norm(first, layer.mixture_norm, width, facts.width, into_row(first));
        });
        if (layer.mixture_norm) network_beside(layer, qkv + count * choices * width);
        else if (layer.gate_up.weights) shared_expert(layer, shared.expert_weights + count * choices);
    }

    // The network of all tokens next to a mixture, whose sums are where the first of a token's choices was: each is normed, and both
    // together.
    void network_beside(const Layer& layer, float* made) {
        gate_up(layer, normed);
        linear(layer.down, count, activated_inputs, nullptr, into_rows(made, width));
        each_token([&](int i) {
            float* row = made + i * width;
            const float* mixed = qkv + (size_t)i * facts.experts_per_token * width;
            rms_norm(row, layer.dense_norm, width, facts.width, [&](int j, const Lanes& a) { store(row + j, a + load(mixed + j)); });
            rms_norm(row, layer.down_norm, width, facts.width, [&](int j, const Lanes& a) {
                add_to_residual(residual + i * width + j, a, layer.input_gate.outputs ? nullptr : layer.scalar);
            });
        });
    }

    // The expert that all tokens have, times their shares of it.
    void shared_expert(const Layer& layer, const float* shares) {
        gate_up(layer, attended);
        linear(layer.down, count, activated_inputs, nullptr, [&](int s, int r, const float* sums) {
            float* to = residual + r * width + (size_t)s * STRIP;
            for (int i = 0; i < STRIP; i += LANES) add_to_residual(to + i, load(sums + i) * splat(shares[r]));
        });
    }
};
}  // namespace
