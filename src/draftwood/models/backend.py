"""Which library runs a pair of models."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

from draftwood.errors import ConfigError, ModelError
from draftwood.models import Backend, ModelRunner, Weights
from draftwood.models.causal_block import causal_draft
from draftwood.models.openvino_runner import OpenVinoRunner
from draftwood.models.torch_runner import TorchRunner

AUTO: Final[tuple[Backend, ...]] = ("torch",)
"""What ``auto`` tries in this order; ("openvino", "torch") takes OpenVINO wherever it is installed and takes the models."""


class Runners(NamedTuple):
    """A target and its draft, run by the same library."""

    target: ModelRunner
    draft: ModelRunner | None


def make_runners(
    model: Any, draft_model: Any, *, backend: Literal["auto"] | Backend = "auto", weights: Weights = "same"
) -> Runners:
    """Runners of two models by the same library.

    Args:
        model, draft_model: ``transformers`` causal language models; the draft model may be None.
        backend: ``auto`` takes the first one of :data:`AUTO` that can run both models.
        weights: ``int8`` rounds them (OpenVINO only); the rounded target is then the target.

    Raises:
        ConfigError: a backend that is not installed, or does not do what is asked.
        ModelError: a model that cannot score a tree, or that the backend cannot run.
    """
    *first, last = AUTO if backend == "auto" else (backend,)
    for name in first:
        try:
            return _by(name, model, draft_model, weights)
        except (ConfigError, ModelError):
            continue
    return _by(last, model, draft_model, weights)


def _by(backend: Backend, model: Any, draft_model: Any, weights: Weights) -> Runners:
    if backend == "torch":
        if weights != "same":
            raise ConfigError(f"weights {weights!r} are for OpenVINO: add --backend openvino, or leave --weights out")
        draft = None if draft_model is None else causal_draft(TorchRunner(draft_model, drafts=True))
        return Runners(TorchRunner(model), draft)
    converted = None if draft_model is None else causal_draft(OpenVinoRunner(draft_model, weights=weights, drafts=True))
    return Runners(OpenVinoRunner(model, weights=weights), converted)
