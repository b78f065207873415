"""Which library runs a pair of models."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

from draftwood.core.errors import ConfigError, DraftwoodError
from draftwood.core.settings import Backend, BackendName, Weights
from draftwood.runners.auto import wanted, why_no_room, why_not_openvino
from draftwood.runners.blocks.causal_block import causal_draft
from draftwood.runners.blocks.heads import HeadsDrafter
from draftwood.runners.blocks.heads_runner import HeadsRunner
from draftwood.runners.blocks.masked_block import MaskedBlockDrafter
from draftwood.runners.blocks.masked_block_runner import MaskedBlockRunner
from draftwood.runners.openvino.burst_runner import with_bursts
from draftwood.runners.openvino.network import CPU
from draftwood.runners.openvino.runner import OpenVinoRunner
from draftwood.runners.protocols import ModelRunner, Runner
from draftwood.runners.seq2seq.paths import PathRunner, seq2seq_runner
from draftwood.runners.seq2seq.runner import Seq2SeqRunner
from draftwood.runners.torch_runner import TorchRunner

_LOG = logging.getLogger(__name__)
_Made = TypeVar("_Made", "Runners", "TranslationRunners")


class Runners(NamedTuple):
    """A target and its draft, run by the same library.

    Attributes:
        fallback: why ``auto`` is PyTorch; None where it is OpenVINO, or a backend was named.
    """

    target: ModelRunner
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
        backend: ``auto`` is OpenVINO on a CPU where it is installed, runs both models and has the memory for it; else
            PyTorch, with the reason in ``fallback``. The environment variable ``DRAFTWOOD_BACKEND`` may name what it is.
        weights: ``int8`` rounds them; the rounded target is then the target. OpenVINO only, which ``auto`` is then.
        place: OpenVINO's name of the device that computes; its CPU by default. OpenVINO only, as above.

    Raises:
        ConfigError: a backend that is not installed, or does not do what the options say.
        ModelError: a model that cannot score a tree, or that the backend cannot run.
    """
    if wanted(backend) == "auto" and (weights != "same" or place is not None):
        backend = "openvino"
    models = [model] if draft_model is None else [model, draft_model]
    return _made(backend, models, lambda name: _by(name, model, draft_model, weights, place))


def runners_like(runner: ModelRunner, model: Any, draft_model: Any) -> Runners:
    """Runners of two models by what runs this one, in the same way; raises what :func:`make_runners` raises."""
    if isinstance(runner, OpenVinoRunner):
        return _by("openvino", model, draft_model, runner.weights, runner.place)
    return _by("torch", model, draft_model, "same", None)


class TranslationRunners(NamedTuple):
    """An encoder-decoder target and its drafter, run by the same library; heads run in PyTorch with either.

    Attributes:
        fallback: as for :class:`Runners`.
    """

    target: Seq2SeqRunner | PathRunner
    draft: Runner | None
    fallback: str | None = None


def make_translation_runners(model: Any, draft_model: Any, *, backend: BackendName = "auto") -> TranslationRunners:
    """Runners of an encoder-decoder model and its drafter by the same library.

    Args:
        model: a ``transformers`` text-to-text model.
        draft_model: a :class:`MaskedBlockDrafter`, a :class:`HeadsDrafter`, a text-to-text or a causal model, or None.
        backend: as for :func:`make_runners`.

    Raises:
        ConfigError: a backend that is not installed, or does not do what the options say.
        ModelError: a model that cannot score a tree, or that the backend cannot run.
        PairingError: a drafter that was trained for another target.
    """
    if isinstance(draft_model, MaskedBlockDrafter | HeadsDrafter):
        draft_model.check_target(model)
    converted = [model] if draft_model is None or isinstance(draft_model, HeadsDrafter) else [model, draft_model]
    return _made(backend, converted, lambda name: _translation_by(name, model, draft_model))


def _made(backend: BackendName, models: Sequence[Any], make: Callable[[Backend], _Made]) -> _Made:
    """What the backend makes, or for ``auto`` OpenVINO if it can, else PyTorch."""
    chosen = wanted(backend)
    if chosen != "auto":
        return make(chosen)
    reason = why_not_openvino(models[0].device)
    if reason is None:
        try:
            reason = why_no_room(models)
            if reason is None:
                return make("openvino")
        except (DraftwoodError, RuntimeError, MemoryError) as error:  # the middle one is OpenVINO's own
            reason = " ".join(str(error).split()) or type(error).__name__
        _LOG.info("PyTorch runs the models, as OpenVINO does not: %s", reason)
    return make("torch")._replace(fallback=reason)


@contextmanager
def _of_the_draft() -> Iterator[None]:
    """Errors say that they are about the draft."""
    try:
        yield
    except DraftwoodError as error:
        raise type(error)(f"the draft: {error}") from error


def _translation_by(backend: Backend, model: Any, draft_model: Any) -> TranslationRunners:
    target = seq2seq_runner(model, engine=backend, hidden=isinstance(draft_model, HeadsDrafter))
    if draft_model is None:
        return TranslationRunners(target, None)
    with _of_the_draft():
        return TranslationRunners(target, _drafter(backend, draft_model, model))


def _drafter(backend: Backend, draft_model: Any, model: Any) -> Runner:
    if isinstance(draft_model, MaskedBlockDrafter):
        return MaskedBlockRunner(draft_model, engine=backend)
    if isinstance(draft_model, HeadsDrafter):
        return HeadsRunner(draft_model, model)
    if draft_model.config.is_encoder_decoder:
        return seq2seq_runner(draft_model, engine=backend, drafts=True)
    kind: Callable[..., ModelRunner] = TorchRunner if backend == "torch" else OpenVinoRunner
    return causal_draft(kind(draft_model, drafts=True))


def _by(backend: Backend, model: Any, draft_model: Any, weights: Weights, place: str | None) -> Runners:
    if backend == "torch":
        if weights != "same":
            raise ConfigError(f"weights {weights!r} are for OpenVINO: add --backend openvino, or leave --weights out")
        if place is not None:
            raise ConfigError(f"device 'openvino:{place}' is for OpenVINO: add --backend openvino")
        return _pair(TorchRunner, model, draft_model)
    return _pair(partial(OpenVinoRunner, weights=weights, place=place or CPU), model, draft_model)


def _pair(kind: Callable[..., ModelRunner], model: Any, draft_model: Any) -> Runners:
    draft = None
    if draft_model is not None:
        with _of_the_draft():
            draft = with_bursts(causal_draft(kind(draft_model, drafts=True)))
    return Runners(kind(model), draft)
