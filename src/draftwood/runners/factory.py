"""The runners of a pair of models: the choice of the library, and the kind of the draft."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from draftwood.core.errors import ConfigError, DraftwoodError
from draftwood.core.settings import BackendName, Weights
from draftwood.runners.backends import BACKENDS, Library, causal_only, requested_backend
from draftwood.runners.blocks import is_masked_block
from draftwood.runners.hidden.module import DrafterModule, PublishedDrafter
from draftwood.runners.native.stored import whole
from draftwood.runners.protocols import Runner, SourceRunner, TargetRunner

_LOG = logging.getLogger(__name__)


class Runners(NamedTuple):
    """A target and its draft, run by the same library.

    Attributes:
        fallback: why ``auto`` did not take a library before this one; None if it took the first, or a backend was named.
    """

    target: TargetRunner | SourceRunner
    draft: Runner | None
    fallback: str | None = None


def make_runners(model: Any, draft_model: Any, *, backend: BackendName = "auto", weights: Weights = "same") -> Runners:
    """Runners of two models by the same library.

    Args:
        model: a ``transformers`` causal language model, or a text-to-text model.
        draft_model: another one; or a drafter of a causal model's hidden states, or for a text-to-text model a masked-block
            drafter or a causal model; or None.
        backend: a name of :data:`draftwood.runners.backends.BACKENDS`. ``auto`` chooses the first that is installed, runs
            both models and has enough memory, and gives in ``fallback`` the reasons why those before it do not. The
            variable ``DRAFTWOOD_BACKEND`` overrides it.
        weights: ``int8`` and ``int4`` quantize them; the quantized target is then the target. Native engine only; ``auto``
            chooses it then.

    Raises:
        ConfigError: the backend is not installed, or does not support these options.
        ModelError: a model cannot score a tree, or the backend cannot run it.
        PairingError: the drafter was trained for another target.
    """
    if model.config.is_encoder_decoder and weights != "same":
        raise ConfigError(f"weights {weights!r} are for causal language models only: leave them out")
    chosen = requested_backend(backend)
    if chosen == "auto" and weights != "same":
        chosen = "native"
    if isinstance(draft_model, PublishedDrafter) or is_masked_block(draft_model):
        draft_model.check_target(model)
    return Runners(*_run_by(chosen, model, draft_model, weights=weights))


def _run_by(chosen: BackendName, model: Any, draft_model: Any, **settings: Any) -> tuple[Any, Any, str | None]:
    """The runners by the named library, or by the first that can run the models, and why those before it cannot."""

    def both(library: Library) -> tuple[Any, Any]:
        nonlocal model, draft_model
        if library is not BACKENDS["native"]:
            model, draft_model = whole(model), whole(draft_model)
        if model.config.is_encoder_decoder:
            return library.seq2seq(model), _draft(library, draft_model, settings)
        if isinstance(draft_model, DrafterModule):  # it reads the target's hidden states
            target = library.causal(model, hidden_layers=tuple(draft_model.config.target_layers), **settings)
            return target, library.hidden(draft_model, model, target)
        draft = _draft(library, draft_model, settings)  # first: the smaller model is refused sooner
        return library.causal(model, hidden_layers=(), **settings), draft

    models = [model] if draft_model is None else [model, draft_model]
    able = (one for one in BACKENDS.values() if not model.config.is_encoder_decoder or one.seq2seq is not causal_only)
    *others, last = able if chosen == "auto" else [BACKENDS[chosen]]
    reasons: list[str] = []
    for library in others:
        if (reason := library.why_not(model.device)) is None:
            try:
                if (reason := library.no_room(models)) is None:
                    return *both(library), "; ".join(reasons) or None
            except (DraftwoodError, RuntimeError, MemoryError) as error:
                reason = " ".join(str(error).split()) or type(error).__name__
            _LOG.info("%s does not run the models: %s", library.name, reason)
        reasons.append(f"{library.name} does not run the models ({reason})")
    return *both(last), "; ".join(reasons) or None


def _draft(library: Library, draft_model: Any, settings: dict[str, Any]) -> Runner | None:
    """The runner of any other draft, by its kind; errors begin with "the draft"."""
    if draft_model is None:
        return None
    try:
        if draft_model.config.is_encoder_decoder:
            return library.seq2seq(draft_model, drafts=True)
        return library.causal(draft_model, drafts=True, **settings)
    except DraftwoodError as error:
        raise type(error)(f"the draft: {error}") from error
