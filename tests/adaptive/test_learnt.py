"""What was learnt is a value that another controller starts from."""

import json
from dataclasses import asdict, replace

import pytest

from draftwood.core.errors import ConfigError
from draftwood.draft.adaptive.controller import Controller
from draftwood.draft.adaptive.controllers import Controllers
from draftwood.draft.adaptive.cost import Costs
from draftwood.draft.adaptive.learnt import Knowledge, Learnt, value_of
from tests.adaptive.simulator import World, steer, text
from tests.adaptive.test_controller import lived
from tests.helpers import linear_costs


def learnt():
    return lived(0.8, 100, 4)[0].learnt


def test_a_draft_that_was_never_timed_is_not_taken_for_timed_by_the_next_process():
    """A process that wrote short texts knows plain rounds, and nothing of its draft."""
    controller, drafted = lived(0.9, 20, 4)
    assert not any(drafted)
    assert controller.learnt.costs.base > 0
    again, drafted = lived(0.9, 20, 4, controller=Controller(learnt=controller.learnt))
    assert not any(drafted)
    assert not again.learnt.timed
    assert lived(0.9, 100, 4, controller=again)[0].learnt.timed


def test_a_controller_that_starts_from_a_value_gives_the_same_out_at_the_present_speed_of_the_machine():
    value = learnt()
    controller = Controller(learnt=value)
    while controller.begin_round():
        controller.end_round(1, 1.0, 0.0, 2 * value.costs.base)
    again = controller.learnt
    assert again.costs.base == pytest.approx(2 * value.costs.base)
    assert again.costs == replace(value.costs, base=again.costs.base)
    assert (again.gains, again.reach, again.waits[1:]) == (value.gains, value.reach, value.waits[1:])


def test_a_wrong_value_is_replaced():
    world, first = World(tree=6.0), Controller()
    steer(first, world, text(4, lambda _: 0.1, length=1500))
    wrong = replace(first.learnt, costs=linear_costs(0.1, tree=0.01, node=0.01, level=0.01))
    controller = Controller(learnt=wrong)
    steer(controller, world, text(5, lambda _: 0.7, length=1500))
    assert controller.learnt.costs.base == pytest.approx(0.01, rel=0.2)
    assert controller.costs.level(1) == pytest.approx(0.002, rel=0.2)


@pytest.mark.parametrize(("change", "message"), [
    ({"worth": float("nan")}, "worth is nan, but must be a finite number"),
    ({"worth": -1.0}, "worth is -1.0"),
    ({"costs": asdict(Costs()) | {"trees": [1.0]}}, r"trees is \[1.0\], but must be a list of 8 numbers"),
    ({"costs": asdict(Costs()) | {"levels": [0.0] * 8}}, r"levels\[0\] is 0.0, but must be"),
    ({"gains": "much"}, "gains is 'much', but must be a list"),
    ({"reach": [0.5, None]}, r"reach\[1\] is None"),
    ({"costs": {"base": 1.0}}, "Costs was read from"),
    ({"extra": 1}, "Learnt was read from"),
    ({"waits": [1.0]}, r"waits is \[1.0\], but must be a list of 3 numbers"),
    ({"gains": []}, r"gains is \[\], but must be a list of some numbers"),
])  # fmt: skip
def test_what_is_no_such_value_is_refused_by_name(change, message):
    with pytest.raises(ConfigError, match=message):
        value_of(Learnt, {**asdict(learnt()), **change})


def taught():
    """Controllers of two sizes of batches, one of which has learnt, and lookup that was right once."""
    controllers = Controllers()
    steer(controllers.at(3), World(), text(4, lambda _: 0.5, length=300))
    controllers.at(8)
    controllers.acceptance.weights[0] = 1.25
    controllers.lookup.hits[2] = controllers.lookup.guesses[2] = 1.0
    return controllers


def test_all_knowledge_survives_json_and_is_where_another_one_starts():
    value = taught().knowledge
    assert list(value.by_rows) == [4]  # the other one has seen nothing
    again = value_of(Knowledge, json.loads(json.dumps(asdict(value))))
    assert again == value
    later = Controllers(known=again)
    assert later.at(4).gains.gains() == value.by_rows[4].gains
    assert later.knowledge.by_rows == value.by_rows  # what was not used again stays
    assert later.acceptance.weights[0] == 1.25
    assert later.lookup.hits == list(value.hits)
    assert later.lookup.probabilities[2] > Controllers().lookup.probabilities[2]


def test_sizes_of_batches_have_their_own_costs_and_share_what_a_draft_brings():
    controllers = taught()
    assert controllers.at(3) is controllers.at(4) is not controllers.at(5)
    assert controllers.at(5) is controllers.at(8)
    assert controllers.at(1).costs.base == 0.0
    assert controllers.at(1).gains.gains() == pytest.approx(controllers.at(4).gains.gains())
    assert controllers.at(1).gains.gains() != Controllers().at(1).gains.gains()  # control


@pytest.mark.parametrize(("change", "message"), [
    ({"by_rows": {"none": {}}}, "by_rows is"),
    ({"by_rows": {"4": {}}}, "Learnt was read from"),
    ({"hits": [1.0]}, r"hits is \[1.0\], but must be a list of 32 numbers"),
    ({"guesses": [-1.0] * 16}, "guesses"),
    ({"acceptance": None}, "acceptance is None"),
])  # fmt: skip
def test_what_is_no_knowledge_is_refused_by_name(change, message):
    with pytest.raises(ConfigError, match=message):
        value_of(Knowledge, {**asdict(taught().knowledge), **change})


def test_a_round_of_more_rows_costs_at_first_what_a_tree_of_as_many_tokens_did():
    one = linear_costs(1.0, tree=0.2, node=0.1, level=0.3, frontier_node=0.05)
    for timed in (True, False):  # the last one is a control
        by_rows = {1: Learnt(costs=one, timed=timed)}
        costs = Controllers(known=replace(taught().knowledge, by_rows=by_rows)).at(8).costs
        costs.add_plain(2.0)
        seconds = costs.beyond(2)
        measured = pytest.approx(2.0 * 8 * 0.1 / (1.0 + 6 * 0.1))
        assert (seconds[2] - seconds[1] == measured) == timed
        assert not costs.timed
