"""What was learnt is a value: it is given out, survives JSON, and another controller starts from it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from draftwood.core.errors import ConfigError
from draftwood.draft.adaptive.controller import Controller
from draftwood.draft.adaptive.learnt import Learnt
from tests.adaptive.simulator import World, steer, text
from tests.adaptive.test_controller import lived


def learnt() -> Learnt:
    return lived(0.8, 100, 4)[0].learnt


def test_a_value_survives_json():
    value = learnt()
    assert value.costs.base > 0
    assert Learnt.from_json(json.loads(json.dumps(value.to_json()))) == value


def test_a_controller_that_starts_from_a_value_gives_the_same_out():
    value = learnt()
    again = Controller(learnt=value).learnt
    assert again.costs == value.costs
    assert (again.gains, again.reach, again.acceptance) == (value.gains, value.reach, value.acceptance)
    assert (again.speed, again.calibration) == pytest.approx((value.speed, value.calibration))


def test_a_start_from_a_value_is_quicker_and_a_wrong_value_is_replaced():
    world, short = World(tree=6.0), text(3, lambda _: 0.1, length=60)
    first = Controller()
    steer(first, world, text(4, lambda _: 0.1, length=1500))
    cold, warm = steer(Controller(), world, short).whole, steer(Controller(learnt=first.learnt), world, short).whole
    assert warm > 1.05 * cold
    wrong = replace(first.learnt, costs=replace(first.learnt.costs, level=1e-6, tree=1e-6, node=1e-6, base=0.1))
    controller = Controller(learnt=wrong)
    steer(controller, world, text(5, lambda _: 0.1, length=1500))
    assert controller.learnt.costs.base == pytest.approx(0.01, rel=0.2)
    assert controller.learnt.costs.level == pytest.approx(0.002, rel=0.2)


@pytest.mark.parametrize(("change", "message"), [
    ({"speed": float("nan")}, "speed is nan, but must be a finite number"),
    ({"speed": True}, "speed is True"),
    ({"calibration": -1.0}, "calibration is -1.0"),
    ({"gains": "much"}, "gains is 'much', but must be a list"),
    ({"reach": [0.5, None]}, r"reach\[1\] is None"),
    ({"costs": {"base": 1.0}}, "Costs was read from"),
    ({"extra": 1}, "Learnt was read from"),
])  # fmt: skip
def test_what_is_no_such_value_is_refused_by_name(change, message):
    with pytest.raises(ConfigError, match=message):
        Learnt.from_json({**learnt().to_json(), **change})
