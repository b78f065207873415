"""The order of measurements, what an interrupt leaves, and the figures, recomputed by hand."""

import math
from dataclasses import replace

import pytest
import torch

from benchmarks.batches import batched
from benchmarks.greedy import compare, first_difference
from benchmarks.prompts import Prompt
from benchmarks.report import efficiency_cell
from benchmarks.run import Log, orders, seed_of
from benchmarks.settings import Setting
from benchmarks.summary import efficiency, figures
from tests.benchmarks.tiny import made_up_sample


def test_every_pass_visits_all_cases_in_a_new_but_fixed_order():
    cases = [1, 2, 4, 5, 8]
    steps = list(orders(cases, 3, "a"))
    passes = [steps[i : i + 5] for i in range(0, 15, 5)]
    assert [p[0][0] for p in passes] == [0, 1, 2]
    assert all(sorted(case for _, case in p) == cases for p in passes)
    assert len({tuple(case for _, case in p) for p in passes}) > 1
    assert steps == list(orders(cases, 3, "a"))
    assert steps != list(orders(cases, 3, "b"))
    assert len({seed_of(0, repeat, prompt) for repeat in range(5) for prompt in range(100)}) == 500


@pytest.mark.parametrize(("size", "wanted"), [(1, [(0,), (1,), (2,), (3,), (4,), (5,)]), (2, [(0, 2), (1, 3), (4, 5)])])
def test_batches_are_of_one_source_and_the_sources_take_turns(size, wanted):
    prompts = [Prompt(source=source, tokens=(1,)) for source in "ababaa"]
    assert batched(prompts, size) == wanted


@pytest.mark.parametrize(("sizes", "counts", "kept"), [
    ([1, 1], [[3, 2], [3, 1]], [[3, 1], [3, 1]]),
    ([1, 1], [[3, 1], [3]], [[3], [3]]),
    ([1, 1], [[1], []], [[1], []]),  # nothing is complete: what there is stays
    ([1, 1, 2, 2], [[4, 4], [4, 4], [2, 1], [2]], [[4, 4], [4, 4], [2], [2]]),  # batches of one size alone
])  # fmt: skip
def test_an_interrupted_pass_is_dropped_unless_it_is_all(sizes, counts, kept):
    methods = ["ar", "generate"] * 2
    cases = [(Setting(method=method, batch=size), 0.0) for method, size in zip(methods, sizes, strict=False)]
    log = Log(cases=cases, samples=[[[made_up_sample(1)] * n for n in repeats] for repeats in counts])
    log.level()
    assert [[len(repeat) for repeat in repeats] for repeats in log.samples] == kept


def test_texts_part_where_one_of_them_ends():
    assert (first_difference([1, 2, 3], [1, 9, 3]), first_difference([1, 2, 3], [1, 2])) == (1, 2)


def test_a_planted_difference_is_found_with_its_gap(pair):
    prompts = [Prompt(source="a", tokens=(1, 2, 3)), Prompt(source="b", tokens=(4, 5))]
    first, second, wrong = [5, 6, 7], [8, 9, 10], [8, 9, 11]
    cases = [(Setting(method="generate"), 0.0), (Setting(method="chain", shape="2", nodes=2), 0.0)]
    texts = [[[first, second]] * 2, [[first, second], [first, wrong]]]
    samples = [[[replace(made_up_sample(3), tokens=[text]) for text in turn] for turn in repeats] for repeats in texts]
    same, other = compare(pair.target.model, prompts, Log(cases=cases, samples=samples))
    assert (same["setting"], same["compared"], same["differing"]) == ("generate", 2, [])
    [found] = other["differing"]
    assert (found["prompt"], found["at"]) == (1, 2)
    with torch.inference_mode():
        best = pair.target.model(torch.tensor([[4, 5, 8, 9]])).logits[0, -1].topk(2).values
    assert found["gap"] == pytest.approx(float(best[0] - best[1]), abs=1e-5)


def repeat(tokens, forwards, seconds):
    times = dict.fromkeys(("draft_seconds", "target_seconds", "verify_seconds"), [0.0] * len(tokens))
    counts = dict.fromkeys(("forwards", "row_forwards", "drafted"), forwards)
    return {"new_tokens": tokens, "seconds": seconds, **counts, **times}


TWO = [repeat([10, 20], [5, 10], [1.0, 3.0]), repeat([10, 20], [5, 5], [2.0, 4.0])]


def test_efficiency_is_tokens_over_forwards_of_all_texts():
    value, error = efficiency(TWO)
    assert value == 60 / 25
    # prompts: 20 tokens in 10 forwards and 40 in 15; residuals 20 - 24 and 40 - 36
    assert error == pytest.approx(math.sqrt(2 / 1 * (16 + 16)) / 25)


def test_in_a_batch_a_forward_counts_once_for_every_text_and_once_for_the_round():
    four = [repeat([12], [3], [1.5]) | {"row_forwards": [8], "drafted": [16], "seen": [True]}]
    found = figures(four)
    assert found["block_efficiency"] == 12 / 8
    assert found["drafted_per_round"] == 16 / 8
    unknown = figures([four[0] | {"row_forwards": [0], "seen": [False]}])
    assert unknown["block_efficiency"] is None
    assert unknown["tokens_per_second"]["median"] == 8
    assert efficiency_cell(unknown) == ""
