"""The libraries that run models: an entry each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, final

import torch

from draftwood.core.errors import ModelError
from draftwood.core.settings import Weights, check_weights
from draftwood.runners.auto import why_no_room, why_not_native
from draftwood.runners.blocks import is_masked_block
from draftwood.runners.hidden.runner import Eagle3Runner, HiddenBlockRunner
from draftwood.runners.native.runner import NativeRunner
from draftwood.runners.protocols import Runner, SourceRunner, TargetRunner
from draftwood.runners.support import model_kind


def causal_only(*_: Any, **__: Any) -> Any:
    """Raise a ModelError: the library runs causal models and nothing else."""
    raise ModelError("this backend runs causal language models only: use --backend torch")


@final
@dataclass(frozen=True, kw_only=True)
class Library:
    """A library that runs models. What it has no runner for is refused.

    Attributes:
        name: as its makers write it.
        causal: makes the runner of a causal model, with the keywords ``weights`` and either ``hidden_layers`` (of a target)
            or ``drafts=True``.
        why_not: why ``auto`` does not try the library for models on this device; None if it does.
        no_room: why it cannot run these loaded models after all; None if it can.
        seq2seq: makes the runner of an encoder-decoder model, with ``drafts=True`` for a draft model, which may be a
            :class:`draftwood.runners.blocks.masked_block.MaskedBlockDrafter`.
        hidden: makes the runner of a drafter of hidden states, from the drafter and its target.
    """

    name: str
    causal: Callable[..., TargetRunner]
    why_not: Callable[[torch.device], str | None]
    no_room: Callable[[Sequence[Any]], str | None] = lambda models: None
    seq2seq: Callable[..., SourceRunner] = causal_only
    hidden: Callable[[Any, Any], Runner] = causal_only


def _hidden(drafter: Any, target: Any, **settings: Any) -> Runner:
    if drafter.config.model_type == "eagle3":
        return Eagle3Runner(drafter, target, **settings)
    return HiddenBlockRunner(drafter, target, **settings)


def _seq2seq(model: Any, *, drafts: bool = False) -> SourceRunner:
    if drafts and is_masked_block(model):
        from draftwood.runners.blocks.masked_block_runner import MaskedBlockRunner  # here and below: it imports transformers

        return MaskedBlockRunner(model)
    from draftwood.runners.seq2seq.runner import Seq2SeqRunner

    return Seq2SeqRunner(model, drafts=drafts)


def _torch(model: Any, *, weights: Weights, **settings: Any) -> TargetRunner:
    from draftwood.runners.parallel import ParallelRunner, is_shared
    from draftwood.runners.torch_runner import TorchRunner

    check_weights(weights)
    return ParallelRunner(model, **settings) if is_shared(model) else TorchRunner(model, **settings)


def _native(model: Any, *, weights: Weights, **settings: Any) -> NativeRunner:
    if weights != "same" and getattr(model, "rounded", "") != weights:
        raise ModelError(
            f"weights {weights!r} are for Llama, Mistral, Qwen2 and Qwen3 models that the native engine reads from their "
            f"files, and model type {model_kind(model)!r} was read otherwise: leave --weights out"
        )
    return NativeRunner(model, **settings)


BACKENDS: Final[Mapping[str, Library]] = {
    "native": Library(
        name="the native engine",
        causal=_native,
        hidden=partial(_hidden, engine="native"),
        why_not=why_not_native,
        no_room=why_no_room,
    ),
    "torch": Library(
        name="PyTorch",
        causal=_torch,
        seq2seq=_seq2seq,
        hidden=_hidden,
        why_not=lambda device: None,
    ),
}
"""By name. ``auto`` takes the first that can run the models. PyTorch is the last resort, whose errors are shown."""
