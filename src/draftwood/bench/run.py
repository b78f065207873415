"""The run: in every repeat every prompt goes round all settings, in an order that is shuffled anew each time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import sleep
from typing import TypeAlias, final

from draftwood.api import Pair
from draftwood.bench.engines import Engine
from draftwood.bench.measure import Maker, Meters, Sample, measure, our_maker
from draftwood.bench.peers import peer_maker
from draftwood.bench.prompts import Prompt
from draftwood.bench.settings import Setting

_PAUSE = 0.02  # seconds before a text, where several programs take turns: the last one's threads stop to wait for work

Case: TypeAlias = tuple[Setting, float]
"""A setting at a temperature."""


@final
@dataclass(kw_only=True)
class Log:
    """What was measured: per case and repeat one sample for each prompt, in the order of the prompts."""

    cases: list[Case]
    samples: list[list[list[Sample]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.samples = self.samples or [[] for _ in self.cases]

    def level(self) -> None:
        """After an interrupt: drop what not every case has measured, unless that were everything."""
        repeats = max((len(s) for s in self.samples), default=0)
        counts = [min((len(s[r]) if r < len(s) else 0) for s in self.samples) for r in range(repeats)]
        if any(counts):
            self.samples = [[s[r][:count] for r, count in enumerate(counts) if count] for s in self.samples]


def seed_of(base: int, repeat: int, prompt: int) -> int:
    """The seed of a text: the same for every setting, another one in every repeat."""
    return base + 1_000_003 * repeat + prompt


def orders(cases: int, repeats: int, prompts: int, base: int) -> Iterator[tuple[int, int, int]]:
    """All (repeat, prompt, case), cases innermost and shuffled by a fixed seed."""
    for repeat in range(repeats):
        for prompt in range(prompts):
            order = list(range(cases))
            random.Random(f"{base}/{repeat}/{prompt}").shuffle(order)
            yield from ((repeat, prompt, case) for case in order)


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
    """

    pair: Pair
    cases: Sequence[Case]
    prompts: Sequence[Prompt]
    repeats: int
    max_new_tokens: int
    seed: int
    others: Mapping[str, Pair] = field(default_factory=dict)
    engines: Mapping[str, Engine] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Texts to be made, those of the warm-up included."""
        return len(self.cases) * (1 + self.repeats * len(self.prompts))

    def run(self, log: Log, on_step: Callable[[], object], on_repeat: Callable[[], object]) -> None:
        """Fill ``log``; ``on_step`` is called after every text and ``on_repeat`` after every repeat."""
        device = self.pair.target.device
        with Meters().on(self.pair, *self.others.values()) as meters, _quiet_transformers():
            makers = [self._maker(case) for case in self.cases]
            for make in makers:
                measure(make, self.prompts[0].tokens, seed_of(self.seed, 0, 0), meters, device)
                on_step()
            whole = len(self.cases) * len(self.prompts)
            steps = orders(len(self.cases), self.repeats, len(self.prompts), self.seed)
            for done, (repeat, prompt, case) in enumerate(steps, start=1):
                seed = seed_of(self.seed, repeat, prompt)
                if self.others or self.engines:
                    sleep(_PAUSE)
                sample = measure(makers[case], self.prompts[prompt].tokens, seed, meters, device)
                if len(log.samples[case]) <= repeat:
                    log.samples[case].append([])
                log.samples[case][repeat].append(sample)
                on_step()
                if done % whole == 0:
                    on_repeat()

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
