"""The runners of a pair of models, by the library that was chosen or the next one."""

from __future__ import annotations

from typing import Any, NamedTuple

from draftwood.core.draft_kind import DFLASH, EAGLE3, MASKED_BLOCK, DraftKind, draft_kind
from draftwood.core.errors import DraftwoodError, PairingError
from draftwood.core.settings import BackendName
from draftwood.runners.backends import EngineChoice, choose_engine
from draftwood.runners.intersection import IntersectionRunner
from draftwood.runners.native.stored import whole
from draftwood.runners.protocols import Runner, SourceRunner, TargetRunner
from draftwood.runners.shared_tokens import SharedTokens


class Runners(NamedTuple):
    """A target and its draft, run by the same library."""

    target: TargetRunner | SourceRunner
    draft: Runner | None
    engine: EngineChoice


def make_runners(model: Any, draft_model: Any, *, backend: BackendName = "auto") -> Runners:
    """Runners of two models in memory by the same library; arguments and errors as for :func:`runners_by`, and for
    :func:`draftwood.runners.backends.choose_engine`, which chooses it."""
    return runners_by(choose_engine(model.device, draft_kind(model), backend=backend), model, draft_model)


def runners_by(engine: EngineChoice, model: Any, draft_model: Any, shared: SharedTokens | None = None) -> Runners:
    """Runners of two models by a library, or where that turns out not to run them by the next one.

    Args:
        model: a ``transformers`` causal language model, or a text-to-text model.
        draft_model: another one; or a drafter of a causal model's hidden states, or for a text-to-text model a masked-block
            drafter or a causal model; or None.
        shared: the tokens of both, where a draft model has another tokenizer.

    Raises:
        ConfigError: the backend is not installed, or does not support these options.
        ModelError: a model cannot score a tree, or the backend cannot run it.
        PairingError: the drafter was trained for another target, or says too little in shared tokens.
    """
    kinds = draft_kind(model), None if draft_model is None else draft_kind(draft_model)
    if kinds[1] in (DFLASH, EAGLE3, MASKED_BLOCK):
        draft_model.check_target(model)
    runners = _by_first(engine, model, draft_model, kinds)
    if shared is None:
        return runners
    return runners._replace(draft=IntersectionRunner(runners.draft, shared, runners.target.vocab_size))


def _by_first(engine: EngineChoice, model: Any, draft_model: Any, kinds: tuple[DraftKind, DraftKind | None]) -> Runners:
    """The runners by the first library that runs both models."""
    models = [model] if draft_model is None else [model, draft_model]
    while len(engine.names) > 1:
        try:
            if (why := engine.library.no_room(models)) is None:
                return Runners(*_both(engine, model, draft_model, kinds), engine)
        except (DraftwoodError, RuntimeError, MemoryError) as error:
            why = " ".join(str(error).split()) or type(error).__name__
        engine = engine.otherwise(why, note=True)
    return Runners(*_both(engine, model, draft_model, kinds), engine)


def _both(engine: EngineChoice, model: Any, draft_model: Any, kinds: tuple[DraftKind, DraftKind | None]) -> tuple[Any, Any]:
    """The runners of both models by a library; errors of a draft model that runs by itself begin with "the draft"."""
    (own, kind), library = kinds, engine.library
    make = library.maker(own)
    if engine.names[0] != "native":
        model, draft_model = whole(model), whole(draft_model)
    if kind is None:
        return make(model), None
    if kind.reads_hidden and own.reads_source:
        raise PairingError(
            f"a draft of kind {kind.name!r} reads a causal model, and the target has an encoder: leave it out"
        )
    if kind.reads_hidden:
        target = make(model, hidden_layers=tuple(draft_model.config.target_layers))
        return target, library.maker(kind)(draft_model, model, target)
    try:  # first: the smaller model is refused sooner
        draft = library.maker(kind)(draft_model, drafts=True)
    except DraftwoodError as error:
        raise type(error)(f"the draft: {error}") from error
    return make(model), draft
