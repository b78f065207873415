"""Who is tried, who goes on, and who is the choice; also for a draft that scores whole blocks in one forward."""

from __future__ import annotations

import random

import pytest

from draftwood.core.settings import Method
from draftwood.engine.methods import build
from draftwood.tune.compare import PLAIN
from draftwood.tune.measure import Speed, Timed
from draftwood.tune.run import ADAPTIVE, LOOKUP, candidates, faster_half, fastest
from tests.helpers import tiny_runner

CHAIN, BEAM = Method(method="chain", shape="2"), Method(method="rsd-s", shape="4x8")


def choice(speeds):
    return fastest({method: speed(value) for method, value in speeds.items()})


def test_the_measured_winner_is_the_choice():
    assert choice({PLAIN: 150.0, BEAM: 100.0, CHAIN: 200.0}) == CHAIN
    assert choice({PLAIN: 150.0, BEAM: 100.0}) == PLAIN


def test_what_follows_the_text_is_taken_where_a_run_can_hardly_tell():
    assert choice({PLAIN: 100.0, CHAIN: 130.0, ADAPTIVE: 125.0}) == ADAPTIVE
    assert choice({PLAIN: 100.0, CHAIN: 130.0, ADAPTIVE: 120.0}) == CHAIN
    assert choice({PLAIN: 100.0, LOOKUP: 97.0}) == PLAIN


def test_only_what_wrote_all_texts_can_be_the_choice():
    """The first texts may have been the easy ones."""
    found = {BEAM: speed(200.0, 3), LOOKUP: speed(90.0, 20), ADAPTIVE: speed(60.0, 20), PLAIN: speed(50.0, 20)}
    assert fastest(found) == LOOKUP


def noisy(values):
    """The speeds of as many texts."""
    found = Speed()
    for value in values:
        found.add([Timed(1 / value, 1)] * 5)
    return found


def speed(tokens_per_second, texts=1):
    return noisy([tokens_per_second] * texts)


@pytest.mark.parametrize(("plain", "other", "chosen"), [
    ([100.0] * 8, [102.0] * 8, ADAPTIVE),  # little, but in every text
    ([100.0] * 8, [97.0] * 8, PLAIN),  # nearly as fast does not pay
    ([90.0, 120.0, 100.0, 95.0], [120.0, 90.0, 105.0, 101.0], PLAIN),  # within the spread
    ([50.0, 100.0, 200.0, 400.0], [60.0, 121.0, 239.0, 481.0], ADAPTIVE),  # texts differ, their ratios hardly
    ([100.0], [104.0], PLAIN),  # one text shows no spread
    ([100.0], [106.0], ADAPTIVE),
])  # fmt: skip
def test_a_draft_must_beat_plain_decoding_by_more_than_the_spread(plain, other, chosen):
    assert fastest({PLAIN: noisy(plain), ADAPTIVE: noisy(other)}) == chosen


def test_equally_fast_methods_never_win_by_noise():
    chosen = []
    for seed in range(40):
        rng = random.Random(seed)
        texts = {m: noisy([100.0 * rng.uniform(0.8, 1.2) for _ in range(20)]) for m in (PLAIN, CHAIN, ADAPTIVE)}
        chosen.append(fastest(texts))
    assert chosen.count(PLAIN) >= 36


def test_the_faster_half_goes_on_and_plain_decoding_and_what_follows_the_text():
    found = {PLAIN: speed(70.0), CHAIN: speed(100.0), BEAM: speed(85.0), LOOKUP: speed(65.0), ADAPTIVE: speed(60.0)}
    assert faster_half(found) == [PLAIN, CHAIN, BEAM, ADAPTIVE]
    assert faster_half({m: found[m] for m in (PLAIN, CHAIN, LOOKUP)}) == [PLAIN, CHAIN]
    assert faster_half({m: found[m] for m in (PLAIN, CHAIN, BEAM)}) == [PLAIN, CHAIN, BEAM]
    assert faster_half({m: found[m] for m in (PLAIN, LOOKUP)}) == [PLAIN, LOOKUP]


def test_a_method_whose_texts_ended_at_once_goes_on():
    found = {PLAIN: Speed(by_text=[0.0] * 9), LOOKUP: speed(100.0, 9), CHAIN: speed(110.0, 9)}
    assert faster_half(found) == [PLAIN, CHAIN]


@pytest.mark.parametrize("slow", [0, 1])
def test_speed_is_not_led_astray_by_a_machine_that_did_something_else(slow):
    one = Timed(0.015, 3)
    found = Speed(rounds=[*[one] * 9, *[one._replace(seconds=60.0)] * slow])
    assert found.tokens_per_second == pytest.approx(200.0)
    assert found.tokens_per_round == 3


def test_larger_rounds_count_as_what_they_are():
    mixed = Speed(rounds=[Timed(0.015, 3)] * 6 + [Timed(0.025, 6)] * 3)
    assert mixed.tokens_per_second == pytest.approx((6 * 3 + 3 * 6) / (6 * 0.015 + 3 * 0.025))


@pytest.mark.parametrize("greedy", [True, False])
def test_what_is_tried_depends_on_the_draft_and_can_be_built(greedy):
    assert candidates(None, greedy=greedy) == [PLAIN, LOOKUP, Method(method="lookup")]
    draft = tiny_runner(23, 2)
    found = candidates(draft, greedy=greedy)
    assert len(found) == len(set(found))
    assert {PLAIN, LOOKUP} < set(found)
    for method in found:
        build(method, draft, greedy=greedy)


def test_at_temperature_0_all_verifiers_are_one():
    greedy, drawn = (candidates(tiny_runner(23, 2), greedy=greedy) for greedy in (True, False))
    assert {method.verifier for method in greedy} == {"auto"}
    both = [{m.shape for m in drawn if m.verifier == verifier} for verifier in ("recursive", "traversal")]
    assert both[0] | both[1] == {m.shape for m in greedy if m.method in ("chain", "rsd-c", "rsd-s")}
    assert both[0] & both[1] == {"4", "2-2-1", "4x3"}  # the larger half by traversal, the smaller by recursive rejection
