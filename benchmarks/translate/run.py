"""The run. In every repeat all systems translate a block of sentences, in a new random order, before the next block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter, sleep
from typing import TypeAlias, final

from benchmarks.run import orders
from benchmarks.translate.systems import Output, System

BLOCK = 32
"""Sentences that a system translates in one turn."""

PAUSE = 0.05
"""Seconds before a block: the last system's threads wait actively for more work for some 10 ms, then they sleep."""

Case: TypeAlias = tuple[System, int]
"""A system at a batch size."""

Batch: TypeAlias = list[int]
"""Numbers of the sentences that are translated at once."""


@final
@dataclass(frozen=True, kw_only=True)
class Sample:
    """One batch and the seconds of the whole call, from token ids to token ids."""

    output: Output
    seconds: float


@final
@dataclass(kw_only=True)
class Log:
    """The results: per case and complete repeat one sample for each batch, in order."""

    cases: list[Case]
    samples: list[list[list[Sample]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.samples = self.samples or [[] for _ in self.cases]

    @property
    def repeats(self) -> int:
        """The number of complete repeats."""
        return min(map(len, self.samples))


def batched(order: Sequence[int], size: int) -> list[Batch]:
    """Batches of ``size`` sentences, in order; the last one may be smaller."""
    return [list(order[at : at + size]) for at in range(0, len(order), size)]


@final
@dataclass(frozen=True, kw_only=True)
class Bench:
    """Everything that a run needs.

    Attributes:
        cases: systems at batch sizes.
        sources: token ids of the sentences.
        batches: per batch size all sentences, each once.
        repeats: how often.
        seed: of the orders.
    """

    cases: Sequence[Case]
    sources: Sequence[Sequence[int]]
    batches: dict[int, list[Batch]]
    repeats: int
    seed: int

    @property
    def steps(self) -> int:
        """Turns of a system, those of the warm-up included."""
        turns = sum(len(self._blocks(size)) for _, size in self.cases)
        return len(self.cases) + self.repeats * turns

    def run(self, log: Log, on_step: Callable[[], object], on_repeat: Callable[[], object]) -> None:
        """Fill ``log``; ``on_step`` is called after every turn and ``on_repeat`` after every repeat."""
        for system, size in self.cases:
            self._turn(system, self._blocks(size)[0])
            on_step()
        for repeat in range(self.repeats):
            found: list[list[Sample]] = [[] for _ in self.cases]
            for case, block in self._turns(repeat):
                found[case] += self._turn(self.cases[case][0], block)
                on_step()
            for samples, new in zip(log.samples, found, strict=True):
                samples.append(new)
            on_repeat()

    def _turns(self, repeat: int) -> Iterator[tuple[int, list[Batch]]]:
        """Cases and blocks, in order for every case; the cases of one batch size follow one another in shuffled order."""
        for size in self.batches:
            here, blocks = [case for case, (_, its) in enumerate(self.cases) if its == size], self._blocks(size)
            yield from ((case, blocks[turn]) for turn, case in orders(here, len(blocks), f"{self.seed}/{repeat}/{size}"))

    def _blocks(self, size: int) -> list[list[Batch]]:
        step = max(1, BLOCK // size)
        return [self.batches[size][at : at + step] for at in range(0, len(self.batches[size]), step)]

    def _turn(self, system: System, block: Sequence[Batch]) -> list[Sample]:
        sleep(PAUSE)
        return [self._timed(system, [self.sources[sentence] for sentence in batch]) for batch in block]

    @staticmethod
    def _timed(system: System, sources: list[Sequence[int]]) -> Sample:
        start = perf_counter()
        output = system.translate(sources)
        seconds = perf_counter() - start
        return Sample(output=output, seconds=seconds if output.elapsed is None else output.elapsed)
