"""The libraries that run models: an entry each, and what ``auto`` asks them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final, cast, final, get_args

import torch

from draftwood.core.draft_kind import CAUSAL, DFLASH, EAGLE3, HIDDEN_BLOCK, MASKED_BLOCK, MTP, SEQ2SEQ, DraftKind
from draftwood.core.errors import ConfigError, ModelError
from draftwood.core.settings import BackendName, Weights, check_weights
from draftwood.hardware.machine import available_memory
from draftwood.native.library import instruction_set, why_missing
from draftwood.runners.hidden.native_passes import NativeBlockPasses, NativeEaglePasses
from draftwood.runners.hidden.runner import Eagle3Runner, HiddenBlockRunner
from draftwood.runners.native.refusals import why_not_files
from draftwood.runners.native.runner import NativeRunner
from draftwood.runners.native.stored import weight_sizes

_LOG = logging.getLogger(__name__)
VARIABLE: Final = "DRAFTWOOD_BACKEND"
_MARGIN = 1.2  # keys, values and what a forward computes come on top of the weights
_UNKNOWN = 1 << 30  # bytes that may be used if the available memory is unknown


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


@final
@dataclass(frozen=True, kw_only=True)
class Library:
    """A library that runs models.

    Attributes:
        name: as its makers write it.
        runners: what makes the runner of each kind. A drafter of hidden states comes with its target and that one's runner,
            any other model with the keyword ``hidden_layers`` (of a causal target) or ``drafts=True``.
        why_not: why ``auto`` does not try the library for models on this device; None if it does.
        why_not_files: why it cannot run models of a type and a number format, as files and options say them; None if it can.
        no_room: why it cannot run these loaded models after all; None if it can.
    """

    name: str
    runners: Mapping[DraftKind, Callable[..., Any]]
    why_not: Callable[[torch.device], str | None]
    why_not_files: Callable[[str | None, torch.dtype | None], str | None] = lambda model_type, dtype: None
    no_room: Callable[[Sequence[Any]], str | None] = lambda models: None

    def maker(self, kind: DraftKind) -> Callable[..., Any]:
        """What makes the runner of a kind; raises a ModelError if it runs no such models."""
        if (found := self.runners.get(kind)) is None:
            other = "native" if self.name == BACKENDS["torch"].name else "torch"
            raise ModelError(f"{self.name} runs no models of kind {kind.name!r}: use --backend {other}")
        return found


def _hidden(blocks: Callable[..., Any], levels: Callable[..., Any], *more: DraftKind) -> dict[DraftKind, Callable[..., Any]]:
    """What makes runners of drafters of hidden states, from what makes their passes: one for a block, or one per level, as
    ``more`` kinds have too."""

    def making(runner: Callable[..., Any], passes: Callable[..., Any]) -> Callable[..., Any]:
        return lambda drafter, target, lender: runner(drafter, passes(drafter, target, lender.network))

    block, level = making(HiddenBlockRunner, blocks), making(Eagle3Runner, levels)
    return {**dict.fromkeys((HIDDEN_BLOCK, DFLASH), block), **dict.fromkeys((EAGLE3, *more), level)}


def _later(module: str, name: str) -> Callable[..., Any]:
    """A class of a module that imports transformers, which is slow, when the first runner is made."""
    return lambda *given, **settings: getattr(import_module(f"draftwood.runners.{module}"), name)(*given, **settings)


def _torch_passes(name: str) -> Callable[..., Any]:
    """What makes passes of this class, which share no network of the target."""
    make = _later("hidden.torch_passes", name)
    return lambda drafter, target, _: make(drafter, target)


BACKENDS: Final[Mapping[str, Library]] = {
    "native": Library(
        name="the native engine",
        runners={
            CAUSAL: lambda *given, **settings: NativeRunner(*given, **settings),
            **_hidden(NativeBlockPasses, NativeEaglePasses, MTP),
        },
        why_not=why_not_native,
        why_not_files=why_not_files,
        no_room=why_no_room,
    ),
    "torch": Library(
        name="PyTorch",
        runners={
            CAUSAL: _later("torch_runner", "TorchRunner"),
            SEQ2SEQ: _later("seq2seq.runner", "Seq2SeqRunner"),
            MASKED_BLOCK: lambda model, **_: _later("blocks.masked_block", "MaskedBlockRunner")(model),
            **_hidden(_torch_passes("TorchBlockPasses"), _torch_passes("TorchEaglePasses")),
        },
        why_not=lambda device: None,
    ),
}
"""By name. ``auto`` takes the first that can run the models. PyTorch is the last resort, whose errors are shown."""


@final
@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """The library that runs a pair, and why: chosen before weights are read.

    Only loaded models show a lack of memory, a class, a shape or a draft without code, and other scores: they lead to
    :meth:`otherwise`.

    Attributes:
        names: of :data:`BACKENDS`: the library, and those that ``auto`` may take in its place.
        passed: each library before it, and why that does not run the models.
        named: what named it; empty if ``auto`` chose it.
        reads_files: models that can be read from their files stay there, for the native engine.
    """

    names: tuple[str, ...]
    passed: tuple[tuple[str, str], ...] = ()
    named: str = ""
    reads_files: bool = False

    @property
    def library(self) -> Library:
        """What it is."""
        return BACKENDS[self.names[0]]

    @property
    def fallback(self) -> str | None:
        """Why no library before it runs the models, in words; None if it is the first, or was named."""
        return "; ".join(f"{BACKENDS[name].name} does not run the models ({why})" for name, why in self.passed) or None

    def otherwise(self, why: str, *, note: bool = False) -> EngineChoice:
        """The next library, as this one does not run the models; with a ``note``, the log says so."""
        if note:
            _LOG.info("%s does not run the models: %s", self.library.name, why)
        return EngineChoice(names=self.names[1:], passed=(*self.passed, (self.names[0], why)))


def choose_engine(
    device: torch.device,
    kind: DraftKind = CAUSAL,
    *,
    backend: BackendName = "auto",
    weights: Weights = "same",
    model_type: str | None = None,
    dtype: torch.dtype | None = None,
) -> EngineChoice:
    """The library for a target of a kind on a device, by what is known before weights are read.

    Args:
        backend: a name of :data:`BACKENDS`. ``auto`` is what the variable ``DRAFTWOOD_BACKEND`` names, else the first that
            runs such models here.
        weights: ``int8`` and ``int4`` are for the native engine only, which ``auto`` then is.
        model_type, dtype: of the target, where they are known.

    Raises:
        ConfigError: the variable names no backend, or these weights are impossible with it or the number format.
    """
    named = f"backend {backend!r} was given"
    if backend == "auto" and (found := os.environ.get(VARIABLE)):
        if found not in get_args(BackendName):
            wanted = ", ".join(get_args(BackendName))
            raise ConfigError(f"{VARIABLE} is {found!r}: set it to one of {wanted}, or unset it")
        backend, named = cast(BackendName, found), f"{VARIABLE} is set"
    if backend == "auto" and weights != "same":
        backend, named = "native", f"weights are {weights!r}"
    if backend == "torch":
        check_weights(weights)
    elif weights != "same" and dtype not in (None, torch.bfloat16):
        kept = str(dtype).removeprefix("torch.")
        raise ConfigError(f"dtype {kept} is impossible with weights {weights!r}: leave one of them out")
    able = (backend,) if backend != "auto" else tuple(name for name, one in BACKENDS.items() if kind in one.runners)
    choice = EngineChoice(names=able, named="" if backend == "auto" else named)
    while True:
        here, files = choice.library.why_not(device), choice.library.why_not_files(model_type, dtype)
        if here is None and files is None:
            return replace(choice, reads_files=choice.names[0] == "native")
        if len(choice.names) == 1:  # its runner refuses the models
            return choice
        choice = choice.otherwise(here or str(files), note=here is None)
