"""The order of measurements and what an interrupt leaves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from draftwood.bench.measure import Sample
from draftwood.bench.run import Log, orders, seed_of
from draftwood.bench.settings import Setting


def test_every_pass_visits_all_cases_in_a_new_but_fixed_order() -> None:
    steps = list(orders(5, 2, 3, base=1))
    passes = [steps[i : i + 5] for i in range(0, 30, 5)]
    assert [p[0][:2] for p in passes] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert all(sorted(case for _, _, case in p) == list(range(5)) for p in passes)
    assert len({tuple(case for _, _, case in p) for p in passes}) > 1
    assert steps == list(orders(5, 2, 3, base=1))
    assert steps != list(orders(5, 2, 3, base=2))


def test_seeds_differ_between_texts() -> None:
    assert len({seed_of(0, repeat, prompt) for repeat in range(5) for prompt in range(100)}) == 500


def test_a_run_fills_the_log_and_reports_its_steps(measured: SimpleNamespace) -> None:
    assert measured.steps == measured.bench.steps == 12 * (1 + 2 * 3)
    assert measured.ends == 2
    assert all([len(repeat) for repeat in repeats] == [3, 3] for repeats in measured.log.samples)


def test_coupled_settings_write_the_same_text_with_the_same_seed_and_repeats_differ(measured: SimpleNamespace) -> None:
    texts = [[s.tokens for repeat in repeats for s in repeat] for repeats in measured.log.samples]
    ar, chain, _, _, generate, assisted, sampled, *_ = texts
    assert ar == chain == generate == assisted
    assert ar[:3] == ar[3:]
    assert sampled[:3] != sampled[3:]


def sample(tokens: int) -> Sample:
    return Sample(
        tokens=[1] * tokens, forwards=1, draft_forwards=0, target_tokens=1, draft_tokens=0, drafted=0,
        seconds=1.0, target_seconds=0.1, draft_seconds=0.0, verify_seconds=0.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("counts", "kept"),
    [
        ([[3, 3], [3, 3]], [[3, 3], [3, 3]]),
        ([[3, 2], [3, 1]], [[3, 1], [3, 1]]),
        ([[3, 1], [3]], [[3], [3]]),
        ([[2], [1]], [[1], [1]]),
        ([[1], []], [[1], []]),  # nothing is complete: what there is stays
    ],
)
def test_an_interrupted_pass_is_dropped_unless_it_is_all(counts: list, kept: list) -> None:
    cases = [(Setting(method="ar"), 0.0), (Setting(method="generate"), 0.0)]
    log = Log(cases=cases, samples=[[[sample(1)] * n for n in repeats] for repeats in counts])
    log.level()
    assert [[len(repeat) for repeat in repeats] for repeats in log.samples] == kept
