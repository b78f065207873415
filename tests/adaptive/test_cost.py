"""The seconds of a round: what a trial knows of sizes, and what rounds tell about the machine."""

from __future__ import annotations

import pytest

from draftwood.draft.adaptive.cost import CostModel
from draftwood.draft.adaptive.learnt import Costs
from draftwood.draft.adaptive.settings import AdaptiveSettings

LINE = Costs(base=10.0, tree=0.0, node=0.5, change=4.0, level=1.0, frontier_node=0.0)
SECONDS = [10.0] * 5 + [13.0] * 3 + [14.0] * 4
"""Of trees of one node to twelve, by a trial."""
FACTORS = [seconds / (LINE.base + LINE.node * nodes) for nodes, seconds in enumerate(SECONDS, 1)]


def known(speed: float = 1.0) -> CostModel:
    """A model that knows a trial, on a machine that is slower by this factor since."""
    costs = CostModel(AdaptiveSettings(), LINE, timed=True, factors=FACTORS)
    for _ in range(3):
        costs.add_plain(LINE.base * speed)
    return costs


def lived(costs: CostModel, trees: int, nodes: int = 3, read: int = 9, speed: float = 1.0) -> CostModel:
    """After trees of so many nodes, which padding made forwards of ``read`` tokens."""
    for number in range(trees):
        changed = 0.0 if number else LINE.change
        costs.add_forward(read, speed * (SECONDS[read - 2] + changed), tree=nodes > 0, drafted=True)
    return costs


def test_a_model_begins_with_the_trial_at_the_present_speed():
    for speed in (1.0, 2.0):
        wanted = [speed * (seconds - LINE.base) for seconds in SECONDS]
        assert known(speed).beyond(12)[1:] == pytest.approx(wanted)


def test_padded_trees_do_not_make_their_own_size_look_expensive():
    assert lived(known(), 300).beyond(12)[1:] == pytest.approx([seconds - 10.0 for seconds in SECONDS], abs=0.05)
    costs = known()  # control: seconds of nine tokens, counted for four
    for _ in range(300):
        costs.add_forward(4, SECONDS[7], tree=True, drafted=True)
    assert costs.beyond(3)[3] > 1.0


def test_a_slow_machine_slows_every_size():
    costs = lived(known(), 100, speed=2.0)
    for _ in range(40):
        costs.add_plain(20.0)
    assert costs.beyond(12)[1:] == pytest.approx([2 * (seconds - 10.0) for seconds in SECONDS], abs=1.0)
    costs = lived(costs, 200)  # and a slow spell is forgotten
    for _ in range(200):
        costs.add_plain(10.0)
    assert costs.beyond(12)[1:] == pytest.approx([seconds - 10.0 for seconds in SECONDS], abs=0.5)


def test_a_plain_round_takes_no_longer_than_the_smallest_tree():
    costs = known()
    costs.add_plain(30.0)
    assert lived(costs, 200).base == pytest.approx(10.0, rel=0.03)
    slow = CostModel(AdaptiveSettings(), LINE)  # control: without a trial it is what was timed
    for seconds in (10.0, 10.0, 10.0, 30.0):
        slow.add_plain(seconds)
    assert lived(slow, 200).base == pytest.approx(15.0, rel=0.03)


def test_what_a_change_takes_follows_the_machine():
    costs = known()
    for number in range(200):
        read = 9 if number % 3 else 6
        costs.add_forward(read, SECONDS[read - 2] + 8.0 * (number % 3 < 2), tree=True, drafted=True)
    assert costs.change == pytest.approx(8.0, rel=0.1)
    assert costs.beyond(12)[1:] == pytest.approx([seconds - 10.0 for seconds in SECONDS], abs=0.5)
