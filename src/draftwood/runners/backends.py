"""The libraries that run models: an entry each, and what ``auto`` asks them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast, final, get_args

import torch

from draftwood.core.errors import ConfigError, ModelError
from draftwood.core.settings import Backend, BackendName, Weights, check_weights
from draftwood.hardware.machine import available_memory
from draftwood.native.library import instruction_set, why_missing
from draftwood.runners.blocks import is_masked_block
from draftwood.runners.hidden.module import BlockDrafter
from draftwood.runners.hidden.runner import Eagle3Runner, HiddenBlockRunner
from draftwood.runners.native.runner import NativeRunner
from draftwood.runners.native.stored import weight_sizes
from draftwood.runners.protocols import Runner, SourceRunner, TargetRunner
from draftwood.runners.support import model_kind

VARIABLE: Final = "DRAFTWOOD_BACKEND"
_MARGIN = 1.2  # keys, values and what a forward computes come on top of the weights
_UNKNOWN = 1 << 30  # bytes that may be used if the available memory is unknown


def requested_backend(backend: BackendName) -> BackendName:
    """The backend; for ``auto`` the one that the environment variable ``DRAFTWOOD_BACKEND`` names, if set.

    Raises:
        ConfigError: the variable names no backend.
    """
    if backend != "auto" or not (found := os.environ.get(VARIABLE)):
        return backend
    if found in get_args(BackendName):
        return cast(BackendName, found)
    raise ConfigError(f"{VARIABLE} is {found!r}: set it to one of {', '.join(get_args(BackendName))}, or unset it")


def why_not_native(device: torch.device) -> str | None:
    """Why ``auto`` does not try the native engine for any models on this device; None if it does.

    Raises:
        ConfigError: ``DRAFTWOOD_ISA`` names an instruction set that this processor lacks.
    """
    if device.type != "cpu":
        return f"the models are on {device}"
    if (reason := why_missing()) is None:
        instruction_set()
    return reason


def why_no_room(models: Sequence[Any]) -> str | None:
    """Why memory does not suffice to prepare these loaded models; None if it does.

    The prepared weights are a copy in the models' number format.
    """
    room = available_memory()
    needed = int(_MARGIN * sum(size for model in models for _, size in weight_sizes(model)))
    if needed <= (_UNKNOWN if room is None else room):
        return None
    found = "the available memory is unknown" if room is None else f"{room / 1e9:.1f} GB are available"
    return f"its copy of the models would take about {needed / 1e9:.1f} GB of memory, and {found}"


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
        hidden: makes the runner of a drafter of hidden states, from the drafter, its target and the target's runner.
    """

    name: str
    causal: Callable[..., TargetRunner]
    why_not: Callable[[torch.device], str | None]
    no_room: Callable[[Sequence[Any]], str | None] = lambda models: None
    seq2seq: Callable[..., SourceRunner] = causal_only
    hidden: Callable[[Any, Any, Any], Runner] = causal_only


def _hidden(drafter: Any, target: Any, runner: TargetRunner, *, engine: Backend = "torch") -> Runner:
    make = HiddenBlockRunner if isinstance(drafter, BlockDrafter) else Eagle3Runner
    return make(drafter, target, engine=engine, lender=runner.network.engine if isinstance(runner, NativeRunner) else None)


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
            f"weights {weights!r} are for models that the native engine reads from their files, and model type "
            f"{model_kind(model)!r} was read otherwise: leave --weights out"
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
    "torch": Library(name="PyTorch", causal=_torch, seq2seq=_seq2seq, hidden=_hidden, why_not=lambda device: None),
}
"""By name. ``auto`` takes the first that can run the models. PyTorch is the last resort, whose errors are shown."""
