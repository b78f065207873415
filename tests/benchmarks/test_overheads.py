"""What traces and verifiers cost: ratios are those of the seconds, and the baseline of the verifiers is exact."""

from __future__ import annotations

import pytest
import torch

from benchmarks.tracing.run import BARE, OFF, ON, between, within
from benchmarks.verify_step import MadeUpDraft, straightforward
from draftwood.core.settings import Method
from draftwood.engine.methods import build
from draftwood.sampling.counter_rng import CounterRng
from draftwood.sampling.settings import Sampling
from tests.helpers import sampler_of


def test_ratios_are_taken_inside_each_text():
    seconds = {BARE: [1.0, 2.0, 4.0], OFF: [1.0, 2.02, 4.0], ON: [1.1, 2.4, 4.4], "hooks": [0.0, 0.0, 0.0]}
    seconds["recorder"] = [0.1, 0.4, 0.4]
    assert between(seconds, "off") == pytest.approx((1.0, 1.0, 1.01))
    assert between(seconds, "on")[0] == pytest.approx(1.1)
    assert within(seconds, "on")[0] == pytest.approx(1.1)
    assert within(seconds, "off") == (1.0, 1.0, 1.0)


def test_the_plain_rule_follows_the_targets_distribution():
    vocab, samples = 16, 3000
    torch.manual_seed(0)
    counts, expected = torch.zeros(vocab), torch.zeros(vocab)
    for seed in range(samples):
        draft = MadeUpDraft(vocab, 3)
        drafter, _ = build(Method(method="rsd-s", shape="3x1"), draft, greedy=False)
        sampler = sampler_of(Sampling(), [[0]], vocab)
        tree = drafter.draft(torch.tensor([0]), sampler, CounterRng([seed]).at([1]), [1])
        scores = draft.target_scores(tree)
        path, token = straightforward(tree, scores, Sampling())
        counts[int(tree.tokens[0, path[0]]) if path else token] += 1
        expected += scores[0, 0].softmax(-1) / samples
    chi2 = float(((counts - samples * expected) ** 2 / (samples * expected)).sum())
    assert chi2 < vocab - 1 + 5 * (2 * (vocab - 1)) ** 0.5
