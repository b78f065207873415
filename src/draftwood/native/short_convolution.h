// Convolutions over the last tokens of a path, and layers that are made of one.
#pragma once
#include "feed_forward.h"
#include "states.h"

namespace {
struct ShortConvolution : FeedForward {
    using FeedForward::FeedForward;

    static int position(const Token& token) { return token.text + token.seen - 1; }

    // The slot of the token at a position on the path of another one.
    int slot_at(const Token& token, int position) const {
        return position < token.text ? position : work.path[token.first + position - token.text];
    }

    Place place(const Token& token, int slot) const { return {work.states[token.row], token.text, slot}; }

    // The number in this batch of a token that token i sees; below 0 of an earlier one.
    int in_batch(int i, int slot) const {
        const Token& token = work.tokens[i];
        const int other = i - (token.slot - slot);
        return other >= 0 && work.tokens[other].row == token.row && work.tokens[other].slot == slot ? other : -1;
    }

    // Inputs of the token ``back`` places before token i on its path; null before the text.
    const float* inputs(const Layer& layer, int i, int back) const {
        const Token& token = work.tokens[i];
        if (position(token) < back) return nullptr;
        const int slot = slot_at(token, position(token) - back), other = in_batch(i, slot);
        return other >= 0 ? qkv + (size_t)other * layer.qkv.outputs : place(token, slot).inputs(model, layer);
    }

    // The convolution of a token: ``out(channel, sums)``.
    template <class F>
    void convolve(const Layer& layer, int i, F out) const {
        const int taps = facts.taps_of_convolution;
        const float *from[MAX_TAPS], *last = layer.convolution + (size_t)(taps - 1) * model.channels;
        for (int back = 0; back < taps; back++) from[back] = inputs(layer, i, back);
        for (int c = 0; c < model.channels; c += LANES) {
            Lanes sums = splat(0.f);
            for (int back = taps - 1; back >= 0; back--)
                if (from[back]) sums = fma(load(last - back * model.channels + c), load(from[back] + c), sums);
            out(c, sums);
        }
    }

    // Keep the inputs of token i, and its keys, unless a later token of the batch takes its place in memory: once no token of the
    // batch reads what is there.
    void keep(const Layer& layer, int i, const float* keys) const {
        const Token &token = work.tokens[i], *later = i + 2 * INTERVAL < count ? &token + 2 * INTERVAL : nullptr;
        if (later && later->row == token.row && !later->seen) return;
        float* to = place(token, token.slot).inputs(model, layer);
        memcpy(to, qkv + (size_t)i * layer.qkv.outputs, sizeof(float) * model.channels);
        if (keys) memcpy(to + model.channels, keys, sizeof(float) * (kept_numbers(model) - model.channels));
    }

    // Inputs are products of two panels of a strip; factors of the outputs follow.
    template <class F>
    void short_convolution(const Layer& layer, F begin) {
        const int size = model.channels;
        const size_t stride = layer.qkv.outputs;
        linear(layer.qkv, count, normed, layer.norm, [&](int s, int r, const float* sums) {
            float* row = qkv + r * stride;
            if (s < size / LANES) store(row + s * LANES, load(sums) * load(sums + LANES));
            else memcpy(row + s * STRIP - size, sums, sizeof(float) * STRIP);
        });
        each_token([&](int i) {
            const float* factors = qkv + i * stride + size;
            auto* to = attended + (size_t)i * size;
            begin(i);
            convolve(layer, i, [&](int c, const Lanes& sums) { N::store_input(to + c, load(factors + c) * sums); });
        });
        each_token([&](int i) { keep(layer, i, nullptr); });
    }
};
}  // namespace
