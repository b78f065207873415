"""The choice of the library that runs a pair of models."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

from draftwood.core.errors import DraftwoodError
from draftwood.core.settings import Backend, BackendName, Weights, check_torch
from draftwood.runners.auto import requested_backend, why_no_room, why_not_openvino
from draftwood.runners.blocks.causal_block import causal_draft
from draftwood.runners.blocks.masked_block import MaskedBlockDrafter
from draftwood.runners.blocks.masked_block_runner import MaskedBlockRunner
from draftwood.runners.hidden.eagle import Eagle3Drafter
from draftwood.runners.hidden.eagle_runner import Eagle3Runner
from draftwood.runners.hidden.model import HiddenBlockDrafter
from draftwood.runners.hidden.published import PublishedDrafter
from draftwood.runners.hidden.runner import HiddenBlockRunner
from draftwood.runners.openvino.network import CPU
from draftwood.runners.openvino.runner import OpenVinoRunner
from draftwood.runners.protocols import ModelRunner, Runner, TargetRunner
from draftwood.runners.seq2seq.runner import Seq2SeqRunner
from draftwood.runners.torch_runner import TorchRunner

_LOG = logging.getLogger(__name__)
_Made = TypeVar("_Made", "Runners", "TranslationRunners")


class Runners(NamedTuple):
    """A target and its draft, run by the same library.

    Attributes:
        fallback: why ``auto`` chose PyTorch; None if it chose OpenVINO, or a backend was named.
    """

    target: TargetRunner
    draft: ModelRunner | None
    fallback: str | None = None


def make_runners(
    model: Any,
    draft_model: Any,
    *,
    backend: BackendName = "auto",
    weights: Weights = "same",
    place: str | None = None,
) -> Runners:
    """Runners of two models by the same library.

    Args:
        model, draft_model: ``transformers`` causal language models; the draft model may be None.
        backend: ``auto`` chooses OpenVINO on a CPU if it is installed, runs both models and has enough memory. Otherwise it
            chooses PyTorch and gives the reason in ``fallback``. The variable ``DRAFTWOOD_BACKEND`` overrides it.
        weights: ``int8`` and ``int4`` quantize them; the quantized target is then the target. OpenVINO only; ``auto``
            chooses it then.
        place: OpenVINO's name of the device, by default its CPU. OpenVINO only; ``auto`` chooses it then.

    Raises:
        ConfigError: the backend is not installed, or does not support these options.
        ModelError: a model cannot score a tree, or the backend cannot run it.
    """
    if requested_backend(backend) == "auto" and (weights != "same" or place is not None):
        backend = "openvino"
    models = [model] if draft_model is None else [model, draft_model]
    return _run_by(backend, models, lambda name: _runners_by(name, model, draft_model, weights, place))


def runners_like(runner: ModelRunner, model: Any, draft_model: Any) -> Runners:
    """Runners of two models with the backend and settings of ``runner``; errors as for :func:`make_runners`."""
    if isinstance(runner, OpenVinoRunner):
        return _runners_by("openvino", model, draft_model, runner.weights, runner.place)
    return _runners_by("torch", model, draft_model, "same", None)


class TranslationRunners(NamedTuple):
    """An encoder-decoder target and its drafter, run by the same library.

    Attributes:
        fallback: as for :class:`Runners`.
    """

    target: Seq2SeqRunner
    draft: Runner | None
    fallback: str | None = None


def make_translation_runners(model: Any, draft_model: Any, *, backend: BackendName = "auto") -> TranslationRunners:
    """Runners of an encoder-decoder model and its drafter by the same library.

    Args:
        model: a ``transformers`` text-to-text model.
        draft_model: a :class:`MaskedBlockDrafter`, a text-to-text or a causal model, or None.
        backend: as for :func:`make_runners`.

    Raises:
        ConfigError, ModelError: as for :func:`make_runners`.
        PairingError: the drafter was trained for another target.
    """
    if isinstance(draft_model, MaskedBlockDrafter):
        draft_model.check_target(model)
    models = [model] if draft_model is None else [model, draft_model]
    return _run_by(backend, models, lambda name: _translation_runners_by(name, model, draft_model))


def _run_by(backend: BackendName, models: Sequence[Any], make: Callable[[Backend], _Made]) -> _Made:
    """The runners of the backend; ``auto`` tries OpenVINO, then PyTorch."""
    chosen = requested_backend(backend)
    if chosen != "auto":
        return make(chosen)
    reason = why_not_openvino(models[0].device)
    if reason is None:
        try:
            reason = why_no_room(models)
            if reason is None:
                return make("openvino")
        except (DraftwoodError, RuntimeError, MemoryError) as error:  # OpenVINO raises RuntimeError
            reason = " ".join(str(error).split()) or type(error).__name__
        _LOG.info("PyTorch runs the models, as OpenVINO does not: %s", reason)
    return make("torch")._replace(fallback=reason)


@contextmanager
def _draft_errors() -> Iterator[None]:
    """Prefix errors with "the draft"."""
    try:
        yield
    except DraftwoodError as error:
        raise type(error)(f"the draft: {error}") from error


def _translation_runners_by(backend: Backend, model: Any, draft_model: Any) -> TranslationRunners:
    target = Seq2SeqRunner(model, engine=backend)
    if draft_model is None:
        return TranslationRunners(target, None)
    with _draft_errors():
        return TranslationRunners(target, _drafter(backend, draft_model))


def _drafter(backend: Backend, draft_model: Any) -> Runner:
    if isinstance(draft_model, MaskedBlockDrafter):
        return MaskedBlockRunner(draft_model, engine=backend)
    if draft_model.config.is_encoder_decoder:
        return Seq2SeqRunner(draft_model, engine=backend, drafts=True)
    kind: Callable[..., ModelRunner] = TorchRunner if backend == "torch" else OpenVinoRunner
    return causal_draft(kind(draft_model, drafts=True))


def _runners_by(backend: Backend, model: Any, draft_model: Any, weights: Weights, place: str | None) -> Runners:
    if backend == "torch":
        check_torch(weights, "" if place is None else f"openvino:{place}")
        return _pair(TorchRunner, "torch", model, draft_model)
    return _pair(partial(OpenVinoRunner, weights=weights, place=place or CPU), "openvino", model, draft_model)


def _pair(kind: Callable[..., TargetRunner], backend: Backend, model: Any, draft_model: Any) -> Runners:
    if isinstance(draft_model, HiddenBlockDrafter | PublishedDrafter):
        return _reading_pair(kind, backend, model, draft_model)
    draft = None
    if draft_model is not None:
        with _draft_errors():
            draft = causal_draft(kind(draft_model, drafts=True))
    return Runners(kind(model), draft)


def _reading_pair(
    kind: Callable[..., TargetRunner], backend: Backend, model: Any, drafter: HiddenBlockDrafter | PublishedDrafter
) -> Runners:
    """Runners of a target and a drafter of its hidden states. EAGLE-3 drafters always run in PyTorch."""
    if isinstance(drafter, PublishedDrafter):
        drafter.check_target(model)
    target = kind(model, hidden_layers=tuple(drafter.config.target_layers))
    if isinstance(drafter, Eagle3Drafter):
        return Runners(target, Eagle3Runner(drafter, model))
    return Runners(target, HiddenBlockRunner(drafter, model, engine=backend))
