"""Refuses settings and inputs of ``generate`` that a draft tree cannot honour, by name (ConfigError)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.errors import ConfigError
from draftwood.loading.unsupported import found_in

_HARMLESS = {"use_cache", "logits_to_keep", "cache_position", "return_dict"}  # the text does not depend on them


def refuse_settings(settings: Mapping[str, Any]) -> None:
    """Refuse other ways of decoding than one token after another, and outputs that a tree does not have."""
    for setting, why, row in found_in(settings):
        if row.recipe is not None:
            raise ConfigError(f"{setting} cannot be honoured by a draft tree: {why}; {row.recipe}")
    if settings.get("cache_implementation") == "quantized":
        raise ConfigError("cache_implementation='quantized' changes the text, and the tree cache is exact: leave it out")


def refuse_embeddings(model_kwargs: Mapping[str, Any]) -> None:
    """Refuse prompts that are not token ids."""
    if model_kwargs.get("inputs_embeds") is not None:
        raise ConfigError("inputs_embeds was given, but texts are drafted and scored as token ids: give input_ids instead")


def padding_of(input_ids: Int[Tensor, "row length"], mask: Tensor | None) -> list[int]:
    """The number of padding tokens on the left of each row."""
    if input_ids.shape[1] == 0:
        raise ConfigError("input_ids is empty: give every row at least one token")
    if mask is None:
        return [0] * input_ids.shape[0]
    if mask.shape != input_ids.shape:
        raise ConfigError(f"attention_mask has shape {tuple(mask.shape)}, but input_ids {tuple(input_ids.shape)}")
    real = mask != 0
    if not bool(real[:, -1].all()):
        raise ConfigError("a row is padded on the right: set tokenizer.padding_side = 'left', as generate needs it")
    if bool((real[:, :-1] & ~real[:, 1:]).any()):
        raise ConfigError("attention_mask hides tokens inside a row: only padding on the left can be honoured")
    return [int(n) for n in (~real).sum(1)]


def refuse_inputs(model_kwargs: Mapping[str, Any], width: int, padding: Sequence[int]) -> None:
    """Refuse inputs that would not reach the model."""
    given = {name: value for name, value in model_kwargs.items() if value is not None and name not in _HARMLESS}
    for name in ("cache", "past_key_values"):  # the latter before transformers 5.24
        cache = given.pop(name, None)
        if cache is not None and (getattr(cache, "_is_user_defined", False) or cache.get_seq_length() > 0):
            raise ConfigError(f"{name} was given, but a tree needs a memory of its own: leave it out")
    positions = given.pop("position_ids", None)
    if positions is not None:
        wanted = torch.arange(width).to(positions) - torch.tensor(padding).to(positions)[:, None]
        if positions.shape != wanted.shape or bool(((positions != wanted) & (wanted >= 0)).any()):
            raise ConfigError("position_ids do not count the tokens of each row from 0: leave them out")
    if given:
        raise ConfigError(f"{', '.join(sorted(given))} cannot be handed to the model under a draft tree: leave it out")
