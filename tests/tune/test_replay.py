"""Acceptance from notes taken while real text is written."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from draftwood.core.limits import Limits
from draftwood.core.settings import Method, Sampling
from draftwood.engine.decode import Decoder, Request
from draftwood.engine.methods import build
from draftwood.exactness.tape import total_variation
from draftwood.runners.table import TableRunner
from draftwood.tune.choose import acceptance
from draftwood.tune.nests import Nest, beams, branchings
from draftwood.tune.replay import Replay
from draftwood.verify.recursive import Recursive
from draftwood.verify.traversal import Traversal
from tests.ladder.test_rung3_tape import EXACT, at_temperature, engine_distribution, reference_distribution, runners

VOCAB, TEXTS, TOKENS = 8, 24, 32
NESTS = {"beams": beams(3, 4), "branchings": branchings((3, 2, 1))}


def pair(order):
    """With order 0 what a round accepts does not hang on where it begins; with order 1 it does."""
    torch.manual_seed(4)
    table = 1.5 * torch.randn([VOCAB] * (order + 1), dtype=torch.float64)
    return TableRunner(table), TableRunner(table + 0.8 * torch.randn_like(table))


def requests(seed):
    return [Request(prompt=[i % VOCAB], seed=seed + i, limits=Limits(max_new_tokens=TOKENS)) for i in range(TEXTS)]


@cache
def foretold(name, order, temperature=1.0):
    nest, (target, draft) = NESTS[name], pair(order)
    replay = Replay(nest, Traversal())
    drafter, _ = build(nest.method, draft, greedy=temperature == 0)
    Decoder(target, drafter, replay).generate(requests(0), Sampling(temperature=temperature))
    return replay, acceptance(replay, nest, greedy=temperature == 0)


def really(method, order, temperature=1.0):
    """Block efficiency of rounds that had room for their whole tree, and its standard error."""
    target, draft = pair(order)
    drafter, verifier = build(method, draft, greedy=temperature == 0)
    size = 1 + sum(drafter.policy.widths)
    counts = [
        1.0 + len(piece.round.paths[piece.round_row])
        for pieces in Decoder(target, drafter, verifier).stream(requests(9000), Sampling(temperature=temperature))
        for piece in pieces
        if sum(piece.round.tree.lists[2][piece.round_row]) == size
    ]
    spread = torch.tensor(counts)
    return float(spread.mean()), float(spread.std()) / len(counts) ** 0.5


MEMBERS = [
    ("beams", Method(method="chain", shape="3", verifier="recursive")),
    ("beams", Method(method="chain", shape="4", verifier="traversal")),
    ("beams", Method(method="rsd-s", shape="2x3", verifier="recursive")),
    ("beams", Method(method="rsd-s", shape="3x4", verifier="traversal")),
    ("branchings", Method(method="rsd-c", shape="2-2", verifier="recursive")),
    ("branchings", Method(method="rsd-c", shape="3-1-1", verifier="traversal")),
]


@pytest.mark.parametrize(("name", "method"), MEMBERS, ids=[f"{m.shape} {m.verifier}" for _, m in MEMBERS])
def test_what_is_foretold_comes_true(name, method):
    replay, found = foretold(name, 0)
    mean, error = really(method, 0)
    notes = torch.tensor(getattr(replay, method.verifier))
    own = float(notes.std(0).max()) / len(notes) ** 0.5
    assert abs(found[method] - mean) < 4 * (error**2 + own**2) ** 0.5
    other = Method(method="chain", shape="1", verifier="recursive")  # a control: the figure of another shape is too far off
    assert other not in found or abs(found[other] - mean) > 4 * (error**2 + own**2) ** 0.5


def test_rounds_begin_as_they_do_for_the_anchor():
    replay, found = foretold("beams", 1)
    anchor = Method(method="rsd-s", shape=NESTS["beams"].anchor.shape, verifier="traversal")
    mean, error = really(anchor, 1)
    notes = torch.tensor(replay.traversal)
    own = float(notes.std(0).max()) / len(notes) ** 0.5
    assert abs(found[anchor] - mean) < 4 * (error**2 + own**2) ** 0.5


def test_at_temperature_0_every_member_is_what_it_would_be():
    for name, nest in NESTS.items():
        _, found = foretold(name, 1, 0.0)
        assert list(found) == list(nest.members)
        mean, _ = really(nest.anchor, 1, 0.0)
        assert found[nest.anchor] == pytest.approx(mean, rel=0.02)
        assert found[nest.anchor] > 1.1


def test_wider_and_deeper_trees_are_never_foretold_less():
    _, found = foretold("beams", 1)
    for w in (2, 3):
        for depth in (2, 3, 4):
            one, less = (Method(method="rsd-s", shape=f"{w}x{n}", verifier="recursive") for n in (depth, depth - 1))
            assert found[one] > found[less]


@pytest.mark.parametrize(
    ("nest", "inner"), [(beams(2, 2), Recursive()), (branchings((2, 1)), Traversal())], ids=["beams", "branchings"]
)
def test_the_text_follows_the_targets_distribution_while_notes_are_taken(nest, inner):
    smaller = next(method for method in nest.members if method.shape in ("2x1", "2"))  # decides by a part of what is drafted
    target, draft = runners(3)
    replay = Replay(Nest(method=nest.method, members=nest.members, anchor=smaller), inner)
    engine = Decoder(target, build(nest.method, draft, greedy=False)[0], replay)
    distribution = engine_distribution(engine, 3, Sampling())
    assert total_variation(distribution, reference_distribution(target.model, 3, at_temperature(1.0))) < EXACT
    assert replay.recursive
