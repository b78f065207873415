"""The run. In every repeat all settings continue a batch, in a new random order, before the next batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import sleep
from typing import Literal, TypeAlias, final

from benchmarks.batches import Batch, batched
from benchmarks.engines import Engine
from benchmarks.measure import Maker, Meter, Meters, Sample, measure, our_maker
from benchmarks.peers import peer_maker
from benchmarks.prompts import Prompt
from benchmarks.settings import Setting
from draftwood.api import Pair

_PAUSE = 0.02  # seconds before a batch of another program, until the last one's threads stop waiting actively for work

Case: TypeAlias = tuple[Setting, float]
"""A setting at a temperature."""


@final
@dataclass(kw_only=True)
class Log:
    """The results: per case and repeat one sample for each batch, in order (:func:`batched`)."""

    cases: list[Case]
    samples: list[list[list[Sample]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.samples = self.samples or [[] for _ in self.cases]

    def level(self) -> None:
        """After an interrupt, drop samples that some case of the same batch size lacks, unless none would be left."""
        for here in by_batch_size(self.cases).values():
            its = [self.samples[case] for case in here]
            repeats = max((len(s) for s in its), default=0)
            counts = [min((len(s[r]) if r < len(s) else 0) for s in its) for r in range(repeats)]
            if any(counts):
                for case in here:
                    found = self.samples[case]
                    self.samples[case] = [found[r][:count] for r, count in enumerate(counts) if count]


def by_batch_size(cases: Sequence[Case]) -> dict[int, list[int]]:
    """Numbers of the cases of each batch size."""
    found: dict[int, list[int]] = {}
    for case, (setting, _) in enumerate(cases):
        found.setdefault(setting.batch, []).append(case)
    return found


def by_prompt(samples: Sequence[Sample], batches: Sequence[Batch]) -> dict[int, list[int]]:
    """The texts of one repeat by the numbers of their prompts; not all of them after an interrupt."""
    turns = zip(samples, batches, strict=False)
    return {prompt: tokens for sample, batch in turns for prompt, tokens in zip(batch, sample.tokens, strict=True)}


def seed_of(base: int, repeat: int, prompt: int) -> int:
    """The seed of a text: the same for every setting, another one in every repeat."""
    return base + 1_000_003 * repeat + prompt


def orders(cases: Sequence[int], turns: int, seed: str) -> Iterator[tuple[int, int]]:
    """All (turn, case), cases innermost and shuffled by a fixed seed."""
    for turn in range(turns):
        order = list(cases)
        random.Random(f"{seed}/{turn}").shuffle(order)
        yield from ((turn, case) for case in order)


@final
@dataclass(frozen=True, kw_only=True)
class Bench:
    """Everything that a run needs.

    Attributes:
        pair: the models; ours and transformers use the same two modules.
        cases: settings at temperatures.
        prompts: continued by every case.
        repeats: how often.
        max_new_tokens: the longest continuation.
        seed: of texts and orders.
        others: the same models, run by other backends, by their names.
        engines: other programs by method.
        hooks: ``counted``: forwards are counted and timed; ``awaited``: each ends when an accelerator has finished it, which
            gives true shares of the time and a slower whole; ``none``: only whole calls are timed.
    """

    pair: Pair
    cases: Sequence[Case]
    prompts: Sequence[Prompt]
    repeats: int
    max_new_tokens: int
    seed: int
    others: Mapping[str, Pair] = field(default_factory=dict)
    engines: Mapping[str, Engine] = field(default_factory=dict)
    hooks: Literal["counted", "awaited", "none"] = "counted"

    @property
    def steps(self) -> int:
        """Batches to be made, those of the warm-up included."""
        sizes = by_batch_size(self.cases)
        return sum(len(here) * (1 + self.repeats * len(batched(self.prompts, size))) for size, here in sizes.items())

    def run(self, log: Log, on_step: Callable[[], object], on_repeat: Callable[[], object]) -> None:
        """Fill ``log``; ``on_step`` is called after every batch and ``on_repeat`` after every repeat."""
        waits = self.hooks == "awaited"
        meters = Meters(target=Meter(waits=waits), draft=Meter(waits=waits))
        watched = [] if self.hooks == "none" else [self.pair, *self.others.values()]
        with meters.on(*watched), _quiet_transformers():
            makers = [self._maker(case) for case in self.cases]
            for (setting, _), make in zip(self.cases, makers, strict=True):
                self._measure(make, batched(self.prompts, setting.batch)[0], 0, meters)
                on_step()
            for repeat in range(self.repeats):
                for case, batch in self._turns(repeat):
                    if self.others or self.engines:
                        sleep(_PAUSE)
                    sample = self._measure(makers[case], batch, repeat, meters)
                    if len(log.samples[case]) <= repeat:
                        log.samples[case].append([])
                    log.samples[case][repeat].append(sample)
                    on_step()
                on_repeat()

    def _turns(self, repeat: int) -> Iterator[tuple[int, Batch]]:
        """Cases and what they go on with, one batch size after another."""
        for size, here in by_batch_size(self.cases).items():
            batches = batched(self.prompts, size)
            yield from ((case, batches[turn]) for turn, case in orders(here, len(batches), f"{self.seed}/{repeat}/{size}"))

    def _measure(self, make: Maker, batch: Batch, repeat: int, meters: Meters) -> Sample:
        seeds = [seed_of(self.seed, repeat, prompt) for prompt in batch]
        return measure(make, [self.prompts[p].tokens for p in batch], seeds, meters, self.pair.target.device)

    def _maker(self, case: Case) -> Maker:
        setting, temperature = case
        if setting.method in self.engines:
            return self.engines[setting.method].maker(setting, temperature, self.max_new_tokens)
        make = peer_maker if setting.is_peer else our_maker
        return make(setting, self.others.get(setting.backend, self.pair), temperature, self.max_new_tokens)


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Its warnings would come once per measured text."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
