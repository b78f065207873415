"""The trees in a large tree are those that the drafters draw with the same noise."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from draftwood.core.rng import CounterRng
from draftwood.core.sampling import Sampler
from draftwood.core.settings import Method, Sampling
from draftwood.draft.level import LevelDrafter
from draftwood.engine.methods import build
from draftwood.runners.table import TableRunner
from draftwood.tune.nests import beams, branchings
from draftwood.tune.replay import part_of
from tests.helpers import begin

VOCAB, ROWS = 7, 6


class AsInTheLargeTree:
    """The noise of a smaller tree's nodes is that of the same nodes in the large one.

    Args:
        numbers: per level, the asking nodes' numbers in the large tree; its levels stand one after the other.
        starts: number of the first node of each level of the large tree.
    """

    def __init__(self, choices, numbers, starts):
        self.choices, self.numbers, self.starts = choices, numbers, starts
        self.depth = 0
        self.independent, self.shared = choices.independent, choices.shared
        self.accept, self.token, self.path = choices.accept, choices.token, choices.path

    def _wide(self, values, empty):
        """The values at their places in the large tree's level."""
        first, last = self.starts[self.depth], self.starts[self.depth + 1]
        places = [number - first for number in self.numbers[self.depth]]
        wide = values.new_full((values.shape[0], last - first, *values.shape[2:]), empty)
        wide[:, places] = values
        return wide, places

    def ordered(self, log_q, count, first, of):
        wide, places = self._wide(log_q, -torch.inf)
        found = self.choices.ordered(wide, count, self.starts[self.depth], self.starts[-1])
        self.depth += 1
        return found[:, places]

    def beam(self, log_q, phi, times, width, first, of):
        found = self.choices.beam(log_q, phi, times, width, self.starts[self.depth], self.starts[-1])
        self.depth += 1
        return found


def drafted(method, choices, temperature):
    torch.manual_seed(2)
    draft = TableRunner(1.5 * torch.randn(VOCAB, VOCAB, VOCAB, dtype=torch.float64))
    drafter, _ = build(method, draft, greedy=temperature == 0)
    texts = [[r % VOCAB, (3 * r) % VOCAB] for r in range(ROWS)]
    sampler = Sampler(Sampling(temperature=temperature), texts, [1] * ROWS, VOCAB)
    begin(drafter, [text[:-1] for text in texts])
    return drafter.draft(torch.tensor([text[-1] for text in texts]), sampler, choices, [9] * ROWS), drafter


NESTS = {"beams": beams(4, 3), "branchings": branchings((3, 2, 2))}
CASES = [(name, method, t) for name, nest in NESTS.items() for method in nest.members for t in (1.0, 0.0)]


@pytest.mark.parametrize(("name", "method", "temperature"), CASES, ids=lambda v: v.shape if isinstance(v, Method) else None)
def test_members_are_what_the_drafter_draws(name, method, temperature):
    nest = NESTS[name]
    noise = CounterRng(range(ROWS), greedy=temperature == 0)
    large, drafter = drafted(nest.method, noise.at([5] * ROWS), temperature)
    assert isinstance(drafter, LevelDrafter)
    starts = [0, 1]
    for width in drafter.policy.widths:
        starts.append(starts[-1] + width)
    kept = sorted(nest.members[method])
    numbers = [[n for n in kept if a <= n < b] for a, b in pairwise(starts)]
    choices = AsInTheLargeTree(noise.at([5] * ROWS), numbers, starts)
    if method.method == "chain":  # the chain of a beam is drawn by the beam's own rule
        method = Method(method="rsd-s", shape=f"1x{method.shape}")
    alone, _ = drafted(method, choices, temperature)
    member = part_of(large, kept)
    for part in ("tokens", "parents", "depths", "valid"):
        assert torch.equal(getattr(member, part), getattr(alone, part)), part
    if temperature:
        assert torch.allclose(member.draft_logp[:, : alone.draft_logp.shape[1]], alone.draft_logp)
    assert bool(member.valid.all())


def test_control_other_nodes_of_a_level_are_another_tree():
    noise = CounterRng(range(ROWS))
    large, _ = drafted(Method(method="rsd-s", shape="4x2"), noise.at([5] * ROWS), 1.0)
    last = part_of(large, [0, 3, 4])
    first = part_of(large, [0, 1, 2])
    assert not torch.equal(first.tokens, last.tokens)


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
def test_members_hold_parents_and_earlier_siblings(nest):
    for seed in range(20):
        large, _ = drafted(nest.method, CounterRng(range(ROWS)).at([seed] * ROWS), 1.0)
        for kept in nest.members.values():
            for row, children in enumerate(large.children):
                for node, below in enumerate(children):
                    held = [child in kept for child in below]
                    assert held == sorted(held, reverse=True), "a later sibling without an earlier one"
                    assert node in kept or not any(held), f"a child without its parent in row {row}"


def test_shapes():
    assert [m.shape for m in beams(2, 2).members] == ["1", "2", "2x1", "2x2"]
    assert beams(4, 8).members[Method(method="rsd-s", shape="2x3")] == {0, 1, 2, 5, 6, 9, 10}
    found = {m.shape: kept for m, kept in branchings((3, 2, 1)).members.items()}
    assert set(found) == {"2", "3", "2-1", "2-2", "3-1", "3-2", "2-1-1", "2-2-1", "3-1-1", "3-2-1"}
    assert found["2-1-1"] == {0, 1, 2, 4, 6, 10, 12}
    assert found["3-2-1"] == set(range(16))
    for nest in (beams(4, 8), beams(1, 3), branchings((3, 2, 2, 1, 1)), branchings((2,))):
        assert nest.anchor in nest.members
