"""Runners under texts that begin with padding, which a model must not see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.models import BlockRunner, Runner


def unpadded(runner: Runner, padding: Sequence[int]) -> Runner:
    """A runner that never sees the first ``padding`` tokens of each row's text.

    Its ``max_length`` counts the padding of the row that has least of it.
    """
    return _UnpaddedBlocks(runner, padding) if isinstance(runner, BlockRunner) else _Unpadded(runner, padding)


class _Unpadded:
    reads_source = False

    def __init__(self, runner: Runner, padding: Sequence[int]) -> None:
        self._runner = runner
        self._padding = padding
        self.vocab_size = runner.vocab_size
        # No row has less padding, so none is longer than the runner takes as long as its text is no longer than this.
        self.max_length = None if runner.max_length is None else runner.max_length + min(padding, default=0)
        self.device = runner.device
        self.forward_seconds = 0.0

    def start(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        self._runner.start([text[n:] for text, n in zip(texts, self._padding, strict=True)])

    def extend(
        self,
        tokens: Int[Tensor, "row node"],
        depths: Int[Tensor, "row node"],
        ancestors: Bool[Tensor, "row node seen"],
    ) -> Float[Tensor, "row node vocab"]:
        scores = self._runner.extend(tokens, depths, ancestors)
        self.forward_seconds = self._runner.forward_seconds
        return scores

    def commit(self, nodes: Sequence[Sequence[int]], pending: Sequence[Sequence[int]]) -> None:
        self._runner.commit(nodes, pending)

    def select(self, rows: Sequence[int]) -> None:
        self._runner.select(rows)


@final
class _UnpaddedBlocks(_Unpadded):
    def __init__(self, runner: BlockRunner, padding: Sequence[int]) -> None:
        super().__init__(runner, padding)
        self._blocks = runner
        self.block = runner.block

    def ahead(self, root: Int[Tensor, "row"], count: int) -> Float[Tensor, "row count vocab"]:
        scores = self._blocks.ahead(root, count)
        self.forward_seconds = self._blocks.forward_seconds
        return scores
