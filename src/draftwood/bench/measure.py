"""One measurement: one setting continues one prompt, timed from outside in the same way on both sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeAlias, final

import torch

from draftwood.api import Pair
from draftwood.bench.settings import Setting
from draftwood.decode import Decoder, Request
from draftwood.methods import build
from draftwood.models import ModelRunner
from draftwood.output import Limits
from draftwood.sampling import Sampling


@final
@dataclass(frozen=True, kw_only=True)
class Text:
    """What was generated, and what only its maker knows.

    Attributes:
        verify_seconds: the seconds that the verifier says it took, 0 where there is none.
        forwards: of the target, where no hook sees them.
    """

    tokens: list[int]
    verify_seconds: float = 0.0
    forwards: int | None = None


Maker: TypeAlias = Callable[[Sequence[int], int], Text]
"""Continues a prompt, given as token ids, with a seed."""


@final
@dataclass(frozen=True, kw_only=True)
class Sample:
    """One text and what it cost: forwards of both models, tokens that these had to read, seconds.

    ``drafted`` counts the drafted tokens that the target read: all that it read except the prompt and, in every later
    forward, the last committed token. Of other programs, which no hook sees, only ``tokens``, ``forwards`` (as they
    tell) and ``seconds`` are known; ``seen`` is false, and the rest 0.
    """

    tokens: list[int]
    forwards: int
    draft_forwards: int
    target_tokens: int
    draft_tokens: int
    drafted: int
    seconds: float
    target_seconds: float
    draft_seconds: float
    verify_seconds: float
    seen: bool = True


@final
@dataclass
class Meter:
    """Counts and times the forwards of a model and of what was made of it, whoever calls them; ``tokens`` are all that they
    were given to read.

    Copies of the model that share its hooks (:mod:`draftwood.models.twin`) are not counted.
    """

    count: int = 0
    tokens: int = 0
    seconds: float = 0.0
    _start: float = 0.0
    _watched: tuple[torch.nn.Module, ...] = ()

    def reset(self) -> None:
        """Start again from zero."""
        self.count, self.tokens, self.seconds = 0, 0, 0.0

    @contextmanager
    def on(self, *models: torch.nn.Module | None) -> Iterator[Meter]:
        """Watch the models; no model is never called, and one that comes twice is watched once."""
        self._watched = tuple({id(model): model for model in models if model is not None}.values())
        hooks = []
        for model in self._watched:
            hooks.append(model.register_forward_pre_hook(self._before, with_kwargs=True))
            hooks.append(model.register_forward_hook(self._after))
        try:
            yield self
        finally:
            for hook in hooks:
                hook.remove()

    def _before(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not any(model is watched for watched in self._watched):
            return
        ids = kwargs.get("input_ids", args[0] if args else None)
        self.tokens += ids.numel() if ids is not None else 0
        self._start = perf_counter()

    def _after(self, model: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not any(model is watched for watched in self._watched):
            return
        self.seconds += perf_counter() - self._start
        self.count += 1


@final
@dataclass(frozen=True, kw_only=True)
class Meters:
    """The meters of target and draft."""

    target: Meter = field(default_factory=Meter)
    draft: Meter = field(default_factory=Meter)

    @contextmanager
    def on(self, *pairs: Pair) -> Iterator[Meters]:
        """Watch the same pair, whoever runs it."""
        targets = [module for pair in pairs for module in _called(pair.target)]
        drafts = [module for pair in pairs for module in _called(pair.draft)]
        with self.target.on(*targets), self.draft.on(*drafts):
            yield self


def _called(runner: ModelRunner | None) -> tuple[torch.nn.Module, ...]:
    """What is called for a model: by transformers, and by its runner."""
    return () if runner is None else (runner.model, runner.network)


def measure(make: Maker, prompt: Sequence[int], seed: int, meters: Meters, device: torch.device) -> Sample:
    """Let ``make`` continue ``prompt``; the clock runs around the whole call."""
    meters.target.reset()
    meters.draft.reset()
    _settle(device)
    start = perf_counter()
    text = make(prompt, seed)
    _settle(device)
    seconds = perf_counter() - start
    if text.forwards is not None:
        return _unseen(text, text.forwards, seconds)
    return Sample(
        tokens=text.tokens,
        forwards=meters.target.count,
        draft_forwards=meters.draft.count,
        target_tokens=meters.target.tokens,
        draft_tokens=meters.draft.tokens,
        drafted=meters.target.tokens - len(prompt) - max(0, meters.target.count - 1),
        seconds=seconds,
        target_seconds=meters.target.seconds,
        draft_seconds=meters.draft.seconds,
        verify_seconds=text.verify_seconds,
    )


def _unseen(text: Text, forwards: int, seconds: float) -> Sample:
    return Sample(
        tokens=text.tokens,
        forwards=forwards,
        draft_forwards=0,
        target_tokens=0,
        draft_tokens=0,
        drafted=0,
        seconds=seconds,
        target_seconds=0.0,
        draft_seconds=0.0,
        verify_seconds=0.0,
        seen=False,
    )


def _settle(device: torch.device) -> None:
    """Wait until an accelerator has done what it was told."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize(device)


def our_maker(setting: Setting, pair: Pair, temperature: float, max_new_tokens: int) -> Maker:
    """Draftwood, from token ids to token ids: ``transformers`` makes no text from them either."""
    sampling = Sampling(temperature=temperature)
    method = pair.method(setting.to_method(), temperature=temperature)
    drafter, verifier = build(method, pair.draft, greedy=sampling.greedy)
    decoder = Decoder(pair.target, drafter, verifier, eos=pair.eos)
    limits = Limits(max_new_tokens=max_new_tokens)

    def make(prompt: Sequence[int], seed: int) -> Text:
        result = decoder.generate([Request(prompt=prompt, seed=seed, limits=limits)], sampling)[0]
        return Text(tokens=result.token_ids, verify_seconds=result.stats.seconds["verify"])

    return make
