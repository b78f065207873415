"""The figures, recomputed by hand."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from benchmarks.report import efficiency_cell
from benchmarks.summary import efficiency, figures, ratio, speed


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
