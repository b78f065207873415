"""Exact means of acceptance, for a tree and for the trees in it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.expected import expected
from draftwood.core.counter_rng import CounterRng
from draftwood.core.log_probs import LogProbs
from draftwood.verify.recursive import Recursive
from draftwood.verify.traversal import Traversal
from tests.ladder.test_plain_twins import drafted
from tests.reference import plain_tree
from tests.reference import recursive as plain_recursive
from tests.reference import traversal as plain_traversal

# Smaller trees in those that `drafted` draws: chain of 3, branching 3-2-1, beam 4 x 3.
PARTS = {
    "chain": [[0, 1], [0, 1, 2], [0, 1, 2, 3]],
    "rsd-c": [[0, 1], [0, 1, 2, 4, 6], [0, 1, 2, 3, 4, 6, 8], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]],
    "rsd-s": [[0, 1, 2], [0, 1, 5, 9], [0, 1, 2, 5, 6, 9, 10], list(range(13))],
    "iid": [[0, 1, 4], [0, 1, 2, 4, 5], list(range(10))],
}


def part_of(tree, kept):
    """The tree of some nodes, in ascending order, that hold each other's parents and earlier siblings."""
    kept = list(kept)
    place = torch.zeros(tree.size, dtype=torch.long, device=tree.tokens.device)
    place[kept] = torch.arange(len(kept), device=place.device)
    inner = 0 if tree.draft_log_probs is None else tree.draft_log_probs.logp.shape[1]
    inner_nodes = [node for node in kept if node < inner]
    return replace(
        tree,
        tokens=tree.tokens[:, kept],
        parents=place[tree.parents[:, kept]],
        depths=tree.depths[:, kept],
        valid=tree.valid[:, kept],
        ancestors=tree.ancestors[:, kept][:, :, kept],
        draft_log_probs=None if tree.draft_log_probs is None else tree.draft_log_probs.at(inner_nodes),
    )


def enumerated(tree, logp, row):
    """Recursive rejection, every coin tried: the mean number of accepted tokens."""
    root, mean, scripts = plain_tree(tree, logp, row), 0.0, [[]]
    while scripts:
        script, played, weight = scripts.pop(), [], 1.0

        def coin(_, p, q, script=script, played=played):
            nonlocal weight
            chance = min(1.0, p / q)
            if len(played) == len(script):
                if chance < 1:
                    scripts.append([*script, False])
                script.append(True)
            played.append(script[len(played)])
            weight *= chance if played[-1] else 1 - chance
            return played[-1]

        path, _ = plain_recursive(root, tree.draw, coin, lambda distribution: 0)
        mean += weight * len(path)
    return mean


def mean_of_stops(tree, logp, row):
    """Traversal verification: the mean depth of the node where it stops."""
    root, means = plain_tree(tree, logp, row), []

    def leaves_first(node):
        return [*(below for child in node.children for below in leaves_first(child)), node]

    def mean(stops):
        means.append(sum(p * node.depth for p, node in zip(stops, leaves_first(root), strict=True)))
        return 0

    plain_traversal(root, tree.draw, mean, lambda distribution: 0)
    return float(means[0])


@pytest.mark.parametrize(
    ("name", "temperature"), [*((name, 1.0) for name in PARTS), *((name, 0.0) for name in PARTS if name != "iid")]
)
def test_every_tree_in_a_tree_has_the_mean_that_it_would_have_alone(name, temperature):
    tree, logp, _ = drafted(name, seed=3, temperature=temperature)
    found, seen = expected(tree, logp), set()
    for kept in PARTS[name]:
        alone, log_probs = part_of(tree, kept), logp[:, kept]
        for row, one in enumerate(found):
            mean = mean_of_stops(alone, log_probs, row)
            assert one.traversal(frozenset(kept)) == pytest.approx(mean, abs=1e-6)
            if row < 12:
                assert one.recursive(frozenset(kept)) == pytest.approx(enumerated(alone, log_probs, row), abs=1e-6)
            seen.add(round(mean, 3))
    assert len(seen) > (20 if temperature else 2)


def test_traversal_is_expected_to_accept_more_than_recursive_rejection():
    tree, logp, _ = drafted("rsd-s", seed=5)
    every = frozenset(range(tree.size))
    ahead = [one.traversal(every) - one.recursive(every) for one in expected(tree, logp)]
    assert sum(ahead) / len(ahead) > 0.05  # on average over trees; on a single tree it may be less


@pytest.mark.parametrize("name", ["chain", "rsd-c", "rsd-s"])
@pytest.mark.parametrize("verifier", [Recursive(), Traversal()], ids=lambda v: v.name)
def test_the_mean_is_that_of_many_verdicts(name, verifier):
    tree, logp, _ = drafted(name, seed=7)
    row, times = 5, 4000
    same = [row] * times
    copies = replace(
        part_of(tree, range(tree.size)), tokens=tree.tokens[same], parents=tree.parents[same], depths=tree.depths[same],
        valid=tree.valid[same], ancestors=tree.ancestors[same],
        draft_log_probs=LogProbs(logp=tree.draft_log_probs.logp[same], vocab=tree.draft_log_probs.vocab),
    )  # fmt: skip
    verdict = verifier.verify(copies, logp[same], CounterRng(range(times)).at([3] * times))
    accepted = torch.tensor([len(path) for path in verdict.paths], dtype=torch.double)
    one, every = expected(tree, logp)[row], frozenset(range(tree.size))
    mean = getattr(one, verifier.name)(every)
    error = float(accepted.std()) / times**0.5
    assert abs(float(accepted.mean()) - mean) < 4 * error
    other = one.recursive(frozenset([0, 1]))  # a control: the mean of another tree differs
    assert abs(float(accepted.mean()) - other) > 4 * error
