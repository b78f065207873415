"""Loading of published drafters: EAGLE-3, DFlash and DSpark checkpoints in safetensors."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from draftwood.core.errors import ModelError
from draftwood.loading.checkpoint import refuse_gaps
from draftwood.loading.published_configs import Published, published_config
from draftwood.loading.tensors import fill, tensors_of
from draftwood.runners.context import layer_count
from draftwood.runners.hidden.dflash import DFlashConfig, DFlashDrafter
from draftwood.runners.hidden.eagle import Eagle3Drafter
from draftwood.runners.hidden.module import PublishedDrafter

_LOG = logging.getLogger(__name__)
_UNUSED: Final = "confidence_head."


def load_published(name: str | Path, raw: Mapping[str, Any], target: Any) -> PublishedDrafter | None:
    """A published drafter in evaluation mode, on the target's device and in its number format.

    Its tokens cannot be compared with the target's, since checkpoints hold no tokenizer.

    Args:
        name: a folder, or the name of a hub model.
        raw: its ``config.json``.
        target: the target, a causal language model of ``transformers``.

    Returns:
        None if ``raw`` is the configuration of another model.

    Raises:
        ModelError: a flag, a kind or a tensor that is not known, or one that is missing; names it.
        PairingError: the drafter is for another target.
    """
    config = published_config(raw, layer_count(target.config))
    if config is None:
        return None
    tensors = tensors_of(name)
    if unused := [tensor for tensor in tensors if tensor.startswith(_UNUSED)]:
        _LOG.warning("the confidence head of %r is not used: trees are sized in other ways", str(name))
        tensors = {tensor: value for tensor, value in tensors.items() if tensor not in unused}
    draft_tokens = _draft_tokens(name, config, tensors.pop("d2t", None), tensors.pop("t2d", None))
    config.own_embedding = "embed_tokens.weight" in tensors
    config.own_head = not isinstance(config, DFlashConfig) or "lm_head.weight" in tensors
    drafter: PublishedDrafter = DFlashDrafter(config) if isinstance(config, DFlashConfig) else Eagle3Drafter(config)
    fill(name, drafter, {**tensors, "draft_tokens": draft_tokens})
    drafter.check_target(target)
    drafter.eval().to(device=target.device, dtype=target.dtype)
    return drafter


def _draft_tokens(name: str | Path, config: Published, d2t: Tensor | None, t2d: Tensor | None) -> Tensor:
    """The target's numbers of the drafter's tokens, from their offsets ``d2t``; ``t2d`` marks them."""
    count, vocab = config.draft_vocab_size, config.vocab_size
    if d2t is None:
        if count != vocab:
            refuse_gaps(name, {"missing_keys": ["d2t"], "unexpected_keys": [], "mismatched_keys": []})
        return torch.arange(vocab)
    if len(d2t) != count:
        refuse_gaps(name, {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": [("d2t", d2t.shape, (count,))]})
    tokens = torch.arange(count) + d2t.long()
    marked = torch.zeros(vocab, dtype=torch.bool)
    marked[tokens[(tokens >= 0) & (tokens < vocab)]] = True
    if int(marked.sum()) != count or (t2d is not None and not torch.equal(t2d.bool(), marked)):
        raise ModelError(
            f"tensors d2t and t2d of {str(name)!r} do not describe {count} of {vocab} tokens: download the checkpoint again"
        )
    return tokens
