"""Exact means of acceptance."""

from __future__ import annotations

import pytest

from benchmarks import expected
from tests.ladder.test_plain_twins import drafted
from tests.reference import plain_tree, recursive, traversal


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

        path, _ = recursive(root, tree.draw, coin, lambda distribution: 0)
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

    traversal(root, tree.draw, mean, lambda distribution: 0)
    return float(means[0])


@pytest.mark.parametrize(
    ("name", "temperature"), [("chain", 1.0), ("rsd-c", 1.0), ("rsd-s", 1.0), ("iid", 1.0), ("chain", 0.0), ("rsd-s", 0.0)]
)
def test_the_mean_is_that_of_all_random_choices(name, temperature):
    tree, logp, _ = drafted(name, seed=3, temperature=temperature)
    for means, slow in ((expected.recursive(tree, logp), enumerated), (expected.traversal(tree, logp), mean_of_stops)):
        for row in range(12):
            assert means[row] == pytest.approx(slow(tree, logp, row), abs=1e-6)
        assert len({round(mean, 3) for mean in means}) > (20 if temperature else 2)
