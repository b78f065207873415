"""The runner of an EAGLE-3 drafter: one pass per level of a tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.settings import Backend
from draftwood.runners.hidden.base import HiddenRunner
from draftwood.runners.hidden.eagle import Eagle3Drafter
from draftwood.runners.hidden.native_passes import NativeEaglePasses
from draftwood.runners.hidden.torch_passes import TorchEaglePasses
from draftwood.runners.protocols import Hidden, PerNode, Seen


@final
class Eagle3Runner(HiddenRunner[TorchEaglePasses | NativeEaglePasses]):
    """The runner of an :class:`Eagle3Drafter`.

    The memory keeps entries of committed tokens only, all made of the target's hidden states. Those of drafted tokens are
    made again once they are accepted.

    Args:
        drafter: a drafter in evaluation mode.
        target: its target, a causal language model; the target's runner must return the hidden states of
            ``drafter.config.target_layers``.
        engine: the backend, ``native`` or ``torch``.

    Raises:
        ConfigError: the native library is missing.
        ModelError: the native engine does not run the drafter.
    """

    def __init__(self, drafter: Eagle3Drafter, target: Any, *, engine: Backend = "torch") -> None:
        super().__init__(drafter, (NativeEaglePasses if engine == "native" else TorchEaglePasses)(drafter, target))

    def _end_round(self) -> None:
        self._ready: list[bool] = []  # rows whose roots have an entry
        self._depths: list[Int[Tensor, "row node"]] = []
        self._states: list[Float[Tensor, "row node width"]] = []

    def _parents(self, depths: PerNode, ancestors: Seen) -> PerNode:
        """The parents of new nodes, 0 for the root."""
        self._depths.append(depths)
        above = torch.cat(self._depths, dim=1).unsqueeze(1) == depths.unsqueeze(2) - 1
        return (ancestors & above).int().argmax(dim=2)

    def _scores(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Float[Tensor, "row node draft_vocab"]:
        """Scores of new nodes, level by level."""
        self._ready = [text.ready for text in self._texts]
        parents, old, logits, features = self._parents(depths, ancestors), ancestors.shape[2] - tokens.shape[1], [], None
        for first, last in _levels(parents, old):
            if self._states:
                index = parents[:, first:last, None].expand(-1, -1, self.model.config.hidden_size)
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


def _levels(parents: Int[Tensor, "row node"], old: int) -> Iterator[tuple[int, int]]:
    """Parts of new nodes whose parents all come before the part, after ``old`` earlier nodes of the round."""
    latest = parents.max(dim=0).values.tolist()  # host sync
    first = 0
    for node, parent in enumerate(latest):
        if node > first and parent >= old + first:
            yield first, node
            first = node
    yield first, len(latest)
