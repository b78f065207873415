"""Draft models from folders and hub names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftwood.core.settings import LoadOptions
from draftwood.loading.models import (
    check_tokenizers,
    check_vocabulary,
    load_hidden_drafter,
    load_model,
    load_tokenizer,
    raw_config,
)
from draftwood.loading.published import load_published
from draftwood.runners.hidden.model import HiddenBlockConfig


def load_draft(name: str | Path, target: str | Path, model: Any, tokenizer: Any, options: LoadOptions) -> Any:
    """The draft model; raises a PairingError if its tokens are not those of the target."""
    config = raw_config(name, options)
    if config.get("model_type") == HiddenBlockConfig.model_type:
        drafter = load_hidden_drafter(name, model.device, model.dtype)
        check_vocabulary(drafter, model, tokenizer)
        return drafter
    if (published := load_published(name, config, model)) is not None:
        return published
    draft_model = load_model(name, options, model.device, model.dtype)
    check_tokenizers(tokenizer, load_tokenizer(name, options), str(target), str(name))
    return draft_model
