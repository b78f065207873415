"""The best method is found on a machine whose speeds are known, noisy and drifting."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from draftwood.core.errors import ConfigError
from draftwood.core.settings import Method
from draftwood.tune import run
from draftwood.tune.compare import PLAIN
from draftwood.tune.measure import Timed
from draftwood.tune.run import ADAPTIVE, LOOKUP, Ladder, faster_half
from draftwood.tune.sizes import Sizes

METHODS = [PLAIN, LOOKUP, ADAPTIVE, *(Method(method="chain", shape=str(n)) for n in range(1, 14))]
PROMPTS = [[1, 2, 3], [4, 5], [6]]


class Machine:
    """Writes texts at a speed of each method's own, in a time of its own.

    Args:
        speeds: tokens per second.
        noise: a text is up to this share faster or slower.
    """

    def __init__(self, speeds, *, noise=0.0, seed=0, drift=0.0):
        self.speeds, self.noise, self.drift = speeds, noise, drift
        self.rng, self.seconds = random.Random(seed), 0.0
        self.texts, self.reported = [], []

    def clock(self):
        return self.seconds

    def write(self, method, temperature, prompt, seed, tokens):
        self.texts.append((method, temperature, tuple(prompt), seed, tokens))
        slower = 1.0 + self.drift * (int(self.seconds / 7) % 2)  # the machine has slow spells of seven seconds
        factor = self.rng.uniform(1 - self.noise, 1 + self.noise) / slower
        rounds = [Timed(2 / (self.speeds[temperature, method] * factor), 2)] * (tokens // 2)
        self.seconds += sum(one.seconds for one in rounds)
        return rounds

    def findings(self, *, minutes=2.0, temperatures=(0.0,), methods=METHODS):
        sizes = Sizes(minutes=minutes, temperature=temperatures, max_new_tokens=48)
        candidates = {t: list(methods) for t in temperatures}
        return Ladder(
            candidates, PROMPTS, sizes, self.write, lambda *args: self.reported.append(args), self.clock
        ).findings()


def speeds_of(best, *, ahead=1.12, temperatures=(0.0,), seed=0):
    """Speeds of 60 to 100, and a best one that is so much ahead of all others."""
    rng = random.Random(seed)
    found = {(t, method): rng.uniform(60.0, 100.0) for t in temperatures for method in METHODS}
    found.update({(t, method): 100.0 * ahead for t, method in best.items()})
    return found


@pytest.mark.parametrize("best", [PLAIN, LOOKUP, METHODS[5], METHODS[-1]])
def test_the_best_is_found_under_noise_and_drift(best):
    hits = 0
    for seed in range(20):
        others = {(0.0, method): 70.0 for method in (ADAPTIVE, PLAIN) if method != best}
        speeds = speeds_of({0.0: best}, seed=seed) | others
        hits += Machine(speeds, noise=0.3, drift=0.3, seed=seed).findings().choices[0.0] == best
    assert hits >= 19


def test_control_a_ladder_that_keeps_the_slower_half(monkeypatch):
    def slower_half(found):
        kept = faster_half(found)
        return [method for method in found if method not in kept] or list(found)

    monkeypatch.setattr(run, "faster_half", slower_half)
    best = METHODS[5]
    for seed in range(10):
        machine = Machine(speeds_of({0.0: best}, seed=seed), noise=0.3, seed=seed)
        assert machine.findings().choices[0.0] != best


def test_control_a_measure_that_mixes_up_the_methods():
    best = METHODS[5]
    speeds = speeds_of({0.0: best})
    mixed = {(0.0, method): speeds[0.0, other] for method, other in zip(METHODS, METHODS[1:] + METHODS[:1], strict=True)}
    assert Machine(speeds).findings().choices[0.0] == best
    assert Machine(mixed).findings().choices[0.0] == METHODS[4]


def test_every_temperature_has_a_choice_of_its_own():
    best = {0.0: METHODS[7], 0.6: LOOKUP, 1.0: PLAIN}
    machine = Machine(speeds_of(best, temperatures=(0.0, 0.6, 1.0)), noise=0.2)
    assert machine.findings(minutes=6.0, temperatures=(0.0, 0.6, 1.0)).choices == best


def test_half_goes_on_and_those_that_are_left_have_written_the_same_texts():
    machine = Machine(speeds_of({0.0: METHODS[5]}) | {(0.0, ADAPTIVE): 105.0})
    found = machine.findings().measured[0.0]
    counts = Counter(speed.texts for speed in found.values())
    assert [counts[texts] for texts in sorted(counts)] == [8, 4, 1, 3]  # plain decoding and the adaptive tree stay
    whole = [(method, prompt, seed) for method, _, prompt, seed, tokens in machine.texts if tokens == 48]
    most = max(counts)
    finalists = [method for method, speed in found.items() if speed.texts == most]
    written = [{(prompt, seed) for one, prompt, seed in whole if one == method} for method in finalists]
    assert written == [{(tuple(PROMPTS[i % 3]), i) for i in range(most)}] * len(finalists)


def test_every_rung_has_the_same_time_and_the_whole_is_kept_to():
    machine = Machine(speeds_of({0.0: METHODS[5]}))
    found = machine.findings(minutes=2.0)
    assert found.seconds == pytest.approx(120.0, rel=0.1)
    ends = {name: share for name, share in machine.reported if name != "warm-up"}
    assert list(ends) == [f"rung {i} of 4" for i in (1, 2, 3, 4)]
    assert list(ends.values()) == pytest.approx([0.25, 0.5, 0.75, 1.0], abs=0.06)


def test_where_time_is_short_every_rung_is_one_text():
    machine = Machine(speeds_of({0.0: METHODS[5]}) | {(0.0, ADAPTIVE): 105.0})
    found = machine.findings(minutes=0.01)
    assert Counter(speed.texts for speed in found.measured[0.0].values()) == {1: 8, 2: 4, 3: 1, 4: 3}
    assert found.choices == {0.0: METHODS[5]}


def test_methods_write_in_another_order_for_every_text():
    machine = Machine(dict.fromkeys(speeds_of({}), 80.0))
    machine.findings()
    whole = [method for method, *_, tokens in machine.texts if tokens == 48]
    assert set(whole[:16]) == set(whole[16:32]) == set(METHODS)
    assert whole[:16] != whole[16:32]


def test_texts_that_end_with_their_first_round_are_refused():
    sizes = Sizes(minutes=0.01, temperature=(0.0,))
    ladder = Ladder({0.0: [PLAIN, LOOKUP]}, PROMPTS, sizes, lambda *_: [], lambda *_: None)
    with pytest.raises(ConfigError, match="the texts ended before a whole round of ar"):
        ladder.findings()
