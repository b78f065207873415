"""One measurement: one setting continues the prompts of a batch, timed from outside in the same way on both sides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeAlias, final

import torch

from benchmarks.settings import Setting
from draftwood.api import Pair
from draftwood.core.limits import Limits
from draftwood.engine.decoders import Decoders
from draftwood.engine.requests import Request
from draftwood.runners.native.stored import whole
from draftwood.sampling.settings import Sampling


def closed(row: Sequence[int], eos: Sequence[int]) -> list[int]:
    """A text up to its first end of text, inclusive; the rest is padding."""
    ends = (at for at, token in enumerate(row) if token in eos)
    return list(row[: next(ends, len(row)) + 1])


@final
@dataclass(frozen=True, kw_only=True)
class Texts:
    """Generated texts, and figures that only their maker knows.

    Attributes:
        tokens: per row, new token ids.
        verify_seconds: the seconds that the verifier says it took, 0 where there is none.
        forwards: of the target, where no hook sees them, or hooks also see those that only read a part of a long prompt.
        row_forwards: the same, each counted once for every text that it continues; 0 if unknown.
        drafted: drafted tokens that the target read, where hooks would count padding too.
        seen: hooks see what was done.
    """

    tokens: list[list[int]]
    verify_seconds: float = 0.0
    forwards: int | None = None
    row_forwards: int | None = None
    drafted: int | None = None
    seen: bool = True


Maker: TypeAlias = Callable[[Sequence[Sequence[int]], Sequence[int]], Texts]
"""Continues the prompts of a batch, given as token ids, with a seed for each."""


@final
@dataclass(frozen=True, kw_only=True)
class Sample:
    """The texts of one batch and what they cost: forwards of both models, tokens that these had to read, seconds.

    ``tokens`` are those of each row; ``row_forwards`` counts a forward of the target once for each of its rows. ``drafted``
    counts the drafted tokens that the target read. Where this is unknown, it counts all tokens read, except the prompts and
    each row's last committed token in every later forward. No hook sees other programs: only ``tokens``, ``seconds`` and
    their own counts of ``forwards`` and ``row_forwards`` are known, ``seen`` is false, and the rest 0.
    """

    tokens: list[list[int]]
    forwards: int
    row_forwards: int
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
    """Counts and times the forwards of a model, whatever calls them; ``tokens`` are all that they read, and ``rows`` the
    texts of each forward. With ``waits`` each forward ends when an accelerator has finished it.
    """

    count: int = 0
    tokens: int = 0
    rows: int = 0
    seconds: float = 0.0
    waits: bool = False
    _start: float = 0.0
    _watched: tuple[torch.nn.Module, ...] = ()

    def reset(self) -> None:
        """Reset all counts."""
        self.count, self.tokens, self.rows, self.seconds = 0, 0, 0, 0.0

    @property
    def watching(self) -> bool:
        """Whether a model is watched."""
        return bool(self._watched)

    @contextmanager
    def on(self, *models: torch.nn.Module) -> Iterator[Meter]:
        """Watch the models, each once."""
        self._watched = tuple({id(model): model for model in models}.values())
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
        ids = kwargs.get("input_ids", args[0] if args else None)
        self.tokens += math.prod(ids.shape) if ids is not None else 0
        self.rows += len(ids) if ids is not None else 0
        self._wait(model)
        self._start = perf_counter()

    def _after(self, model: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._wait(model)
        self.seconds += perf_counter() - self._start
        self.count += 1

    def _wait(self, model: torch.nn.Module) -> None:
        if self.waits:
            settle(next(model.parameters()).device)


@final
@dataclass(frozen=True, kw_only=True)
class Meters:
    """The meters of target and draft; without hooks (:meth:`on`) nothing is counted."""

    target: Meter = field(default_factory=Meter)
    draft: Meter = field(default_factory=Meter)

    @contextmanager
    def on(self, *pairs: Pair) -> Iterator[Meters]:
        """Watch the same pair under all backends."""
        targets = [module for pair in pairs for module in _called(pair.target)]
        drafts = [module for pair in pairs for module in _called(pair.draft)]
        with self.target.on(*targets), self.draft.on(*drafts):
            yield self


def _called(runner: Any) -> tuple[torch.nn.Module, ...]:
    """The modules that transformers and the runner call for a model."""
    if runner is None:
        return ()
    return (whole(runner.model), runner.network)


def measure(
    make: Maker, prompts: Sequence[Sequence[int]], seeds: Sequence[int], meters: Meters, device: torch.device
) -> Sample:
    """Let ``make`` continue ``prompts``; the clock runs around the whole call."""
    meters.target.reset()
    meters.draft.reset()
    settle(device)
    start = perf_counter()
    texts = make(prompts, seeds)
    settle(device)
    seconds = perf_counter() - start
    again = max(0, meters.target.rows - len(prompts))  # last committed tokens that later forwards read
    drafted = meters.target.tokens - len(prompts) * max(map(len, prompts)) - again
    return Sample(
        tokens=texts.tokens,
        forwards=meters.target.count if texts.forwards is None else texts.forwards,
        row_forwards=meters.target.rows if texts.row_forwards is None else texts.row_forwards,
        draft_forwards=meters.draft.count,
        target_tokens=meters.target.tokens,
        draft_tokens=meters.draft.tokens,
        drafted=drafted if texts.drafted is None else texts.drafted,
        seconds=seconds,
        target_seconds=meters.target.seconds,
        draft_seconds=meters.draft.seconds,
        verify_seconds=texts.verify_seconds,
        seen=texts.seen and meters.target.watching,
    )


def settle(device: torch.device) -> None:
    """Wait until an accelerator has finished its work."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize(device)


def our_maker(setting: Setting, pair: Pair, temperature: float, max_new_tokens: int) -> Maker:
    """Draftwood, from token ids to token ids: ``transformers`` makes no text from them either."""
    sampling = Sampling(temperature=temperature)
    method = pair.method(setting.to_method(), temperature=temperature)
    decoders = Decoders(pair.target, pair.draft, tokenizer=None, eos=pair.eos)
    decoders.measure_costs(method, temperature)  # as load does
    decoder = decoders.of(method, greedy=sampling.greedy)
    limits = Limits(max_new_tokens=max_new_tokens)

    def make(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> Texts:
        rows = [Request(prompt=prompt, seed=seed, limits=limits) for prompt, seed in zip(prompts, seeds, strict=True)]
        results = decoder.generate(rows, sampling)
        stats = [result.stats for result in results]
        return Texts(
            tokens=[result.token_ids for result in results],
            verify_seconds=sum(one.seconds["verify"] for one in stats),
            forwards=max(one.rounds for one in stats),
            row_forwards=sum(one.rounds for one in stats),
            drafted=sum(one.drafted for one in stats),
        )

    return make
