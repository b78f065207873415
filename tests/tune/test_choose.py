"""Who is tried, and who is the choice, on a machine whose speeds are known, noisy and drifting."""

import random
from collections import Counter

import pytest

from draftwood.engine.methods import build
from draftwood.tune import compare, run
from draftwood.tune.compare import PLAIN, Written
from draftwood.tune.run import ADAPTIVE, LOOKUP, candidates, fastest, measure
from draftwood.tune.sizes import Sizes
from tests.helpers import tiny_runner

PROMPTS = [[1, 2, 3], [4, 5], [6]]


def texts(*speeds):
    """A text of each speed."""
    return [Written(tokens=5, passes=5, seconds=5 / speed) for speed in speeds]


@pytest.mark.parametrize(("plain", "other", "chosen"), [
    ([100.0] * 8, [102.0] * 8, ADAPTIVE),  # little, but in every text
    ([100.0] * 8, [97.0] * 8, PLAIN),  # nearly as fast does not pay
    ([90.0, 120.0, 100.0, 95.0], [120.0, 90.0, 105.0, 101.0], PLAIN),  # within the spread
    ([50.0, 100.0, 200.0, 400.0], [60.0, 121.0, 239.0, 481.0], ADAPTIVE),  # texts differ, their ratios hardly
    ([100.0], [104.0], PLAIN),  # one text shows no spread
    ([100.0], [106.0], ADAPTIVE),
])  # fmt: skip
def test_a_draft_must_beat_plain_decoding_by_more_than_the_spread(plain, other, chosen):
    assert fastest({PLAIN: texts(*plain), ADAPTIVE: texts(*other)}) == chosen


def test_equally_fast_methods_never_win_by_noise():
    chosen = []
    for seed in range(40):
        rng = random.Random(seed)
        chosen.append(fastest({m: texts(*(rng.uniform(80, 120) for _ in range(20))) for m in (PLAIN, LOOKUP, ADAPTIVE)}))
    assert chosen.count(PLAIN) >= 36


@pytest.mark.parametrize("greedy", [True, False])
def test_what_is_tried_depends_on_the_draft_and_can_be_built(greedy):
    assert candidates(None) == [PLAIN, LOOKUP]
    draft = tiny_runner(23, 2)
    assert candidates(draft) == [PLAIN, LOOKUP, ADAPTIVE]
    for method in candidates(draft):
        build(method, draft, greedy=greedy)


class Machine:
    """Writes texts at a speed of each method's own, in a time of its own.

    Args:
        speeds: temperature -> method -> tokens per second.
        noise: a text is up to this share faster or slower.
        drift: how much slower the machine is in every second spell of seven seconds.
    """

    def __init__(self, speeds, *, noise=0.0, seed=0, drift=0.0):
        self.speeds, self.noise, self.drift = speeds, noise, drift
        self.rng, self.seconds = random.Random(seed), 0.0
        self.texts = []

    def clock(self):
        return self.seconds

    def writer(self, temperature, method):
        def write(prompt, seed):
            self.texts.append((temperature, method, tuple(prompt), seed))
            slower = 1.0 + self.drift * (int(self.seconds / 7) % 2)
            factor = self.rng.uniform(1 - self.noise, 1 + self.noise) / slower
            self.seconds += 48 / (self.speeds[temperature][method] * factor)
            return 48, 24

        return write

    def findings(self, monkeypatch, *, minutes=2.0):
        monkeypatch.setattr(compare, "perf_counter", self.clock)
        monkeypatch.setattr(compare, "sleep", lambda seconds: None)
        writers = {t: {method: self.writer(t, method) for method in listed} for t, listed in self.speeds.items()}
        return measure(writers, PROMPTS, Sizes(minutes=minutes), lambda *_: None, self.clock)


def speeds_of(best, ahead=1.2):
    return dict.fromkeys((PLAIN, LOOKUP, ADAPTIVE), 100.0) | {best: 100.0 * ahead}


@pytest.mark.parametrize("best", [PLAIN, LOOKUP, ADAPTIVE])
def test_the_best_is_found_under_noise_and_drift(best, monkeypatch):
    machines = (Machine({0.0: speeds_of(best)}, noise=0.3, drift=0.3, seed=seed) for seed in range(20))
    assert sum(machine.findings(monkeypatch).choices[0.0] == best for machine in machines) >= 19


def test_control_a_choice_that_knows_no_spread(monkeypatch):
    monkeypatch.setattr(run, "beats", lambda ours, theirs: True)
    machines = (Machine({0.0: dict.fromkeys((PLAIN, LOOKUP), 100.0)}, noise=0.3, seed=seed) for seed in range(20))
    assert sum(machine.findings(monkeypatch).choices[0.0] == PLAIN for machine in machines) < 19


def test_every_temperature_has_a_choice_of_its_own(monkeypatch):
    best = {0.0: ADAPTIVE, 0.6: LOOKUP, 1.0: PLAIN}
    machine = Machine({t: speeds_of(method) for t, method in best.items()}, noise=0.1)
    assert machine.findings(monkeypatch, minutes=6.0).choices == best


def test_all_write_the_same_texts_in_turn_until_the_time_is_over(monkeypatch):
    machine = Machine({t: speeds_of(ADAPTIVE) for t in (0.0, 1.0)})
    found = machine.findings(monkeypatch)
    assert found.seconds == pytest.approx(120.0, rel=0.05)
    written, warm_up = machine.texts[6:], machine.texts[:6]
    assert {(t, method) for t, method, *_ in warm_up} == {(t, m) for t in (0.0, 1.0) for m in speeds_of(PLAIN)}
    counts = Counter((t, method) for t, method, *_ in written)
    assert len(counts) == 6
    assert len(set(counts.values())) == 1
    turns = [written[at : at + 3] for at in range(0, len(written), 3)]
    assert [{(t, prompt, seed) for t, _, prompt, seed in turn} for turn in turns] == [
        {(t, tuple(PROMPTS[n % 3]), n)} for n in range(len(turns) // 2) for t in (0.0, 1.0)
    ]
    assert len({tuple(method for _, method, *_ in turn) for turn in turns}) > 1  # in another order


def test_where_time_is_short_every_method_writes_one_text(monkeypatch):
    found = Machine({0.0: speeds_of(ADAPTIVE)}).findings(monkeypatch, minutes=0.001)
    assert {method: len(written) for method, written in found.measured[0.0].items()} == dict.fromkeys(speeds_of(PLAIN), 1)
    assert found.choices == {0.0: ADAPTIVE}
