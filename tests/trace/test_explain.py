"""Expectations from stored distributions, against sums by hand and against what happens."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from draftwood.core.errors import ConfigError
from draftwood.trace.chances import coupling, first_child, next_sibling, overlap
from draftwood.trace.explain import expect, explain
from draftwood.trace.records import Distribution, Trace
from tests.trace.runs import VOCAB, run


def shortened(probs: list[float], count: int) -> Distribution:
    """The likeliest tokens of a distribution."""
    order = sorted(range(len(probs)), key=lambda token: -probs[token])[:count]
    return Distribution(tokens=order, probs=[probs[t] for t in order], rest=max(0.0, 1 - sum(probs[t] for t in order)))


def pairs(count: int = 40, vocab: int = 6) -> list[tuple[list[float], list[float]]]:
    generator = torch.Generator().manual_seed(1)
    both = (2 * torch.randn(count, 2, vocab, generator=generator, dtype=torch.float64)).softmax(dim=-1).tolist()
    return [(p, q) for p, q in both]


@pytest.mark.parametrize("weight", [1.0, 0.6])
def test_bounds_of_an_overlap_hold_the_sum(weight: float) -> None:
    for p, q in pairs():
        true = sum(min(a, b / weight) for a, b in zip(p, q, strict=True))
        whole = overlap(shortened(p, 6), shortened(q, 6), weight)
        assert whole.low == pytest.approx(true)
        assert whole.high == pytest.approx(true)
        for most in (1, 2, 3):
            low, high = overlap(shortened(p, most), shortened(q, most), weight)
            assert low - 1e-9 <= true <= high + 1e-9


def test_the_chance_to_choose_the_same_token_with_shared_noise() -> None:
    noise = -torch.empty(40_000, 6, dtype=torch.float64).exponential_(generator=torch.Generator().manual_seed(2)).log()
    for p, q in pairs(6):
        same = [(torch.tensor(line).log() + noise).argmax(dim=-1) for line in (p, q)]
        seen = float((same[0] == same[1]).double().mean())
        low, high = coupling(shortened(p, 6), shortened(q, 6))
        assert low == pytest.approx(high)
        assert abs(seen - low) < 5 * math.sqrt(0.25 / 40_000)
        for most in (1, 2, 3):
            bounds = coupling(shortened(p, most), shortened(q, most))
            assert bounds.low - 1e-9 <= low <= bounds.high + 1e-9


def accepted(traces: list[Trace]) -> float:
    return sum(len(trace.rounds[0].path) for trace in traces) / len(traces)


@pytest.mark.parametrize(
    ("method", "verifier", "shapes"),
    [("rsd-c", "recursive", ("1", "2")), ("rsd-c", "traversal", ("1", "2")), ("iid", "recursive", ("1x1", "2x1"))],
)
def test_another_sibling_brings_what_is_expected(method: str, verifier: str, shapes: tuple[str, str]) -> None:
    """One round per text, with trees of one level: the mean gain of the wider tree is the mean of the expectations."""
    rows = 300
    narrow, wide = (run(method, verifier, rows=rows, length=2, rounds=1, shape=shape) for shape in shapes)
    found = [next_sibling(trace, trace.rounds[0], None, VOCAB) for trace in narrow]
    known = [one for one in found if one is not None]
    assert all(one.high - one.low < 1e-5 for one in known)
    ended = [trace for trace, one in zip(narrow, found, strict=True) if one is not None]
    assert all(not trace.rounds[0].path for trace in ended), "only where the path ended above drafted nodes"
    # Both have the same first children and the same numbers there, so only the tests of second children differ by chance.
    gain = sum(one.low for one in known)
    assert gain > 0.02 * rows
    assert abs(rows * (accepted(wide) - accepted(narrow)) - gain) < 4 * math.sqrt(sum(c.low * (1 - c.low) for c in known))


def test_with_shared_noise_it_is_known_what_another_sibling_would_bring() -> None:
    from draftwood.core.counter_rng import CounterRng

    narrow, wide = (run("shared-noise", rows=120, length=2, rounds=1, shape=shape, nodes=None) for shape in ("1", "2"))
    expected = []
    for trace in narrow:
        chance = next_sibling(trace, trace.rounds[0], CounterRng([trace.seed]), VOCAB)
        expected.append(len(trace.rounds[0].path) + (chance.low if chance else 0.0))
    assert expected == [pytest.approx(len(trace.rounds[0].path)) for trace in wide]
    assert sum(expected) > sum(len(trace.rounds[0].path) for trace in narrow)


def test_first_children_are_accepted_as_expected() -> None:
    traces = run("chain", "recursive", rows=150, length=6, shape="1")
    chances, seen = [], []
    for trace in traces:
        for one in trace.rounds:
            if len(one.nodes) > 1:
                chance = first_child(trace, one, 0)
                assert chance is not None
                chances.append(chance.low)
                seen.append(len(one.path))
    assert abs(sum(seen) - sum(chances)) < 4 * math.sqrt(sum(c * (1 - c) for c in chances) + 1)


@pytest.mark.parametrize(
    ("method", "verifier"), [("rsd-s", "recursive"), ("dynamic", "traversal"), ("shared-noise", "auto")]
)
def test_an_explanation_counts_what_is_in_the_rounds(method: str, verifier: str) -> None:
    [trace] = run(method, verifier, length=60)
    text = "\n".join(explain(trace))
    assert f"{len(trace.tokens)} tokens in {len(trace.rounds)} rounds" in text
    firsts = sum(node.depth == 1 for one in trace.rounds for node in one.nodes)
    assert f"Accepted by depth: 1: {sum(bool(one.path) for one in trace.rounds)} of {firsts}" in text
    assert 6 <= len(explain(trace)) <= 12
    found = expect(trace)
    assert found.agreement is not None
    assert 0 < found.agreement.low <= found.agreement.high <= 1
    assert found.perfect >= sum(len(one.path) for one in trace.rounds) / len(trace.rounds)


def test_plain_decoding_and_empty_traces() -> None:
    [trace] = run("ar")
    assert any("Nothing was drafted" in line for line in explain(trace))
    with pytest.raises(ConfigError, match="no rounds"):
        explain(replace(trace, rounds=[]))
