"""``draftwood check`` calls broken engines broken at its default budget, and sound ones exact."""

import copy
import json
from dataclasses import asdict
from itertools import pairwise

import pytest
import torch

from draftwood.api import Pair
from draftwood.cli.check import CheckConfig
from draftwood.core.settings import Method
from draftwood.draft.adaptive.budget import EverySize
from draftwood.exactness.evidence import of_events, of_mean, of_pairs, of_rare, ratios
from draftwood.exactness.goodness import SIGNIFICANCE
from draftwood.exactness.report import check, decoder_of
from draftwood.sampling.settings import Sampling
from tests.faults.breaks import BREAKS
from tests.helpers import tiny_gpt

SAME, REUSED, SORTED, EASY, ALL, FLATTER, FAVOURED = BREAKS
DEFAULT, DRAWN = Method(), Method(method="rsd-s")
SHARED = Method(method="shared-noise", nodes=6)
LEAVES = Method(method="rsd-c", verifier="traversal", shape="2-2-1")


@pytest.fixture(scope="module")
def pair():
    """A tiny target, and a draft that is nearly as good."""
    target = tiny_gpt(48, 1, dtype=torch.float32, spread=0.35)
    draft = copy.deepcopy(target)
    torch.manual_seed(3)
    with torch.no_grad():
        for weights in draft.parameters():
            weights += 0.25 * weights.std(correction=0) * torch.randn_like(weights)
    return Pair(target, draft, None)


def found(pair, method, broken=lambda engine: engine, sampling=None, part=1):
    size = CheckConfig()
    engine = broken(decoder_of(pair, method, 1.0))
    prompts = [[1, 2], [3, 4, 5]]
    return check(
        pair, engine, sampling or Sampling(), prompts, samples=size.samples // part, new_tokens=size.new_tokens, seed=0
    )


# Breaks whose p-value is far below the level with a part of the samples are looked for in that part.
@pytest.mark.parametrize(("method", "name", "test", "part"), [
    (SHARED, SAME, "serial, lag 1, noise", 2), (LEAVES, SAME, "next round, extra token", 4),
    (DEFAULT, REUSED, "serial, lag 1, noise", 2), (DRAWN, REUSED, "next round, drafted", 4),
    (DRAWN, SORTED, "drafted, sibling 1", 1), (LEAVES, SORTED, "drafted, sibling 2", 1),
    (SHARED, EASY, "choice", 1), (DRAWN, EASY, "accepted", 1), (LEAVES, EASY, "accepted", 1),
])  # fmt: skip
def test_a_break_that_the_marginal_test_does_not_see_is_found(pair, method, name, test, part):
    report = found(pair, method, BREAKS[name], part=part)
    assert not report.exact
    assert report.p_value > SIGNIFICANCE
    assert test in {one.name for one in report.tests if one.fails}
    assert "tests fail, first '" in report.summary()


@pytest.mark.parametrize(("method", "name", "test", "part"), [
    (DEFAULT, FLATTER, "choice", 4), (LEAVES, FLATTER, "scores, factor", 1), (DEFAULT, FAVOURED, "choice", 4),
    (DRAWN, FAVOURED, "scores, one token", 1), (SHARED, ALL, "choice", 4), (DRAWN, ALL, "accepted", 4),
    (DEFAULT, SAME, "serial, lag 1, noise", 2),  # the tree's size depends on the clock, and so what the marginal test sees
])  # fmt: skip
def test_a_gross_break_is_found_and_so_is_a_fault_of_the_scores_of_trees(pair, method, name, test, part):
    assert test in {one.name for one in found(pair, method, BREAKS[name], part=part).tests if one.fails}


def test_the_report_names_the_faults_that_it_would_find(pair):
    report = found(pair, DRAWN)
    assert report.exact
    assert 0.9 <= report.faults.below < 1 < report.faults.above <= 1.1
    assert f", scores times {report.faults.below:g} or {report.faults.above:g}" in report.summary()
    assert f"; {report.accepted:,} of {report.drafted:,} drafted nodes were accepted" in report.summary()
    assert report.drafted > report.accepted > 0


def test_a_check_without_accepted_drafts_proves_nothing(pair, monkeypatch):
    monkeypatch.setattr(EverySize, "begin_round", lambda self: True)
    report = found(pair, DEFAULT, part=4)
    assert (report.exact, report.unproven, report.drafted) == (False, True, 0)
    assert report.summary().startswith("NO PROOF, since no drafted token was accepted: ")
    assert found(pair, Method(method="ar"), part=4).exact  # which drafts nothing


def test_order_of_siblings_means_nothing_to_a_verifier_that_matches(pair):
    assert found(pair, DEFAULT, BREAKS[SORTED]).exact


@pytest.mark.parametrize(
    "method",
    [DEFAULT, LEAVES, DRAWN, SHARED, *(Method(method=name) for name in ("chain", "dynamic", "ngram"))],
    ids=lambda method: f"{method.method}-{method.verifier}",
)
def test_sound_engines_are_called_exact(pair, method):
    report = found(pair, method, sampling=Sampling(temperature=0.8, top_p=0.95, repetition_penalty=1.1), part=4)
    assert report.exact, report.summary()
    assert sum(test.level for test in report.tests) <= SIGNIFICANCE * (1 + 1e-9)
    json.dumps(asdict(report))


def test_ratios_of_reused_noise_are_those_of_a_simulation():
    torch.manual_seed(0)
    vocab, draws = 5, 400_000
    now, then = (torch.randn(2, vocab, dtype=torch.float64) * 1.5).softmax(-1)
    waits = torch.rand(draws, vocab, dtype=torch.float64).log().neg()
    first, second = (waits / then).argmin(1), (waits / now).argmin(1)
    tokens = torch.arange(vocab)
    for earlier in range(vocab):
        row = [now.expand(vocab, -1), then.expand(vocab, -1), tokens.expand(vocab, -1)]
        own = [now[earlier].expand(vocab), then[earlier].expand(vocab), torch.full((vocab,), earlier)]
        distribution = ratios(*row, *own, tokens) * now
        seen = second[first == earlier]
        assert float(distribution.sum()) == pytest.approx(1)
        share = torch.bincount(seen, minlength=vocab) / len(seen)
        assert torch.allclose(share.double(), distribution, atol=4 / len(seen) ** 0.5)


def test_p_values_are_no_smaller_than_chance_makes_them():
    generator = torch.Generator().manual_seed(0)
    runs = 2_000
    chances = torch.rand(runs, 60, generator=generator) ** 3
    events = torch.rand(runs, 60, generator=generator) < chances
    bets = [of_events(c, e) for c, e in zip(chances.tolist(), events.tolist(), strict=True)]
    places = torch.rand(runs, 60, generator=generator).tolist()
    means = [of_mean(row) for row in places]
    pairs = [of_pairs(list(pairwise(row))) for row in places]
    for values in (bets, means, pairs):
        for level in (0.1, 0.01):
            assert sum(p <= level for p in values) <= runs * level + 4 * (runs * level) ** 0.5
    assert of_rare(2, 4096, 0.0005) == 1.0
    assert of_rare(40, 4096, 0.0005) < 1e-6
