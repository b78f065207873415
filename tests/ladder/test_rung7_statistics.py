"""Rung 7: texts of a real pair on the real noise, against the target alone; and the joint distribution of many rounds at
V = 2."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

import draftwood
from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.engine.requests import Request
from draftwood.exactness.goodness import BINS, goodness_of_fit
from draftwood.exactness.report import check
from draftwood.sampling.counter_rng import CounterRng, CounterRoundRng
from draftwood.sampling.counters import uniform
from draftwood.sampling.settings import Sampling
from tests.helpers import decoder
from tests.ladder.test_rung3_tape import other_temperature, tampered
from tests.tables import TableRunner

PROMPTS = ["Once upon a time", "The old king", "Question: Tom has 3 apples"]
METHODS = [("rsd-c", "2-2-1", "recursive"), ("rsd-s", "3x3", "traversal"), ("shared-noise", None, "coupled")]


@pytest.fixture(scope="module")
def pair():
    return draftwood.load()


@pytest.mark.parametrize(("method", "shape", "verifier"), METHODS)
def test_texts_of_the_bundled_pair_follow_the_target(pair, method, shape, verifier):
    engine = pair.decoder(Method(method=method, shape=shape, verifier=verifier))
    sampling = Sampling(temperature=0.8, top_p=0.95, repetition_penalty=1.1)
    report = check(pair, engine, sampling, PROMPTS, samples=48, new_tokens=24, seed=100)
    assert report.exact, report
    assert report.detectable < 0.15


def test_control_a_draft_that_is_recorded_wrongly_is_seen(pair):
    honest = pair.decoder(Method(method="chain", shape="3"))
    lying = tampered(honest, lambda tree: other_temperature(tree, 0.3), tokenizer=pair.tokenizer)
    assert not check(pair, lying, Sampling(), PROMPTS, samples=48, new_tokens=24, seed=100).exact


def test_control_texts_of_another_temperature_are_seen(pair):
    class Warmer:
        engine = pair.decoder(Method(method="ar"))
        pipeline, stats = engine.pipeline, ()

        def stream(self, requests, sampling):
            return self.engine.stream(requests, replace(sampling, temperature=1.3))

    assert not check(pair, Warmer(), Sampling(), PROMPTS, samples=48, new_tokens=24, seed=100).exact


def test_the_report_knows_how_small_a_distance_it_finds():
    rng = np.random.default_rng(0)
    n, found = 4_000, 0
    detectable = goodness_of_fit(torch.rand(n)).detectable
    for _ in range(40):
        half = rng.random(n) < 0.5 + detectable
        pit = rng.random(n) / 2 + 0.5 * half
        found += not goodness_of_fit(torch.from_numpy(pit)).exact
    assert 30 <= found <= 40
    assert all(goodness_of_fit(torch.from_numpy(rng.random(n))).exact for _ in range(40))
    assert goodness_of_fit(torch.from_numpy(rng.random(n))).expected == pytest.approx(np.sqrt(BINS / (2 * np.pi * n)))


# ---- many rounds, two tokens, and a draft that wants the opposite ----

LENGTH, ROWS = 8, 2_000
TARGET = torch.tensor([[1.2, -0.3], [-0.6, 0.9]], dtype=torch.float64)
REVERSED = -TARGET


def texts(engine, source=None):
    requests = [Request(prompt=[0], seed=s, limits=Limits(max_new_tokens=LENGTH)) for s in range(ROWS)]
    noise = source(range(ROWS)) if source else None
    return [tuple(r.token_ids) for r in engine.generate(requests, Sampling(), noise=noise)]


def far_off(drawn):
    """Chi-squared of the joint distribution of whole texts, as a normal score; rare texts are one outcome."""
    distribution = TARGET.softmax(-1).tolist()
    chance = {(): 1.0}
    for _ in range(LENGTH):
        chance = {(*t, x): p * distribution[(0, *t)[-1]][x] for t, p in chance.items() for x in (0, 1)}
    seen = Counter(drawn)
    common = [t for t, p in chance.items() if p * len(drawn) >= 8]
    rest = 1 - sum(chance[t] for t in common)
    cells = [(seen[t], chance[t]) for t in common] + [(len(drawn) - sum(seen[t] for t in common), rest)]
    chi = sum((n - len(drawn) * p) ** 2 / (len(drawn) * p) for n, p in cells)
    return (chi - (len(cells) - 1)) / np.sqrt(2 * (len(cells) - 1))


@pytest.mark.parametrize(("method", "shape", "verifier"), [
    ("chain", "2", "recursive"), ("rsd-c", "2-1", "traversal"), ("rsd-s", "2x2", "recursive"), ("iid", "2x2", "traversal"),
    ("rsd-s", "2x2", "traversal"),
])  # fmt: skip
def test_the_joint_distribution_of_many_rounds_with_a_reversed_draft(method, shape, verifier):
    engine = decoder(TableRunner(TARGET), TableRunner(REVERSED), method, shape, verifier)
    assert abs(far_off(texts(engine))) < 5


class OneRng:
    """The draft's first draw decides the token after a rejection too."""

    def __init__(self, seeds):
        self.inner = CounterRng(seeds)

    def select(self, rows):
        out = type(self)([])
        out.inner = self.inner.select(rows)
        return out

    def at(self, positions):
        rng = CounterRoundRng(self.inner, positions)

        rng.token = lambda distribution: rng._arrivals(distribution.log().unsqueeze(1), 0).squeeze(1).argmin(-1)
        return rng


class Stuck(OneRng):
    """The same random numbers in every round."""

    def at(self, positions):
        return CounterRoundRng(self.inner, [0] * len(positions))


@pytest.mark.parametrize("source", [OneRng, Stuck])
def test_control_noise_that_is_used_twice_is_seen(source):
    engine = decoder(TableRunner(TARGET), TableRunner(TARGET * 0.3), "chain", "2", "recursive")
    assert abs(far_off(texts(engine))) < 5
    assert abs(far_off(texts(engine, source))) > 10


def test_single_uniform_numbers_are_uniform():
    u = np.array([uniform(np.arange(2_000, dtype=np.uint64), [slot] * 2_000) for slot in range(5)]).ravel()
    assert u.min() > 0
    assert u.max() < 1
    assert goodness_of_fit(torch.from_numpy(u)).exact
