"""How far drafting pays: decisions from given seconds and gains. Each behaviour has a reason."""

import math
import random
from dataclasses import replace

import pytest

from draftwood.draft.adaptive import constants
from draftwood.draft.adaptive.controller import Controller
from draftwood.draft.adaptive.cost import Costs, Curve

LEVEL, TARGET, NODE = 0.001, 0.005, 0.0001


def lived(share, rounds=60, levels=3, controller=None, *, jump=0.0, level=LEVEL, right=None, pause=0.0):
    """A controller after so many rounds, and the levels that it drafted in each.

    Args:
        share: conditional probability of one child per level, as the draft tells it.
        jump: seconds that any tree costs.
        right: the true conditional probability; the estimated one by default.
        pause: seconds that the first level takes after a round without a draft: the draft model reads what it has missed.
    """
    controller, drafted, rng = controller or Controller(), [], random.Random(5)
    right = share if right is None else right
    for _ in range(rounds):
        depth, plain, above, drafting = 0, controller.begin_round(), 1.0, 0.0
        while not plain and depth < levels and controller.another_level(depth, above, 1):
            reads = pause > 0.0 and not depth and not (drafted and drafted[-1])
            seconds = level + pause * reads
            values = [share ** (d + 1) for d in range(depth + 1)]
            controller.end_level(depth, above, values, 1, None if reads else seconds)
            above, depth, drafting = above * share, depth + 1, drafting + seconds
        if 0 < depth < levels:
            controller.refuse_level(depth, above)
        values = [share ** (d + 1) for d in range(depth)]
        size = controller.tree_size(values) if values else 0
        accepted = next((d for d in range(size) if rng.random() > right), size)
        seconds = drafting + TARGET + (jump + NODE * size) * (size > 0)
        controller.end_round(1 + size, 1.0 + accepted, drafting, seconds)
        drafted.append(depth)
    return controller, drafted


def share_drafted(*given, since=0, **settings):
    """The share of rounds with a draft, from one round on."""
    drafted = lived(*given, **settings)[1][since:]
    return sum(depth > 0 for depth in drafted) / len(drafted)


def test_a_level_that_was_refused_is_tried_again():
    controller, _ = lived(0.9, levels=1)
    for _ in range(20):
        controller.begin_round()
        controller.end_level(0, 1.0, [0.9], 1, LEVEL)
        controller.end_level(1, 0.9, [0.9, 0.01], 1, LEVEL)
    controller.begin_round()
    assert not controller.another_level(1, 0.9, 1)
    for _ in range(300):
        controller.refuse_level(1, 0.9)
    assert controller.another_level(1, 0.9, 1)


def test_levels_that_nobody_records_change_nothing():
    """A row's first round says nothing of the levels."""
    controller, _ = lived(0.6, 100, 4)
    reach = controller.gains.reach()
    for _ in range(20):
        controller.begin_round()
        controller.drafts(1.0)
        controller.refuse_level(1, 0.6)
    assert controller.gains.reach() == reach


def test_one_slow_level_counts_little(monkeypatch):
    for outlier, low, high in ((constants.OUTLIER, 1.0, 1.1), (math.inf, 1.4, 3.0)):  # the second is a control
        monkeypatch.setattr(constants, "OUTLIER", outlier)
        controller, _ = lived(0.5, 200)
        controller.end_level(0, 1.0, [0.5], 1, 20 * LEVEL)
        assert low <= controller.costs.opening / LEVEL < high


def test_where_a_guess_stands_in_nothing_is_tried_for_its_sake():
    controller, _ = lived(0.9)
    controller.begin_round()
    assert controller.shows_guess([[0.99]])
    assert not any(controller.drafts(0.01) for _ in range(200))
    controller.begin_round()
    assert controller.drafts(1.0)


def test_a_guess_that_may_be_wrong_leaves_room_for_a_draft():
    def drafts_with_guess(chance):
        controller, _ = lived(0.9, levels=1, rounds=200, jump=0.4 * TARGET)
        controller.begin_round()
        controller.shows_guess([[chance] * 4])
        return controller.drafts(1.0 - chance)

    assert drafts_with_guess(0.0)
    assert drafts_with_guess(0.6)  # the larger forward is made for both
    assert not drafts_with_guess(0.9)  # now a level alone costs more than it brings


def test_the_whole_of_a_draft_must_pay_not_its_levels_alone(monkeypatch):
    assert share_drafted(0.6, 400, 2, since=100) > 0.9  # all but those that time plain decoding
    assert share_drafted(0.6, 400, 2, jump=2 * TARGET, since=100) < 0.08
    monkeypatch.setattr(Controller, "begin_round", lambda _: False)  # control: the jump is never seen
    assert share_drafted(0.6, 400, 2, jump=2 * TARGET, since=100) == 1.0


def test_a_draft_is_first_tried_where_it_can_lose_little_and_plain_decoding_is_timed_now_and_then():
    controller, drafted = lived(0.9, 400, 2)
    first = next(i for i, depth in enumerate(drafted) if depth)
    assert first == pytest.approx(1 / constants.PROBE_LOSS, abs=1)
    without = drafted[first:].count(0)
    assert without % constants.PROBE_ROUNDS == 0
    assert 0 < without <= 0.08 * 400
    _, later = lived(0.9, 20, 2, controller=Controller(learnt=controller.learnt))
    assert later.index(2) == constants.PROBE_SKIP + constants.PROBE_ROUNDS  # what is known is used at once


def test_the_trees_of_a_probe_have_one_size_so_that_the_second_is_timed():
    controller = begun()
    while not controller.drafts(1.0):
        controller.end_round(1, 1.0, 0.0, TARGET)
        controller.begin_round()
    sizes = []
    for values in ([0.9, 0.8, 0.7], [0.9, 0.1, 0.001, 0.001]):
        assert controller.drafts(1.0)
        controller.end_level(0, 1.0, values, 1, LEVEL)
        sizes.append(controller.tree_size(values))
        assert not controller.learnt.timed
        controller.end_round(1 + sizes[-1], 1.0, LEVEL, 2 * TARGET)
        controller.begin_round()
    assert sizes == [3, 3]
    assert controller.learnt.timed
    assert controller.costs.beyond(3)[3] > 0.5 * TARGET


def test_a_draft_is_tried_several_times_in_turn_and_the_first_does_not_count():
    """After a pause the draft model reads all that it has missed, which says nothing about a draft that goes on."""
    controller, before = lived(0.3, 200, 1, jump=TARGET, pause=40 * LEVEL)
    assert sum(before[50:]) < 15
    # It has become good.
    assert share_drafted(0.97, 3000, 4, controller=controller, jump=TARGET, pause=40 * LEVEL, since=2500) > 0.8


def test_a_draft_that_does_not_quite_pay_is_given_up_and_one_that_just_pays_is_not():
    """Any tree takes as long as plain decoding again; 0 to 4 tokens come of it."""
    assert share_drafted(0.5, 2000, 4, jump=TARGET, level=1e-6) < 0.1  # 0.94 tokens for 1.08
    assert share_drafted(0.65, 2000, 4, jump=TARGET, level=1e-6) > 0.8  # 1.52


def test_a_draft_whose_rounds_bring_less_than_plain_ones_is_given_up_whatever_is_expected_of_it(monkeypatch):
    """Costs and gains that are estimated too well would keep it: a tree takes as long as three plain rounds."""
    monkeypatch.setattr(Controller, "_draft_pays", lambda *_: True)
    assert share_drafted(0.5, 400, 2, jump=2 * TARGET, since=100) < 0.1
    assert share_drafted(0.95, 400, 3, jump=0.1 * TARGET, since=100) > 0.9
    assert lived(0.95, 400, 3, jump=0.1 * TARGET)[0].learnt.worth > 1.5


def test_several_texts_show_sooner_that_a_draft_does_not_pay(monkeypatch):
    """Each of them is evidence. A tree takes as long as three plain rounds."""
    known = replace(lived(0.9, 100)[0].learnt, worth=1.1)
    monkeypatch.setattr(Controller, "_draft_pays", lambda *_: True)
    drafted = [sum(map(bool, lived(0.1, 40, 2, Controller(known, rows=rows), jump=2 * TARGET)[1][:20])) for rows in (1, 8)]
    assert 0 < drafted[1] < drafted[0]


def begun(rows=1):
    """A controller that has seen plain rounds only."""
    controller = Controller(rows=rows)
    while controller.begin_round():
        controller.end_round(1, 1.0, 0.0, TARGET)
    return controller


def test_the_first_rounds_are_plain_and_before_a_tree_was_timed_its_costs_are_shares_of_them():
    controller = begun()
    costs = controller.costs.value()
    assert costs.base == pytest.approx(TARGET)
    assert costs.trees[:2] == pytest.approx([1.0 + constants.FIRST_TREE + n * constants.FIRST_NODE for n in (1, 2)])
    assert costs.opening == costs.levels[0] == pytest.approx(constants.FIRST_LEVEL)
    assert not controller.drafts(1.0)  # not before it was tried
    assert [controller.another_level(depth, 0.3**depth, 1) for depth in (1, 2)] == [True, False]  # 0.09 < a level
    assert (controller.tree_size([0.9] * 24), controller.tree_size([])) == (24, 0)
    assert controller.tree_size([0.5, 0.4, 0.5 * constants.FIRST_NODE]) == 2
    assert controller.tree_size([0.9 * constants.FIRST_TREE]) == 0
    # Each node is one more token for every row; the first costs are those of a forward of as many tokens.
    one, two = begun(8).costs.beyond(2)[1:]
    assert two - one == pytest.approx(8 * constants.FIRST_NODE / (1 + 6 * constants.FIRST_NODE) * TARGET)


def test_a_guess_also_pays_for_the_return_to_plain_decoding():
    controller = begun()
    costs = controller.costs
    tree, back = costs.beyond(1)[1], costs.back / TARGET
    assert back == pytest.approx(constants.FIRST_BACK)
    enough = tree / TARGET + back + 0.01
    assert not controller.shows_guess([[enough - 0.02]])
    assert controller.shows_guess([[enough]])
    controller.end_round(2, 1.0 + enough, 0.0, TARGET + tree)
    assert not controller.begin_round()
    assert controller.shows_guess([[enough - 0.02]])  # after a tree the return costs the same with or without another
    for _ in range(8):
        controller.end_round(2, 1.0, 0.0, TARGET)
        controller.begin_round()
        controller.end_round(1, 1.0, 0.0, 1.5 * TARGET)  # the first plain round after a tree
        controller.begin_round()
    assert costs.base == pytest.approx(TARGET)
    assert costs.back == pytest.approx(0.5 * TARGET, rel=0.1)


def test_a_good_draft_that_had_bad_luck_is_tried_again_in_a_short_text():
    good, _ = lived(0.9, rounds=300)
    drafted = []
    for worth in (0.97, 0.7):
        controller = Controller(learnt=replace(good.learnt, worth=worth))
        drafted.append(sum(levels > 0 for levels in lived(0.9, 38, controller=controller)[1]))
    assert drafted[0] > 10
    assert drafted[1] == 0  # a probe is likely to lose more than so few rounds allow


def test_a_guess_that_did_not_pay_is_tried_again_after_many_rounds():
    controller = begun()
    shown = []
    for _ in range(400):
        shown.append(not controller.begin_round() and controller.shows_guess([[0.2]]))
        size = controller.tree_size([0.2]) if shown[-1] else 0
        controller.end_round(1 + size, 1.0, 0.0, TARGET + 0.3 * TARGET * (size > 0))
    assert not any(shown[:45])
    assert 0 < sum(shown) < 0.05 * 400


def fed(sizes, seconds, rounds=200):
    """A controller that has seen trees of these sizes by turns, and now and then none."""
    controller = Controller()
    controller.end_level(0, 1.0, [1.0], 1, LEVEL)
    for i in range(rounds):
        nodes = sizes[i % len(sizes)] if i % 20 > 2 else 0
        controller.end_round(1 + nodes, 2.0, 0.0, seconds(nodes))
        controller.begin_round()
    return controller


def linear(nodes):
    return TARGET + NODE * nodes


def test_the_cost_of_a_node_is_the_slope_of_the_targets_seconds():
    controller = fed((3, 11, 6, 19, 8, 14, 2, 17), linear)
    beyond = controller.costs.beyond(24)
    assert [beyond[n] - beyond[m] for m, n in ((3, 8), (8, 14))] == pytest.approx([5 * NODE, 6 * NODE], rel=0.15)


def test_sizes_beyond_the_last_knot_move_that_one_alone_and_take_no_less():
    first = Costs().trees
    curve = Curve(first, constants.FIRST_WEIGHT)
    for factor in (0.5, 1.5) * 40:
        curve.add(constants.NODES, factor * first[-1])
    assert curve.values[:-1] == pytest.approx([value * curve.values[0] / first[0] for value in first[:-1]])
    falling = Costs(base=1.0, trees=(*first[:-1], first[-2] - 0.1)).of_rows(8)  # trees of 16 to 192 tokens
    assert min(falling.trees) > 1.0


def test_guesses_are_shown_that_pay_a_larger_forward():
    controller = Controller()
    assert controller.shows_guess([[0.1]])  # nothing is known yet
    assert not controller.shows_guess([[], []])
    controller = fed((3, 11, 6, 19, 8, 14), lambda nodes: linear(nodes) + 3 * LEVEL * (nodes > 0))
    least = controller.speed * controller.costs.beyond(1)[1]
    assert least > 0.2
    assert controller.shows_guess([[0.9] * 9])
    controller._probes.guess.wait = math.inf  # no probe
    assert not controller.shows_guess([[least / 4] * 2])
    assert not controller.shows_guess([[0.9, 0.9], [], [], []])  # it is a forward for all rows


def test_a_second_node_of_a_level_must_be_worth_its_share_of_the_forward():
    controller = Controller()
    assert controller.min_frontier_value(3, 4) == 0.0  # nothing is known yet
    controller, _ = lived(0.5, 100)
    assert controller.min_frontier_value(1, 4) < 0.05  # levels of one node say nothing about a second one
    for nodes in (1, 4, 2, 3) * 10:
        controller.begin_round()
        controller.end_level(1, 0.5, [0.25], nodes, LEVEL + 0.2 * LEVEL * (nodes - 1))
    assert controller.costs.level(3) - controller.costs.level(2) == pytest.approx(0.2 * LEVEL, rel=0.2)
    assert 0.0 < controller.min_frontier_value(1, 4) < 0.5
