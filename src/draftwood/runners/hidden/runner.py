"""The runners of drafters of hidden states: one pass per round for blocks, one per level for EAGLE-3 and MTP heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.runners.hidden.base import HiddenRunner
from draftwood.runners.hidden.native_passes import NativeBlockPasses, NativeEaglePasses
from draftwood.runners.protocols import Hidden, PerNode, Seen


@final
class HiddenBlockRunner(HiddenRunner):
    """The runner of a :class:`draftwood.runners.hidden.module.BlockDrafter`.

    The root's scores cost the pass. Scores of other nodes cost one small product each: those of their depth, plus what the
    Markov head says after their token. They are -inf beyond the block.
    """

    in_native, in_torch, shift = NativeBlockPasses, "TorchBlockPasses", 0

    def _end_round(self) -> None:
        self._block: Float[Tensor, "row depth draft_vocab"] | None = None

    def _scores(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Float[Tensor, "row node draft_vocab"]:
        if self._block is None:
            self._block = self._passes.score(self._texts, tokens[:, :1])
        return self._passes.below(self._block, tokens, depths)

    def _root_kept(self, hidden: Sequence[Hidden]) -> list[bool]:
        return [False] * len(hidden)


@final
class Eagle3Runner(HiddenRunner):
    """The runner of a drafter with one pass per level: EAGLE-3, or in the native engine an MTP head.

    The memory keeps entries of committed tokens only, all made of the target's hidden states. Those of drafted tokens are
    made again once they are accepted.
    """

    in_native, in_torch, shift = NativeEaglePasses, "TorchEaglePasses", 1

    def _end_round(self) -> None:
        self._ready: list[bool] = []  # rows whose roots have an entry
        self._depths: list[PerNode] = []
        self._states: list[Float[Tensor, "row node width"]] = []

    def _parents(self, depths: PerNode, ancestors: Seen) -> PerNode:
        """The parents of new nodes, 0 for the root."""
        self._depths.append(depths)
        above = np.concatenate(self._depths, axis=1)[:, None] == depths[:, :, None] - 1
        return (ancestors & above).argmax(axis=2)

    def _scores(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Float[Tensor, "row node draft_vocab"]:
        """Scores of new nodes, level by level."""
        self._ready = [text.ready for text in self._texts]
        parents, old, logits, features = self._parents(depths, ancestors), ancestors.shape[2] - tokens.shape[1], [], None
        for first, last in _levels(parents, old):
            if self._states:
                index = torch.as_tensor(parents[:, first:last, None], device=self.device)
                index = index.expand(-1, -1, self.model.config.hidden_size)
                features = torch.cat(self._states, dim=1).gather(1, index)
            part = slice(first, last)
            seen = ancestors[:, part, : old + last]
            states, scores = self._passes.score(self._texts, tokens[:, part], depths[:, part], seen, features)
            self._states.append(states)
            logits.append(scores)
        return torch.cat(logits, dim=1)

    def _root_kept(self, hidden: Sequence[Hidden]) -> list[bool]:
        ready = self._ready if self._states else [False] * len(hidden)
        return [one and len(new) > 0 for one, new in zip(ready, hidden, strict=True)]


def _levels(parents: PerNode, old: int) -> Iterator[tuple[int, int]]:
    """Parts of new nodes whose parents all come before the part, after ``old`` earlier nodes of the round."""
    latest = parents.max(axis=0).tolist()
    first = 0
    for node, parent in enumerate(latest):
        if node > first and parent >= old + first:
            yield first, node
            first = node
    yield first, len(latest)
