"""Traces of a call: the facts of the run for :class:`draftwood.trace.record.Recorder`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from draftwood.core.draft_kind import MASKED_BLOCK
from draftwood.core.settings import Method
from draftwood.engine.decode import Decoder
from draftwood.engine.requests import Request
from draftwood.runners.protocols import Runner
from draftwood.sampling.settings import Sampling
from draftwood.trace.record import Recorder
from draftwood.trace.records import Trace
from draftwood.trace.settings import TraceSettings


def recorder(
    decoder: Decoder,
    requests: Sequence[Request],
    sampling: Sampling,
    *,
    method: Method,
    draft: Runner | None,
    kept: TraceSettings,
) -> Recorder:
    """A recorder for the pieces of ``decoder.stream(requests, sampling)``.

    Args:
        method: of the decoder, without ``auto``.
        draft: the draft model, or None.
        kept: what a trace holds.
    """
    verifier = decoder.pipeline.verifier
    mask = int(cast(Any, draft).model.config.mask_token_id) if draft is not None and draft.kind is MASKED_BLOCK else None
    head = Trace(
        target=name_of(decoder.pipeline.target),
        draft=None if draft is None else name_of(draft),
        method=method.method,
        verifier=verifier.name,
        shape=method.shape if method.nodes is None else f"{method.nodes} nodes",
        temperature=float(sampling.temperature),
        seed=0,
        prompt=[],
        source=[],
        mask=mask,
        beta=None if verifier.lossless else method.beta,
        tau=None if verifier.lossless else method.tau,
    )
    heads = [replace(head, seed=one.seed, prompt=list(one.prompt), source=list(one.source)) for one in requests]
    shown = frozenset[int]().union(*(one.shown for one in requests))
    return Recorder(heads, kept, tokenizer=decoder.pipeline.tokenizer, shown=shown)


def name_of(runner: Runner) -> str:
    """A model's name: that of the hub, the last two parts of a folder's path, or the class of a model without a name."""
    model: Any = getattr(runner, "model", None)
    name = str(getattr(model, "name_or_path", "") or getattr(getattr(model, "config", None), "_name_or_path", ""))
    if not name:
        return type(runner if model is None else model).__name__
    return "/".join(Path(name).parts[-2:]) if Path(name).is_absolute() else name
