"""The order of measurements, what an interrupt leaves, and the figures, recomputed by hand."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.batches import at_batches, batched, left_out
from benchmarks.prompts import Prompt
from benchmarks.report import efficiency_cell
from benchmarks.run import Bench, Log, by_prompt, orders, seed_of
from benchmarks.settings import Setting
from benchmarks.summary import efficiency, figures, ratio, speed
from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from tests.benchmarks.tiny import made_up_sample


def test_every_pass_visits_all_cases_in_a_new_but_fixed_order() -> None:
    cases = [1, 2, 4, 5, 8]
    steps = list(orders(cases, 3, "a"))
    passes = [steps[i : i + 5] for i in range(0, 15, 5)]
    assert [p[0][0] for p in passes] == [0, 1, 2]
    assert all(sorted(case for _, case in p) == cases for p in passes)
    assert len({tuple(case for _, case in p) for p in passes}) > 1
    assert steps == list(orders(cases, 3, "a"))
    assert steps != list(orders(cases, 3, "b"))
    assert len({seed_of(0, repeat, prompt) for repeat in range(5) for prompt in range(100)}) == 500


def test_coupled_settings_write_the_same_text_with_the_same_seed_and_repeats_differ(measured: SimpleNamespace) -> None:
    assert measured.steps == measured.bench.steps == 12 * (1 + 2 * 3)
    assert measured.ends == 2
    assert all([len(repeat) for repeat in repeats] == [3, 3] for repeats in measured.log.samples)
    texts = [[s.tokens[0] for repeat in repeats for s in repeat] for repeats in measured.log.samples]
    ar, chain, _, _, generate, assisted, sampled, *_ = texts
    assert ar == chain == generate == assisted
    assert ar[:3] == ar[3:]
    assert sampled[:3] != sampled[3:]


@pytest.mark.parametrize(("size", "wanted"), [(1, [(0,), (1,), (2,), (3,), (4,), (5,)]), (2, [(0, 2), (1, 3), (4, 5)])])
def test_batches_are_of_one_source_and_the_sources_take_turns(size: int, wanted: list) -> None:
    prompts = [Prompt(source=source, tokens=(1,)) for source in "ababaa"]
    assert batched(prompts, size) == wanted
    with pytest.raises(ConfigError, match=r"batches of 4 cannot be filled with 2 prompts of 'b'.*--prompts-per-source 4"):
        batched([p for p in prompts if p.source == "b"], 4)


def test_methods_for_one_text_at_a_time_are_left_out_of_batches_by_name() -> None:
    settings = [Setting(method=name) for name in ("ar", "generate", "assisted", "llama.cpp", "genai")]
    assert at_batches(settings, [1]) == settings
    larger = [s.method for s in at_batches(settings, [1, 4]) if s.batch == 4]
    assert larger == ["ar", "generate", "genai"]
    assert list(left_out(settings, [1, 4])) == ["assisted at batch 4", "llama.cpp at batch 4"]
    assert left_out(settings, [1]) == {}


def test_every_case_continues_every_prompt_in_batches_of_its_size(pair: Pair) -> None:
    prompts = [Prompt(source="a", tokens=(n, n + 1)) for n in range(1, 5)]
    cases = [(s, 0.0) for s in at_batches([Setting(method="ar"), Setting(method="generate")], [1, 4])]
    bench = Bench(pair=pair, cases=cases, prompts=prompts, repeats=2, max_new_tokens=5, seed=0)
    log, steps = Log(cases=cases), []
    bench.run(log, lambda: steps.append(1), lambda: None)
    assert len(steps) == bench.steps == 2 * (1 + 2 * 4) + 2 * (1 + 2 * 1)
    sizes = [setting.batch for setting, _ in cases]
    texts = [by_prompt(found[1], batched(prompts, size)) for size, found in zip(sizes, log.samples, strict=True)]
    assert list(texts[0]) == [0, 1, 2, 3]
    assert all(found == texts[0] for found in texts)
    assert [len(repeats[0]) for repeats in log.samples] == [4, 4, 1, 1]


@pytest.mark.parametrize(("sizes", "counts", "kept"), [
    ([1, 1], [[3, 3], [3, 3]], [[3, 3], [3, 3]]),
    ([1, 1], [[3, 2], [3, 1]], [[3, 1], [3, 1]]),
    ([1, 1], [[3, 1], [3]], [[3], [3]]),
    ([1, 1], [[2], [1]], [[1], [1]]),
    ([1, 1], [[1], []], [[1], []]),  # nothing is complete: what there is stays
    ([1, 1, 2, 2], [[4, 4], [4, 4], [2, 1], [2]], [[4, 4], [4, 4], [2], [2]]),  # batches of one size alone
])  # fmt: skip
def test_an_interrupted_pass_is_dropped_unless_it_is_all(sizes: list, counts: list, kept: list) -> None:
    methods = ["ar", "generate"] * 2
    cases = [(Setting(method=method, batch=size), 0.0) for method, size in zip(methods, sizes, strict=False)]
    log = Log(cases=cases, samples=[[[made_up_sample(1)] * n for n in repeats] for repeats in counts])
    log.level()
    assert [[len(repeat) for repeat in repeats] for repeats in log.samples] == kept


def repeat(tokens: list[int], forwards: list[int], seconds: list[float], **stages: list[float]) -> dict[str, list[Any]]:
    zero = [0.0] * len(tokens)
    times = {f"{s}_seconds": stages.get(s, zero) for s in ("draft", "target", "verify")}
    counts = dict.fromkeys(("forwards", "row_forwards", "drafted"), forwards)
    return {"new_tokens": tokens, "seconds": seconds, **counts, **times}


TWO = [repeat([10, 20], [5, 10], [1.0, 3.0]), repeat([10, 20], [5, 5], [2.0, 4.0])]


def test_speed_is_all_tokens_over_all_seconds() -> None:
    assert speed(TWO[0]) == 30 / 4
    found = figures(TWO, ["a", "b"])
    assert found["tokens_per_second"] == {"median": (7.5 + 5) / 2, "min": 5.0, "max": 7.5}
    assert found["by_source"]["a"]["block_efficiency"] == 2
    assert found["by_source"]["b"]["block_efficiency"] == 40 / 15
    assert found["by_source"]["b"]["tokens_per_second"]["max"] == pytest.approx(20 / 3)
    cut_short = figures([*TWO, repeat([30], [5], [3.0])], ["a", "b"])
    assert (cut_short["block_efficiency"], cut_short["tokens_per_second"]["max"]) == (90 / 30, 10)


def test_efficiency_is_tokens_over_forwards_of_all_texts() -> None:
    value, error = efficiency(TWO, range(2))
    assert value == 60 / 25
    # prompts: 20 tokens in 10 forwards and 40 in 15; residuals 20 - 24 and 40 - 36
    assert error == pytest.approx(math.sqrt(2 / 1 * (16 + 16)) / 25)
    assert efficiency(TWO, [0]) == (2.0, None)


def test_in_a_batch_a_forward_counts_once_for_every_text_and_once_for_the_round() -> None:
    four = [repeat([12], [3], [1.5]) | {"row_forwards": [8], "drafted": [16], "seen": [True]}]
    found = figures(four, ["a"])
    assert found["block_efficiency"] == 12 / 8
    assert found["drafted_per_round"] == 16 / 8
    assert found["ms_per_round"] == pytest.approx(500)
    unknown = figures([four[0] | {"row_forwards": [0], "seen": [False]}], ["a"])
    assert unknown["block_efficiency"] is None
    assert unknown["tokens_per_second"]["median"] == 8
    assert efficiency_cell(unknown) == ""


def test_the_standard_error_is_the_scatter_of_the_estimate() -> None:
    rng = random.Random(0)
    drawn = []
    for _ in range(400):
        forwards = [rng.randint(20, 40) for _ in range(30)]
        tokens = [round(f * rng.uniform(1.5, 3.5)) for f in forwards]
        drawn.append(efficiency([repeat(tokens, forwards, [1.0] * 30)], range(30)))
    mean = sum(value for value, _ in drawn) / len(drawn)
    scatter = math.sqrt(sum((value - mean) ** 2 for value, _ in drawn) / (len(drawn) - 1))
    assert sum(error or 0 for _, error in drawn) / len(drawn) == pytest.approx(scatter, rel=0.1)


def test_ratios_are_taken_inside_each_repeat_and_more_than_one_is_faster() -> None:
    fast = [repeat([10], [5], [1.0]), repeat([10], [5], [4.0]), repeat([10], [5], [1.0])]
    slow = [repeat([10], [5], [2.0]), repeat([10], [5], [8.0]), repeat([10], [5], [3.0])]
    assert ratio(fast, slow) == {"median": 2.0, "min": 2.0, "max": 3.0}
    assert ratio(slow, fast)["median"] == 0.5


def test_shares_add_up_and_the_rest_is_outside() -> None:
    one = [repeat([8], [4], [1.0], draft=[0.2], target=[0.5], verify=[0.1])]
    found = figures(one, ["a"])
    assert sum(found["share"].values()) == pytest.approx(1)
    assert found["share"]["target"] == pytest.approx(0.5)
    assert found["outside_share"] == pytest.approx(0.3)
    assert found["outside_ms_per_round"] == pytest.approx(75)
