"""The check of greedy texts sees what it should see."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch

from benchmarks.greedy import compare, first_difference, top_two_gap
from tests.benchmarks.tiny import PROMPTS


def test_all_settings_write_what_generate_writes(measured: SimpleNamespace) -> None:
    checks = measured.document["greedy"]
    assert {c["setting"] for c in checks} == {"ar", "chain 2", "rsd-s 2x2", "rsd-s 3x2", "generate", "assisted 2"}
    assert all(c["compared"] == 3 and c["differing"] == [] for c in checks)


@pytest.mark.parametrize("repeat", [0, 1])
def test_a_planted_difference_is_found_with_its_gap(measured: SimpleNamespace, repeat: int) -> None:
    log, model = copy.deepcopy(measured.log), measured.bench.pair.target.model
    index = next(i for i, (s, t) in enumerate(log.cases) if s.name == "chain 2" and t == 0)
    [tokens] = log.samples[index][repeat][2].tokens
    right = list(tokens)
    tokens[4] = (tokens[4] + 1) % 96
    check = next(c for c in compare(model, PROMPTS, log) if c["setting"] == "chain 2")
    assert [(d["prompt"], d["at"]) for d in check["differing"]] == [(2, 4)]
    with torch.inference_mode():
        scores = model(torch.tensor([[*PROMPTS[2].tokens, *right[:4]]])).logits[0, -1].sort(descending=True).values
    assert check["differing"][0]["gap"] == pytest.approx(float(scores[0] - scores[1]), abs=1e-5)
    assert top_two_gap(model, [1, 2]) > 0


def test_nothing_is_checked_without_generate(measured: SimpleNamespace) -> None:
    log = copy.deepcopy(measured.log)
    keep = [i for i, (s, _) in enumerate(log.cases) if s.method != "generate"]
    log.cases, log.samples = [log.cases[i] for i in keep], [log.samples[i] for i in keep]
    assert compare(measured.bench.pair.target.model, PROMPTS, log) == []


def test_where_texts_part() -> None:
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2, 3], [1, 2]) == 2
