"""``transformers`` on the same weights, with its dynamic cache: ``generate``, and at batch 1 assisted generation and prompt
lookup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from benchmarks.measure import Maker, Texts, closed
from benchmarks.settings import Setting
from draftwood.api import Pair
from draftwood.tune.compare import configured, generation_config


def peer_maker(setting: Setting, pair: Pair, temperature: float, max_new_tokens: int, cache: str | None = None) -> Maker:
    """``model.generate`` under the same distribution and limits as Draftwood, with a cache of this kind."""
    model, draft = pair.model, pair.draft_model if pair.draft and setting.method == "assisted" else None
    config = generation_config(pair, temperature, max_new_tokens)
    config.cache_implementation = cache
    extra = {} if draft is None else {"assistant_model": draft}
    if setting.method == "prompt-lookup":
        config.prompt_lookup_num_tokens = setting.nodes
    assistant = assistant_config(setting.nodes)

    def make(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> Texts:
        torch.manual_seed(seeds[0])
        ids, seen = (rows.to(model.device) for rows in padded(prompts))
        with configured(model, config), configured(draft, assistant):
            out = model.generate(ids, attention_mask=seen, generation_config=config, **extra)
        return Texts(tokens=[closed(row, pair.eos) for row in out[:, ids.shape[1] :].tolist()])

    return make


def padded(prompts: Sequence[Sequence[int]]) -> tuple[Int[Tensor, "row token"], Int[Tensor, "row token"]]:
    """Prompts padded on the left with token 0, and a mask that is 1 where they are not padded."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    return ids, torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])


def assistant_config(length: int) -> Any:
    """The draft length is read from the assistant's own configuration; given to ``generate`` it would be ignored."""
    from transformers import GenerationConfig

    return GenerationConfig(
        num_assistant_tokens=max(1, length), num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
    )
