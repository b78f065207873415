"""A short text that only measures what drafting costs on this machine."""

from __future__ import annotations

from contextlib import closing, suppress
from itertools import islice
from typing import Final

from draftwood.core.errors import DraftwoodError
from draftwood.core.limits import Limits
from draftwood.core.methods import METHODS
from draftwood.core.settings import Method
from draftwood.draft.adaptive.trial import TRIAL
from draftwood.engine.decoders import Decoders
from draftwood.engine.requests import Request
from draftwood.sampling.settings import Sampling

_PROMPT: Final = 32  # tokens
_LIMITS: Final = Limits(max_new_tokens=16 * len(TRIAL), ignore_eos=True)  # more than the rounds can write


def measure_costs(decoders: Decoders, method: Method, temperature: float) -> None:
    """Decode the rounds of a trial, unless a method grows no trees of a draft, or knows their costs.

    Args:
        method: a method without ``auto``.
    """
    sampling, spec = Sampling(temperature=temperature), METHODS[method.method]
    if not (spec.grows and spec.needs == "draft") or method.shape or method.nodes:
        return
    controllers = decoders.controllers(method, greedy=sampling.greedy)
    if controllers.timed:
        return
    decoder = decoders.of(method, greedy=sampling.greedy)
    any_text = Request(prompt=[token % decoders.vocab_size for token in range(_PROMPT)], limits=_LIMITS)
    with suppress(DraftwoodError), controllers.trial(), closing(decoder.stream([any_text], sampling)) as rounds:
        for _ in islice(rounds, len(TRIAL)):  # an error, as of a context that is too short, is reported when a text meets it
            pass
