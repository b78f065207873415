"""The check at temperature 0: every text must equal that of ``transformers.generate``, or differ at nearly equal scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.batches import batched
from benchmarks.prompts import Prompt
from benchmarks.run import Log, by_prompt


def compare(model: Any, prompts: Sequence[Prompt], log: Log) -> list[dict[str, Any]]:
    """Per setting, how many prompts it continued unlike ``generate`` in any repeat, and the top-2 gap where they part.

    ``generate`` of the smallest batch is what all batches are compared with. Empty when ``generate`` was not measured at
    temperature 0.
    """
    texts = {
        setting: [by_prompt(repeat, batched(prompts, setting.batch)) for repeat in samples]
        for (setting, temperature), samples in zip(log.cases, log.samples, strict=True)
        if temperature == 0 and samples
    }
    plain = [setting for setting in texts if setting.method == "generate"]
    if not plain:
        return []
    reference = texts[min(plain, key=lambda setting: setting.batch)][0]
    return [
        {"setting": setting.name, "batch": setting.batch, "compared": len(reference.keys() & repeats[0]), "differing": found}
        for setting, repeats in texts.items()
        for found in [_differences(model, prompts, reference, repeats)]
    ]


def _differences(
    model: Any, prompts: Sequence[Prompt], reference: dict[int, list[int]], repeats: list[dict[int, list[int]]]
) -> list[dict[str, Any]]:
    """One entry per prompt that differs, from the first repeat in which it does."""
    found: dict[int, dict[str, Any]] = {}
    for repeat in repeats:
        for index in reference.keys() & repeat:
            wanted, text = reference[index], repeat[index]
            if text != wanted and index not in found:
                at = first_difference(wanted, text)
                gap = top_two_gap(model, [*prompts[index].tokens, *wanted[:at]])
                found[index] = {"prompt": index, "at": at, "gap": gap}
    return [found[index] for index in sorted(found)]


def first_difference(left: Sequence[int], right: Sequence[int]) -> int:
    """The first position where two texts differ; the end of the shorter one if it is a prefix of the other."""
    both = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(both) if a != b), min(len(left), len(right)))


def top_two_gap(model: Any, tokens: Sequence[int]) -> float:
    """How far the best score after ``tokens`` is above the second best."""
    with torch.inference_mode():
        best = model(input_ids=torch.tensor([list(tokens)], device=model.device)).logits[0, -1].float().topk(2).values
    return float(best[0] - best[1])
