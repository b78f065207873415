"""Runners of texts with padding on the left, which the model must not see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from draftwood.core.draft_kind import CAUSAL
from draftwood.core.rng import RoundRng
from draftwood.core.scores import Scores
from draftwood.runners.protocols import Hidden, PerNode, ReadsAtOnce, Runner, Seen
from draftwood.sampling.counter_rng import CounterRng
from draftwood.sampling.rows import Row


@final
class Unpadded(ReadsAtOnce):
    """A runner that skips the first ``padding[number]`` tokens of the row of this number.

    Its ``max_length`` includes the smallest padding of a row. Its inner runner can be replaced by another one of the same
    kind.
    """

    kind = CAUSAL
    pads = True

    def __init__(self, runner: Runner, padding: Sequence[int]) -> None:
        self.hold(runner, padding)

    def hold(self, runner: Runner, padding: Sequence[int]) -> None:
        """Use this runner, from the next :meth:`clear` on."""
        self._runner = runner
        self._padding = list(padding)
        self._rows: list[tuple[Row, Row]] = []  # each as given, and as the runner knows it
        self.vocab_size = runner.vocab_size
        # No row has less padding, so a text within this length fits the runner.
        self.max_length: int | None = None if runner.max_length is None else runner.max_length + min(padding, default=0)
        self.device = runner.device
        self.forward_seconds = 0.0

    def release(self) -> None:
        """Release the runner, its model and its cache; :meth:`hold` must come next."""
        del self._runner

    def clear(self) -> None:
        self._runner.clear()
        self._rows = []

    def set_rows(self, rows: Sequence[Row]) -> None:
        known = dict(self._rows)
        self._rows = [(row, known.get(row) or Row(tokens=[])) for row in rows]
        self._read_texts()
        self._runner.set_rows([own for _, own in self._rows])

    def _read_texts(self) -> None:
        for row, own in self._rows:
            own.tokens = row.tokens[self._padding[row.number] :]

    def extend(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Scores:
        scores = self._runner.extend(tokens, depths, ancestors)
        self.forward_seconds = self._runner.forward_seconds
        return scores

    def commit(self, nodes: Sequence[Sequence[int]], hidden: Sequence[Hidden] | None = None) -> None:
        self._read_texts()
        self._runner.commit(nodes, hidden)


@final
class UnpaddedRng:
    """Noise by the position without padding: a row's text does not depend on the lengths of other rows."""

    def __init__(self, noise: CounterRng, padding: Sequence[int]) -> None:
        self._noise = noise
        self._padding = padding

    def at(self, positions: Sequence[int]) -> RoundRng:
        return self._noise.at([at - n for at, n in zip(positions, self._padding, strict=True)])

    def select(self, rows: Sequence[int]) -> UnpaddedRng:
        return UnpaddedRng(self._noise.select(rows), [self._padding[r] for r in rows])
