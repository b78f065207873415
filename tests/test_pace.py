"""How far drafting pays: decisions from costs and gains that are told, not timed."""

from __future__ import annotations

import math
import random

import pytest

from draftwood.draft.pace import Pace

LEVEL, TARGET, NODE = 0.001, 0.005, 0.0001


def lived(acceptance: float, rounds: int = 60, levels: int = 3, pace: Pace | None = None) -> tuple[Pace, list[int]]:
    """A pace that has seen a draft of this acceptance, and the levels that it drafted in each round."""
    pace, drafted, rng = pace or Pace(), [], random.Random(5)
    for _ in range(rounds):
        depth, above = 0, 1.0
        while depth < levels and pace.worth(depth, above):
            pace.grew(depth, above, above * acceptance, LEVEL)
            above, depth = above * acceptance, depth + 1
        accepted = next((d for d in range(depth) if rng.random() > acceptance), depth)
        nodes, drafting = 1 + 3 * depth, depth * LEVEL
        expected = math.fsum(acceptance ** (d + 1) for d in range(depth))
        pace.finished(nodes, expected, 1.0 + accepted, drafting, drafting + TARGET + NODE * nodes)
        drafted.append(depth)
    return pace, drafted


def test_a_good_draft_is_followed_to_the_end_and_a_bad_one_hardly_asked():
    assert set(lived(0.9)[1]) == {3}
    _, drafted = lived(0.02, rounds=300)
    assert sum(drafted[100:]) / 200 < 0.05
    assert sum(drafted[100:]) > 0  # now and then it is tried again


def test_levels_stop_where_a_level_costs_more_than_it_brings():
    _, drafted = lived(0.5, levels=12)
    assert 0 < drafted[-1] < 6


def test_a_draft_that_gets_better_is_found_again():
    pace, before = lived(0.02, rounds=300)
    _, after = lived(0.9, rounds=900, pace=pace)
    assert sum(before[100:]) < 20
    assert set(after[-100:]) == {3}


def test_the_cost_of_a_node_is_the_slope_of_the_targets_time():
    pace = Pace()
    for nodes in (4, 12, 7, 20, 9, 15, 3, 18) * 6:
        pace.finished(nodes, 2.0, 3.0, LEVEL, LEVEL + TARGET + NODE * nodes)
    assert pace.node == pytest.approx(NODE, rel=0.15)
    assert pace.least_value() == pytest.approx(pace.speed * pace.node)


def test_rounds_of_one_size_leave_the_guess_about_a_node():
    pace = Pace()
    for _ in range(50):
        pace.finished(10, 2.0, 3.0, LEVEL, LEVEL + TARGET)
    assert pace.node == pytest.approx(0.02 * TARGET)


def test_a_level_that_was_refused_is_tried_again():
    pace = Pace()
    for _ in range(20):
        pace.grew(0, 1.0, 0.9, LEVEL)
        pace.grew(1, 0.9, 0.01, LEVEL)
        pace.finished(4, 1.0, 2.0, 2 * LEVEL, 2 * LEVEL + TARGET)
    asked = [pace.worth(1, 0.9) for _ in range(100)]
    assert not asked[0]
    assert any(asked)


def test_reading_text_is_no_cost_of_a_level():
    pace = Pace()
    pace.grew(0, 1.0, 0.9, LEVEL)
    pace.grew(0, 1.0, 0.9, None)
    assert pace.level == LEVEL


def after_a_slow_level() -> list[int]:
    """Levels drafted in the rounds that follow one level of twenty times the usual time."""
    pace, before = lived(0.3, levels=1)
    assert set(before) == {1}
    pace.grew(0, 1.0, 0.3, 20 * LEVEL)
    pace.finished(4, 0.3, 1.3, 20 * LEVEL, 20 * LEVEL + TARGET + 4 * NODE)
    return lived(0.3, rounds=12, levels=1, pace=pace)[1]


def test_one_slow_level_does_not_end_drafting():
    assert after_a_slow_level() == [1] * 12


def test_control_a_slow_level_that_counts_in_full_is_seen(monkeypatch):
    monkeypatch.setattr("draftwood.draft.pace._SLOWEST", float("inf"))
    assert 0 in after_a_slow_level()


def after_slow_levels() -> float:
    """The cost of a level after ten slow ones and six of the usual time."""
    pace = Pace()
    for seconds in (LEVEL, *(20 * LEVEL for _ in range(10)), *(LEVEL for _ in range(6))):
        pace.grew(0, 1.0, 0.5, seconds)
    return pace.level


def test_slow_levels_are_soon_forgotten(monkeypatch):
    assert after_slow_levels() < 2 * LEVEL
    monkeypatch.setattr("draftwood.draft.pace._HASTE", 0.1)
    assert after_slow_levels() > 3 * LEVEL


def test_where_a_guess_stands_in_nothing_is_tried_for_its_sake():
    pace, _ = lived(0.9)
    assert not any(pace.worth(0, 0.01) for _ in range(200))
    assert pace.worth(0, 1.0)
    useless, _ = lived(0.02, rounds=300)
    assert any(useless.worth(0, 0.5) for _ in range(300))  # here it is the draft that does not pay


def lived_with_a_jump(jump: float, pace: Pace | None = None) -> list[int]:
    """Levels drafted in each of 400 rounds where any draft at all costs so many seconds more, however small the tree is."""
    pace, drafted, rng = pace or Pace(), [], random.Random(5)
    for _ in range(400):
        depth, without = 0, pace.begin()
        while not without and depth < 2 and pace.worth(depth, 0.6**depth):
            pace.grew(depth, 0.6**depth, 0.6 ** (depth + 1), LEVEL)
            depth += 1
        accepted = next((d for d in range(depth) if rng.random() > 0.6), depth)
        expected = math.fsum(0.6 ** (d + 1) for d in range(depth))
        pace.finished(1 + depth, expected, 1.0 + accepted, depth * LEVEL, depth * LEVEL + TARGET + jump * (depth > 0))
        drafted.append(depth)
    return drafted


def test_the_whole_of_a_draft_must_pay_not_its_levels_alone():
    assert sum(d > 0 for d in lived_with_a_jump(0.0)[100:]) > 280  # all but those that do without, to know what that takes
    assert sum(d > 0 for d in lived_with_a_jump(2 * TARGET)[100:]) < 20


def test_a_tree_must_bring_what_any_tree_costs():
    pace = Pace()
    for nodes in (4, 12, 7, 20, 1, 1, 1, 9, 15, 3, 18) * 6:
        jump = 3 * LEVEL if nodes > 1 else 0.0
        pace.finished(nodes, 2.0, 3.0, 0.0, TARGET + jump + NODE * nodes)
    assert pace.least_tree() == pytest.approx(pace.speed * 3 * LEVEL, rel=0.3)


def test_control_without_a_plain_round_the_jump_is_not_seen(monkeypatch):
    monkeypatch.setattr("draftwood.draft.pace.Pace.begin", lambda _: False)
    assert sum(d > 0 for d in lived_with_a_jump(2 * TARGET)[100:]) == 300


def test_a_draft_is_tried_several_times_in_turn_and_the_first_does_not_count():
    """After a pause the draft reads all that it has missed, which says nothing about a draft that goes on."""
    pace = Pace()
    lived_with_a_jump(2 * TARGET, pace)
    tries = []
    for _ in range(2500):
        drafts = not pace.begin() and pace.worth(0, 1.0)
        if drafts:
            reads = not (tries and tries[-1])
            pace.grew(0, 1.0, 0.6, None if reads else LEVEL)
            cost = 40 * LEVEL if reads else LEVEL
            pace.finished(2, 0.8, 1.0 + (len(tries) % 5 < 4), cost, cost + TARGET)  # it has become good
        else:
            pace.finished(1, 0.0, 1.0, 0.0, TARGET)
        tries.append(drafts)
    assert sum(tries[-500:]) > 400


def test_values_of_a_front_grow_with_what_a_level_costs():
    pace, _ = lived(0.5)
    assert 0.0 < pace.least_front(1) < 0.5
    before = pace.least_front(1)
    for _ in range(40):
        pace.grew(0, 1.0, 0.5, 3 * LEVEL)
    assert pace.least_front(1) > 2 * before
    assert Pace().least_front(3) == 0.0  # nothing is known yet


def test_now_and_then_a_round_goes_without_a_draft():
    drafted = lived_with_a_jump(0.0)
    without = [i for i, depth in enumerate(drafted) if not depth]
    assert without[:8] == [4, 5, 6, 103, 104, 105, 106, 107]  # several in turn: the first after a draft take longer
    assert 12 <= len(without) <= 20


def test_chains_are_shown_that_pay_a_larger_forward():
    pace = Pace()
    assert pace.shows([[0.1]])  # nothing is known yet
    assert not pace.shows([[], []])
    for nodes in (4, 12, 7, 20, 1, 1, 1, 9, 15, 3, 18) * 6:
        pace.finished(nodes, 2.0, 3.0, 0.0, TARGET + (3 * LEVEL if nodes > 1 else 0.0) + NODE * nodes)
    most = pace.least_tree()
    assert pace.shows([[0.9] * 9])
    assert not pace.shows([[most / 4] * 2])
    assert not pace.shows([[0.9, 0.9], [], [], []])  # it is a forward for all rows


def test_the_first_trees_are_small():
    """Before anything is known the deepest and widest tree would be the dearest guess, and what it costs would be learnt."""
    pace = Pace()
    assert [pace.worth(depth, 0.5**depth) for depth in range(5)] == [True, True, True, False, False]
    assert (pace.size([0.9] * 24), pace.size([0.9] * 3)) == (8, 3)
    pace.grew(0, 1.0, 0.9, LEVEL)
    for _ in range(2):  # the first tree of a size says nothing
        pace.finished(4, 2.0, 3.0, LEVEL, LEVEL + TARGET)
    assert pace.worth(3, 0.9)
    assert pace.size([0.9] * 24) == 24


def fed(sizes, seconds, rounds=200) -> Pace:
    """A pace that has seen trees of these sizes by turns, with the seconds of each; now and then no tree."""
    pace = Pace()
    for i in range(rounds):
        nodes = sizes[i % len(sizes)] if i % 20 > 2 else 1
        pace.finished(nodes, 1.0, 2.0, 0.0, seconds(nodes))
    return pace


def test_a_node_is_shown_where_it_brings_more_than_it_costs():
    pace = fed((4, 12, 7, 20, 9, 15), lambda nodes: TARGET + NODE * nodes)
    price = pace.least_value()
    assert pace.size([9 * price, 5 * price, 2 * price, 0.5 * price, 0.1 * price]) == 3
    assert pace.size([]) == 0


def test_trees_keep_the_usual_size_where_another_one_costs_too_much():
    """``fed`` with a cost for every change of size; what is worth changing for is still shown."""
    last = [1]

    def seconds(nodes):
        changed, last[0] = nodes != last[0], nodes
        return TARGET + NODE * nodes + changed * 10 * NODE

    pace = fed((6, 6, 6, 9, 9, 6, 12, 6), seconds)
    assert pace.change == pytest.approx(10 * NODE, rel=0.3)
    usual = [4 * pace.least_value()] * 5 + [0.2 * pace.least_value()] * 6
    for _ in range(40):
        assert pace.size(usual) == 5
    assert pace.size([4 * pace.least_value()] * 8) == 5
    assert pace.size([4 * pace.least_value()] * 3 + [0.5 * pace.least_value()] * 6) == 5
    assert pace.size([0.9] * 11) == 11


def test_control_without_such_a_cost_every_tree_has_the_size_it_pays_for():
    pace = fed((6, 6, 6, 9, 9, 6, 12, 6), lambda nodes: TARGET + NODE * nodes)
    for _ in range(40):
        assert pace.size([4 * pace.least_value()] * 5 + [0.2 * pace.least_value()] * 6) == 5
    assert pace.size([4 * pace.least_value()] * 8) == 8
    assert pace.size([4 * pace.least_value()] * 3 + [0.5 * pace.least_value()] * 6) == 3


def test_a_size_that_takes_long_is_avoided():
    """Kernels compute rows in blocks, and one row more may take as long as six."""
    pace = fed((3, 4, 5, 6, 7, 8, 9), lambda nodes: TARGET + NODE * nodes + (nodes > 6) * 15 * NODE)
    values = [4 * pace.least_value()] * 5 + [1.2 * pace.least_value()] * 2
    assert pace.size(values) == 5


def test_the_first_tree_of_a_size_says_nothing():
    """What an engine makes for a size once is no cost of trees of that size."""
    seen: set[int] = set()

    def seconds(nodes):
        first = nodes not in seen
        seen.add(nodes)
        return (TARGET + NODE * nodes) * (20 if first and len(seen) > 2 else 1)

    pace = fed((4, 12, 7, 20, 9, 15), seconds)
    assert pace.node == pytest.approx(NODE, rel=0.2)
    assert abs(pace._aside(15)) < NODE


def drafted(
    gain: float, promised: float | None = None, reads: float = 0.0, seed: int = 1, pace: Pace | None = None
) -> float:
    """Share of 3,000 rounds with a draft that takes twice as long as none and brings 0 to 4 tokens, ``gain`` on average.

    It promises so many, or as many as told (NaN: just what comes). In every fourth round it has to read text, which takes
    longer.
    """
    pace, rng, rounds = pace or Pace(), random.Random(seed), 0
    for i in range(3000):
        if pace.begin() or not pace.worth(0, 1.0):
            pace.finished(1, 0.0, 1.0, 0.0, TARGET)
            continue
        slow = reads if i % 4 == 0 else 0.0
        accepted = float(sum(rng.random() < gain / 4 for _ in range(4)))
        expected = gain if promised is None else accepted if math.isnan(promised) else promised
        pace.grew(0, 1.0, expected, None if slow else LEVEL)
        pace.finished(5, expected, 1.0 + accepted, LEVEL, 2 * TARGET + slow)
        rounds += 1
    return rounds / 3000


def test_a_draft_that_does_not_quite_pay_is_given_up_and_one_that_just_pays_is_not():
    assert max(drafted(0.9, seed=seed) for seed in range(5)) < 0.25
    assert min(drafted(1.12, seed=seed) for seed in range(5)) > 0.75


def test_control_by_what_comes_alone_a_draft_that_just_pays_is_given_up_by_bad_luck():
    assert sum(drafted(1.12, promised=math.nan, seed=seed) for seed in range(5)) < 0.75 * 5


def test_a_draft_that_promises_more_than_it_brings_is_found_out():
    assert drafted(0.5, promised=1.5) < 0.1
    assert drafted(1.5, promised=0.9) > 0.9


def test_a_draft_that_has_become_better_than_it_promises_is_found():
    pace = Pace()
    assert drafted(0.6, promised=0.6, pace=pace) < 0.1
    assert drafted(1.5, promised=0.6, pace=pace) > 0.6  # of 3,000 rounds


def test_a_draft_is_measured_by_plain_decoding_and_not_by_its_own_bad_rounds():
    """Rounds in which it reads text do not count as its time, and their speed must not make what is slow look good."""
    assert drafted(0.9, reads=4 * TARGET) < 0.25


def drafts_beside_a_guess(chance: float) -> bool:
    """Whether a draft of 1.2 tokens is asked beside a guess; with it a round takes twice as long as without."""
    pace = Pace()
    for _ in range(100):
        if not pace.begin() and pace.worth(0, 1.0):
            pace.grew(0, 1.0, 1.2, LEVEL)
            pace.finished(5, 1.2, 2.2, LEVEL, LEVEL + 1.8 * TARGET)
        else:
            pace.finished(1, 0.0, 1.0, 0.0, TARGET)
    return pace.worth(0, 1.0 - chance)


def test_a_guess_that_may_be_wrong_leaves_room_for_a_draft():
    assert drafts_beside_a_guess(0.0)
    assert drafts_beside_a_guess(0.3)  # the larger forward is made for both
    assert not drafts_beside_a_guess(0.9)  # now a level alone costs more than it brings


def drafted_though_sizes_are_made_once(pace: Pace) -> int:
    """Rounds with a draft, of 60, where a size takes ten times as long when it comes first."""
    seen, drafted, rng = {1}, 0, random.Random(2)
    for _ in range(60):
        drafts = not pace.begin() and pace.worth(0, 1.0)
        nodes = rng.choice((3, 4, 5, 6, 7, 8)) if drafts else 1
        if drafts:
            pace.grew(0, 1.0, 1.0, LEVEL)
        seconds = TARGET * (1 if nodes in seen else 10) + drafts * LEVEL
        seen.add(nodes)
        pace.finished(nodes, float(drafts), 1.0 + drafts, drafts * LEVEL, seconds)
        drafted += drafts
    return drafted


def test_what_is_made_once_for_a_size_does_not_end_drafting():
    assert drafted_though_sizes_are_made_once(Pace()) > 45
    forgetful = Pace()
    forgetful._residues = Everything()
    assert drafted_though_sizes_are_made_once(forgetful) < 40


class Everything(dict):
    """Sizes that all seem to have come before."""

    def __contains__(self, _: object) -> bool:
        return True

    def __missing__(self, _: object) -> tuple[float, float]:
        return 0.0, 0.0
