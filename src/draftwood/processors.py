"""Logits processors that a tree may ask: functions of one row's text and scores, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from draftwood.errors import ConfigError


@final
@dataclass(frozen=True)
class ByRow:
    """A logits processor that differs from request to request: ``rows[i]`` answers for request ``i``."""

    rows: Sequence[Any]


@final
@dataclass(frozen=True)
class ByPrompt:
    """A logits processor that counts from the end of the prompt: ``behind(n)`` answers behind a prompt of ``n`` tokens."""

    behind: Callable[[int], Any]


def asked_for(processor: Any, request: int, prompt_length: int) -> Any:
    """The processor that answers for a request with a prompt of so many tokens."""
    if isinstance(processor, ByRow):
        return processor.rows[request]
    return processor.behind(prompt_length) if isinstance(processor, ByPrompt) else processor


def check_processors(processors: Sequence[Any] | None, vocab: int = 64) -> None:
    """:func:`refuse_stateful` for each of them, those of single rows among them."""
    for processor in processors or ():
        for one in processor.rows if isinstance(processor, ByRow) else [asked_for(processor, 0, 1)]:
            refuse_stateful(one, vocab)


_KEEPS_STATE = "keeps state between calls; a draft tree asks about texts that are never written, so its state would go wrong"
_ROW_BOUND = "is bound to the rows of one batch, but here every row of its input is a node of a draft tree"
_KNOWN = {
    "SynthIDTextWatermarkLogitsProcessor": _KEEPS_STATE,
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": _KEEPS_STATE,
    "EncoderRepetitionPenaltyLogitsProcessor": _ROW_BOUND,
    "EncoderNoRepeatNGramLogitsProcessor": _ROW_BOUND,
}


def refuse_stateful(processor: Any, vocab: int = 64) -> None:
    """Refuse a logits processor that is not a function of each row's ``input_ids`` and ``scores`` alone.

    Raises:
        ConfigError: the processor keeps state between calls, or its answer hangs on the rows beside; its class is named.
    """
    name = type(processor).__name__
    trouble = _KNOWN.get(name) or _trouble(processor, vocab)
    if trouble:
        raise ConfigError(
            f"logits processor {name} {trouble}. Remove it, or rewrite it as a function of one row's input_ids and scores"
        )


def _trouble(processor: Any, vocab: int) -> str | None:
    """Ask a copy the same question before and after others, alone and in company: answers and attributes must not change."""
    first, second, both = (torch.tensor(ids) for ids in ([[1, 2, 3]], [[3, 2, 1, 3, 2]], [[1, 2, 3], [2, 1, 3]]))
    scores = torch.linspace(-2.0, 2.0, vocab).unsqueeze(0)
    try:
        probe = copy.deepcopy(processor)
        before, state = probe(first, scores.clone()), _snapshot(probe)
        probe(second, scores.clone())
        moved = state != _snapshot(probe)
        after = probe(first, scores.clone())
    except Exception:
        return None  # it wants other scores or another device: it cannot be asked, and a wrong use fails at the first call
    if moved or not torch.equal(before, after) or state != _snapshot(probe):
        return _KEEPS_STATE
    try:
        alone = torch.cat([probe(both[:1], scores.clone()), probe(both[1:], scores.clone())])
        together = probe(both, scores.repeat(2, 1))
    except Exception:
        return _ROW_BOUND
    return None if alone.shape == together.shape and torch.allclose(alone, together, equal_nan=True) else _ROW_BOUND


def _snapshot(thing: Any, depth: int = 4) -> Any:
    """What can be seen of an object's state, in comparable form."""
    if isinstance(thing, Tensor):
        return hash(thing.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    if depth == 0:
        return repr(thing)
    if isinstance(thing, Mapping):
        return {repr(key): _snapshot(value, depth - 1) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [_snapshot(value, depth - 1) for value in thing]
    if hasattr(thing, "__dict__") and not isinstance(thing, type | torch.nn.Module):
        return _snapshot(vars(thing), depth - 1)
    return repr(thing)
