"""Which library runs a pair of models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeVar

from draftwood.errors import ConfigError, ModelError
from draftwood.models import Backend, ModelRunner, Runner, Weights
from draftwood.models.causal_block import causal_draft
from draftwood.models.heads import HeadsDrafter
from draftwood.models.heads_runner import HeadsRunner
from draftwood.models.masked_block import MaskedBlockDrafter
from draftwood.models.masked_block_runner import MaskedBlockRunner
from draftwood.models.openvino_network import CPU
from draftwood.models.openvino_runner import OpenVinoRunner
from draftwood.models.seq2seq_paths import PathRunner, seq2seq_runner
from draftwood.models.seq2seq_runner import Seq2SeqRunner
from draftwood.models.torch_runner import TorchRunner

AUTO: Final[tuple[Backend, ...]] = ("torch",)
"""What ``auto`` tries in this order; ("openvino", "torch") takes OpenVINO wherever it is installed and takes the models."""


_Made = TypeVar("_Made")


class Runners(NamedTuple):
    """A target and its draft, run by the same library."""

    target: ModelRunner
    draft: ModelRunner | None


def make_runners(
    model: Any,
    draft_model: Any,
    *,
    backend: Literal["auto"] | Backend = "auto",
    weights: Weights = "same",
    place: str | None = None,
) -> Runners:
    """Runners of two models by the same library.

    Args:
        model, draft_model: ``transformers`` causal language models; the draft model may be None.
        backend: ``auto`` takes the first one of :data:`AUTO` that can run both models.
        weights: ``int8`` rounds them (OpenVINO only); the rounded target is then the target.
        place: OpenVINO's name of the device that computes (OpenVINO only); its CPU by default.

    Raises:
        ConfigError: a backend that is not installed, or does not do what is asked.
        ModelError: a model that cannot score a tree, or that the backend cannot run.
    """
    return _first(backend, lambda name: _by(name, model, draft_model, weights, place))


def runners_like(runner: ModelRunner, model: Any, draft_model: Any) -> Runners:
    """Runners of two models by what runs this one, in the same way; raises what :func:`make_runners` raises."""
    if isinstance(runner, OpenVinoRunner):
        return _by("openvino", model, draft_model, runner.weights, runner.place)
    return _by("torch", model, draft_model, "same", None)


class TranslationRunners(NamedTuple):
    """An encoder-decoder target and its drafter, run by the same library; heads are PyTorch's beside either."""

    target: Seq2SeqRunner | PathRunner
    draft: Runner | None


def make_translation_runners(
    model: Any, draft_model: Any, *, backend: Literal["auto"] | Backend = "auto"
) -> TranslationRunners:
    """Runners of an encoder-decoder model and its drafter by the same library.

    Args:
        model: a ``transformers`` text-to-text model.
        draft_model: a :class:`MaskedBlockDrafter`, a :class:`HeadsDrafter`, a text-to-text or a causal model, or None.
        backend: as for :func:`make_runners`.

    Raises:
        ConfigError: a backend that is not installed, or does not do what is asked.
        ModelError: a model that cannot score a tree, or that the backend cannot run.
        PairingError: a drafter that was trained for another target.
    """
    if isinstance(draft_model, MaskedBlockDrafter | HeadsDrafter):
        draft_model.check_target(model)
    return _first(backend, lambda name: _translation_by(name, model, draft_model))


def _first(backend: Literal["auto"] | Backend, make: Callable[[Backend], _Made]) -> _Made:
    """What the first backend makes that can."""
    *first, last = AUTO if backend == "auto" else (backend,)
    for name in first:
        try:
            return make(name)
        except (ConfigError, ModelError):
            continue
    return make(last)


def _translation_by(backend: Backend, model: Any, draft_model: Any) -> TranslationRunners:
    target = seq2seq_runner(model, engine=backend)
    if draft_model is None:
        return TranslationRunners(target, None)
    if isinstance(draft_model, MaskedBlockDrafter):
        return TranslationRunners(target, MaskedBlockRunner(draft_model, engine=backend))
    if isinstance(draft_model, HeadsDrafter):
        return TranslationRunners(target, HeadsRunner(draft_model, target))
    if draft_model.config.is_encoder_decoder:
        return TranslationRunners(target, seq2seq_runner(draft_model, engine=backend, drafts=True))
    kind = TorchRunner if backend == "torch" else OpenVinoRunner
    return TranslationRunners(target, causal_draft(kind(draft_model, drafts=True)))


def _by(backend: Backend, model: Any, draft_model: Any, weights: Weights, place: str | None) -> Runners:
    if backend == "torch":
        if weights != "same":
            raise ConfigError(f"weights {weights!r} are for OpenVINO: add --backend openvino, or leave --weights out")
        if place is not None:
            raise ConfigError(f"device 'openvino:{place}' is for OpenVINO: add --backend openvino")
        draft = None if draft_model is None else causal_draft(TorchRunner(draft_model, drafts=True))
        return Runners(TorchRunner(model), draft)
    place, converted = place or CPU, None
    if draft_model is not None:
        converted = causal_draft(OpenVinoRunner(draft_model, weights=weights, drafts=True, place=place))
    return Runners(OpenVinoRunner(model, weights=weights, place=place), converted)
