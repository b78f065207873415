"""From costs and acceptance to a choice."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from draftwood.core.settings import Method
from draftwood.tune.choose import ADAPTIVE, LOOKUP, PLAIN, WHOLE, estimates, fastest, finalists, leaders
from draftwood.tune.costs import SHAPES, Costs, fit
from draftwood.tune.measure import ASKED, BEAMS, BRANCHINGS, SCORED, Forwards, Speed, Timed
from draftwood.tune.nests import beams
from draftwood.tune.run import Findings

LEVEL = {1: 0.001, 2: 0.0012, 3: 0.0014, 4: 0.0015, 6: 0.002, 12: 0.003}
WIDTHS = {
    Method(method="chain", shape="2"): (1, 1),
    Method(method="chain", shape="7"): (1,) * 7,
    Method(method="rsd-s", shape="2x2"): (2, 2),
    Method(method="rsd-s", shape="2x7"): (2,) * 7,
    Method(method="rsd-s", shape="4x3"): (4,) * 3,
    Method(method="rsd-s", shape="4x8"): (4,) * 8,
    Method(method="rsd-c", shape="2-1-1"): (2, 2, 2),
    Method(method="rsd-c", shape="2-2-2"): (2, 4, 8),
    Method(method="rsd-c", shape="2-1-1-1-1"): (2,) * 5,
    Method(method="rsd-c", shape="3-2-2-1-1"): (3, 6, 12, 12, 12),
    PLAIN: (),
}


def target_seconds(nodes):
    """Not rising everywhere, as on real machines."""
    return 0.005 + 0.0002 * nodes + (0.001 if nodes in (3, 4) else 0.0)


def forwards(slow_ones=0):
    found = Forwards()
    for seconds, of in ((found.draft, LEVEL.__getitem__), (found.target, target_seconds)):
        for nodes in seconds:
            seconds[nodes] += [of(nodes)] * 5 + [3.0] * slow_ones
    return found


WITHIN = 1.1  # times as long within a round


def parts_of(widths):
    level = sum(LEVEL[w] for w in (1, *widths[:-1])) if widths else 0.0
    return WITHIN * (level + target_seconds(1 + sum(widths))), 0.0005 + 0.0001 * len(widths) + 0.00002 * sum(widths)


def seconds_of(widths):
    return sum(parts_of(widths))


def rounds(method, slow_ones=0):
    """Rounds on a machine whose costs are exactly of the model's form; during some it does something else."""
    one = Timed(*parts_of(WIDTHS[method]), sum(WIDTHS[method]), 1)
    return [one] * 9 + [one._replace(forwards=3.0, rest=2.0)] * slow_ones


@pytest.fixture(scope="module")
def costs() -> Costs:
    return fit(forwards(slow_ones=2), {method: rounds(method, slow_ones=2) for method in WIDTHS}, WIDTHS)


def test_costs_of_shapes_that_were_not_measured(costs):
    for method, widths in {
        Method(method="chain", shape="3"): (1,) * 3,
        Method(method="chain", shape="5"): (1,) * 5,
        Method(method="rsd-s", shape="3x4"): (3,) * 4,
        Method(method="rsd-s", shape="3x7"): (3,) * 7,
        Method(method="rsd-c", shape="3-1-1"): (3,) * 3,
    }.items():
        assert costs.of_round(method, widths) == pytest.approx(seconds_of(widths))
    assert costs.of_round(PLAIN, ()) == pytest.approx(WITHIN * target_seconds(1) + 0.0005)


def test_costs_at_another_speed_of_the_machine(costs):
    twice = forwards()
    for side in (twice.draft, twice.target):
        for seconds in side.values():
            seconds[:] = [2 * one for one in seconds]
    chain, widths = Method(method="chain", shape="5"), (1,) * 5
    in_models, rest = parts_of(widths)
    assert costs.at_speed_of(twice).of_round(chain, widths) == pytest.approx(2 * in_models + rest)


def test_every_calibrated_shape_is_a_known_one():
    assert {(m.method, m.shape) for m in WIDTHS} == {(n, s) for n, shapes in SHAPES.items() for s in shapes} | {("ar", None)}
    assert set(LEVEL) == set(ASKED)
    for nest in (BEAMS, BRANCHINGS):  # nothing is asked about that lies beyond what was measured
        assert 1 + max(map(max, nest.members.values())) <= max(SCORED)
    assert max(max(widths, default=1) for widths in WIDTHS.values()) <= max(ASKED)


def accepted(share):
    """Block efficiency of chains and beams whose every node is accepted with this probability, if its parent is."""
    out = {}
    for method in beams(4, 8).members:
        width, depth = map(int, method.shape.split("x")) if "x" in method.shape else (1, int(method.shape))
        each = 1 - (1 - share) ** width
        out[method] = 1 + sum(each**level for level in range(1, depth + 1))
    return out


def widths_of(method):
    width, depth = map(int, method.shape.split("x")) if "x" in method.shape else (1, int(method.shape))
    return (width,) * depth


def best_of(costs, share):
    found = accepted(share)
    ahead = estimates(found, costs, {m: widths_of(m) for m in found})
    return max(ahead.values(), key=lambda e: e.tokens_per_second).method, ahead


def test_the_best_shape_is_found(costs):
    found, ahead = best_of(costs, 0.7)
    every = {m: e / costs.of_round(m, widths_of(m)) for m, e in accepted(0.7).items()}
    assert found == max(every, key=lambda m: every[m])
    assert ahead[found].tokens_per_second == pytest.approx(max(every.values()))
    assert found not in (PLAIN, *list(accepted(0.7))[:2])
    assert len(widths_of(best_of(costs, 0.3)[0])) < len(widths_of(found))  # a better draft, a deeper tree


def test_plain_decoding_where_the_draft_is_random(costs):
    assert best_of(costs, 0.01)[0] == PLAIN


def test_plain_decoding_where_drafts_cost_too_much(costs):
    dear = replace(costs, level=[(nodes, 40 * seconds) for nodes, seconds in costs.level])
    assert best_of(dear, 0.7)[0] == PLAIN


def test_of_each_kind_the_best_is_run_beside_what_only_a_run_can_tell(costs):
    found, ahead = best_of(costs, 0.7)
    asked = finalists(ahead, WHOLE)
    assert asked[: 2 + len(WHOLE)] == [PLAIN, LOOKUP, *WHOLE]
    assert Method(method="shared-noise") in WHOLE
    assert {m.method for m in WHOLE}.isdisjoint(SHAPES)
    assert {m.method for m in asked[2 + len(WHOLE) :]} == {"chain", "rsd-s"}
    assert found in asked
    assert finalists(estimates({}, costs, {}), []) == [PLAIN, LOOKUP]


def test_the_measured_winner_is_the_choice():
    slow, quick = Method(method="rsd-s", shape="4x8"), Method(method="chain", shape="2")
    assert fastest({PLAIN: 150.0, slow: 100.0, quick: 200.0}) == quick
    assert fastest({PLAIN: 150.0, slow: 100.0}) == PLAIN


def test_speed_is_not_led_astray_by_a_machine_that_did_something_else():
    one = Timed(0.012, 0.003, 4, 3)
    calm = Speed(rounds=[one] * 9)
    disturbed = Speed(rounds=[*[one] * 9, one._replace(forwards=60.0)])
    assert calm.tokens_per_second == pytest.approx(200.0)
    assert disturbed.tokens_per_second == pytest.approx(200.0)
    assert calm.tokens_per_round == 3
    mixed = Speed(rounds=[one] * 6 + [one._replace(forwards=0.022, tokens=6)] * 3)  # larger rounds count as what they are
    assert mixed.tokens_per_second == pytest.approx((6 * 3 + 3 * 6) / (6 * 0.015 + 3 * 0.025))


def test_a_noisy_machine_moves_the_costs_little():
    random.seed(1)

    def noisy(seconds):
        return seconds * random.uniform(0.8, 1.2)

    exact = forwards()
    tables = [{n: [noisy(found[0]) for _ in range(25)] for n, found in side.items()} for side in (exact.draft, exact.target)]
    samples = {m: [o._replace(forwards=noisy(o.forwards), rest=noisy(o.rest)) for o in rounds(m) * 3] for m in WIDTHS}
    costs = fit(Forwards(*tables), samples, WIDTHS)
    for method, widths in WIDTHS.items():
        assert costs.of_round(method, widths) == pytest.approx(seconds_of(widths), rel=0.1)


def test_what_follows_the_text_is_taken_where_a_run_can_hardly_tell():
    chain = Method(method="chain", shape="3")
    assert fastest({PLAIN: 100.0, chain: 130.0, ADAPTIVE: 125.0}) == ADAPTIVE
    assert fastest({PLAIN: 100.0, chain: 130.0, ADAPTIVE: 120.0}) == chain
    assert fastest({PLAIN: 100.0, LOOKUP: 97.0}) == PLAIN


def speed(tokens_per_second, texts):
    found = Speed()
    for _ in range(texts):
        found.add([Timed(1 / tokens_per_second, 0.0, 0, 1)] * 5)
    return found


@pytest.mark.parametrize(("texts", "left"), [(1, 4), (4, 3), (25, 2), (100, 2)])
def test_the_more_texts_the_fewer_go_on(texts, left):
    """A fifth is much after four texts; what follows the text goes on whatever it did, as it would be the choice."""
    chain, beam = Method(method="chain", shape="3"), Method(method="rsd-s", shape="3x4")
    found = {chain: speed(100.0, texts), beam: speed(85.0, texts), PLAIN: speed(70.0, texts), ADAPTIVE: speed(60.0, texts)}
    assert leaders(found) == [*[chain, beam, PLAIN][: left - 1], ADAPTIVE]


def test_a_method_whose_texts_ended_at_once_goes_on():
    assert leaders({PLAIN: Speed(texts=9), LOOKUP: speed(100.0, 9)}) == [PLAIN, LOOKUP]
    assert leaders({PLAIN: Speed(texts=9)}) == [PLAIN]


def test_only_what_wrote_all_texts_can_be_the_choice():
    """The first texts may have been the easy ones."""
    costs = Costs(level=[(1, 0.001)], target=[(1, 0.01)], within=1.0, rest={})
    measured = {0.0: {PLAIN: speed(200.0, 3), LOOKUP: speed(90.0, 20), ADAPTIVE: speed(60.0, 20)}}
    found = Findings(costs=costs, expected={0.0: {}}, measured=measured, seconds=1.0)
    assert found.choices == {0.0: LOOKUP}
    assert [method for _, method, _, _ in found.checks()] == [LOOKUP, ADAPTIVE, PLAIN]
