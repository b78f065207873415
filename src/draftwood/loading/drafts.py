"""Draft models from folders and hub names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from draftwood.core.settings import LoadOptions
from draftwood.loading.causal import load_causal
from draftwood.loading.models import check_tokenizers, load_tokenizer, raw_config
from draftwood.loading.tensors import fill, tensors_of
from draftwood.runners.hidden.model import HiddenBlockConfig, HiddenBlockDrafter
from draftwood.runners.pairing import vocabulary_digest


def load_draft(name: str | Path, target: str | Path, model: Any, tokenizer: Any, options: LoadOptions) -> Any:
    """The draft model; raises a PairingError if its tokens are not those of the target."""
    config = raw_config(name, options)
    if config.get("model_type") == HiddenBlockConfig.model_type:
        drafter = load_hidden_drafter(name, model.device, model.dtype)
        drafter.check_target(model, vocabulary_digest(tokenizer))
        return drafter
    from draftwood.loading.published import load_published  # it imports transformers

    if (published := load_published(name, config, model)) is not None:
        return published
    draft_model = load_causal(name, options, model.device, model.dtype)
    check_tokenizers(tokenizer, load_tokenizer(name, options), str(target), str(name))
    return draft_model


def reads_target(name: str | Path, options: LoadOptions) -> bool:
    """Whether a draft model reads the target's hidden states, and may share its embeddings and output weights."""
    from draftwood.loading.published_configs import is_published

    config = raw_config(name, options)
    return config.get("model_type") == HiddenBlockConfig.model_type or is_published(config)


def load_hidden_drafter(name: str | Path, device: torch.device, dtype: torch.dtype) -> HiddenBlockDrafter:
    """A drafter of hidden states in evaluation mode; raises a ModelError as :func:`load_model` does."""
    config = HiddenBlockConfig(**raw_config(name, LoadOptions()))
    with torch.device("meta"):
        drafter = HiddenBlockDrafter(config)
    fill(name, drafter, tensors_of(name))
    return drafter.eval().to(device=device, dtype=dtype)
