"""A trial of 33 rounds measures what trees cost, so that the first text can be drafted for."""

import random

import pytest

from draftwood.api import Pair
from draftwood.draft.adaptive.controllers import TRIAL, Controllers
from draftwood.draft.adaptive.cost import KNOTS
from tests.adaptive.scenarios import WORLDS as SCENARIOS
from tests.adaptive.scenarios import written
from tests.adaptive.simulator import World, best_fixed, steer
from tests.adaptive.test_controller import lived
from tests.differences import largest
from tests.engine.test_decode import VOCAB
from tests.helpers import Words, tiny_gpt

LEVELS = 2


def tried(world, *, rounds: int = len(TRIAL), slow=frozenset()):
    """What is known after some rounds of a trial; ``slow`` rounds take eight times as long."""
    controllers, last = Controllers(), 0
    with controllers.trial():
        budget = controllers.budget(1)
        for number in range(rounds):
            factor = 8.0 if number in slow else 1.0
            nodes, drafting = 0, 0.0
            if not budget.begin_round():
                for depth in range(LEVELS):
                    budget.end_level(depth, 1.0, [0.5], 1, factor * world.draft(depth, 1))
                    drafting += factor * world.draft(depth, 1)
                nodes = budget.tree_size([0.5] * 24)
            seconds = drafting + factor * (world.target(nodes, nodes != last) + 0.05 * (nodes != last))
            budget.end_round(nodes + 1, 1.0, drafting, seconds)
            last = nodes
    return controllers


def worst(controllers, world):
    """The largest relative error of the seconds that a round is expected to take, after the first plain ones."""
    controller = controllers.at(1)
    while controller.begin_round():
        controller.end_round(1, 1.0, 0.0, World().target(0, False))
    costs = controller.costs
    beyond = costs.beyond(max(KNOTS))
    found = [(costs.base, world.target(0, False)), (costs.opening, world.draft(0, 1)), (costs.level(1), world.draft(1, 1))]
    found += [(costs.base + beyond[n], world.target(n, False)) for n in KNOTS[1:]]
    return largest(got / wanted - 1.0 for got, wanted in found)


WORLDS = [World(), World(tree=6.0), World(node=1.5), World(level=8.0), World(block=(6, 4.0)), World(opening=6.0)]


@pytest.mark.parametrize("world", WORLDS)
def test_a_trial_finds_the_costs_whatever_a_change_of_size_takes(world):
    assert worst(tried(world), world) < 0.05
    assert worst(tried(world), World(base=20.0)) > 0.2  # control: the costs of another machine


def test_a_trial_finds_what_going_back_costs():
    assert tried(World()).knowledge.by_rows[1].costs.back == pytest.approx(6.0)
    assert tried(World(change=20.0)).knowledge.by_rows[1].costs.back == pytest.approx(8.0)


def test_one_slow_round_of_each_size_changes_nothing():
    assert worst(tried(World(), slow=frozenset({2, 5, 8, 13, 16, 21, 24, 29, 32})), World()) < 0.05


def test_a_size_whose_every_round_was_slow_is_priced_by_the_next_larger_one():
    """Dearer small trees would never be grown again, and larger ones would look free."""
    world, of_three = World(block=(6, 4.0)), frozenset(i for i, size in enumerate(TRIAL) if size == 3)
    assert worst(tried(world, slow=of_three), world) < 0.2
    costs = tried(world, slow=of_three).at(1).costs
    assert costs.value().trees[2] > 2.0  # control: the trial was deceived


@pytest.mark.parametrize("name", ["usual", "blocks", "cheap"])
def test_a_disturbed_trial_costs_little(name):
    """In each trial a third of the rounds are slow; where slow sizes kept their price, 0.74 was reached."""
    world, fastest = SCENARIOS[name], best_fixed(SCENARIOS[name], written("medium"))[1]
    disturbed = (frozenset(random.Random(seed).sample(range(len(TRIAL)), len(TRIAL) // 3)) for seed in range(4))
    reached = [steer(tried(world, slow=slow).at(1), world, written("medium")).speed / fastest for slow in disturbed]
    assert min(reached) > 0.93, reached


def test_a_text_that_ends_within_the_trial_leaves_the_costs_unknown():
    assert not tried(World(), rounds=4).at(1).costs.timed
    assert tried(World()).at(1).costs.timed


def test_after_a_trial_the_first_short_text_is_drafted_for():
    _, drafted = lived(0.9, 40, 4, controller=tried(World()).at(1))
    assert sum(drafted) > 10
    _, drafted = lived(0.9, 40, 4)  # control
    assert not any(drafted)


def test_other_rounds_go_to_the_controllers_again():
    controllers = tried(World())
    assert controllers.budget(1) is controllers.at(1)


def test_both_temperatures_begin_with_one_trial():
    pair = Pair(tiny_gpt(VOCAB, 1), tiny_gpt(VOCAB, 1), Words())
    pair.measure_costs()
    first, second = (known.by_rows[1] for known in pair.learnt.values())
    assert first.timed
    assert first.costs == second.costs
