"""The verifiers' own benchmark: every case is measured, and the plain rule beside ours is exact as well."""

from __future__ import annotations

import json

import torch

from benchmarks.verify_step import OURS, PLAIN, SAMPLINGS, MadeUpDraft, straightforward
from draftwood.core.counter_rng import CounterRng
from draftwood.core.settings import Method
from draftwood.engine.methods import build
from draftwood.sampling.settings import Sampling
from tests.benchmarks.tiny import call
from tests.helpers import sampler_of


def test_every_case_is_measured_and_written(tmp_path):
    options = "--vocab", "50", "--vocab", "20", "--shape", "2x3", "--repeats", "2"
    done = call("verify", *options, "--output", tmp_path)
    document = json.loads((tmp_path / "verify.json").read_text())
    cases = {(r["vocab"], r["laws"], r["verifier"]) for r in document["milliseconds"]}
    assert cases == {(v, s, name) for v in (20, 50) for s in SAMPLINGS for name in (*OURS, PLAIN)}
    assert all(0 < r["least"] <= r["median"] <= r["most"] for r in document["milliseconds"])
    assert (tmp_path / "verify.md").read_text() in done.stdout


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
