"""Runners under texts that begin with padding, which a model must not see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, final

from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.counter_rng import CounterRng
from draftwood.core.rng import RoundRng
from draftwood.core.scores import Scores
from draftwood.runners.protocols import BlockRunner, Runner


def unpadded(runner: Runner, padding: Sequence[int]) -> Unpadded:
    """A runner that never sees the first tokens of each row's text, as many as ``padding`` says in the order of ``add``.

    Its ``max_length`` counts the padding of the row that has least of it.
    """
    return _UnpaddedBlocks(runner, padding) if isinstance(runner, BlockRunner) else Unpadded(runner, padding)


class Unpadded:
    """What :func:`unpadded` returns; the runner below it can be exchanged for another one of the same kind."""

    reads_source = False

    def __init__(self, runner: Runner, padding: Sequence[int]) -> None:
        self.hold(runner, padding)

    def hold(self, runner: Runner, padding: Sequence[int]) -> None:
        """Stand for this runner, from the next :meth:`clear` on."""
        self._runner = runner
        self._padding = list(padding)
        self._coming = self._padding  # of the rows that are not here yet
        self.vocab_size = runner.vocab_size
        # No row has less padding, so none is longer than the runner takes as long as its text is no longer than this.
        self.max_length: int | None = None if runner.max_length is None else runner.max_length + min(padding, default=0)
        self.device = runner.device
        self.forward_seconds = 0.0

    def release(self) -> None:
        """Forget the runner, and with it the model and its memory; nothing works until another one is held."""
        del self._runner

    def clear(self) -> None:
        self._runner.clear()
        self._coming = self._padding

    def add(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        padding, self._coming = self._coming[: len(texts)], self._coming[len(texts) :]
        self._runner.add([text[n:] for text, n in zip(texts, padding, strict=True)])

    def extend(
        self,
        tokens: Int[Tensor, "row node"],
        depths: Int[Tensor, "row node"],
        ancestors: Bool[Tensor, "row node seen"],
    ) -> Scores:
        scores = self._runner.extend(tokens, depths, ancestors)
        self.forward_seconds = self._runner.forward_seconds
        return scores

    def commit(
        self,
        nodes: Sequence[Sequence[int]],
        pending: Sequence[Sequence[int]],
        hidden: Sequence[Float[Tensor, "_token width"]] | None = None,
    ) -> None:
        self._runner.commit(nodes, pending, hidden)

    def drop(self, rows: Sequence[int]) -> None:
        self._runner.drop(rows)


@final
class _UnpaddedBlocks(Unpadded):
    @property
    def block(self) -> int:
        return cast(BlockRunner, self._runner).block

    def score_block(self, root: Int[Tensor, "row"], count: int) -> Float[Tensor, "row count vocab"]:
        scores = cast(BlockRunner, self._runner).score_block(root, count)
        self.forward_seconds = self._runner.forward_seconds
        return scores


@final
class UnpaddedRng:
    """Noise by the position without padding, so that a row's text does not depend on the lengths of its neighbours."""

    def __init__(self, noise: CounterRng, padding: Sequence[int]) -> None:
        self._noise = noise
        self._padding = padding

    def at(self, positions: Sequence[int]) -> RoundRng:
        return self._noise.at([at - n for at, n in zip(positions, self._padding, strict=True)])

    def select(self, rows: Sequence[int]) -> UnpaddedRng:
        return UnpaddedRng(self._noise.select(rows), [self._padding[r] for r in rows])
