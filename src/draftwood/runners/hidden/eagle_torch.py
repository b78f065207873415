"""The passes of an EAGLE-3 drafter in PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.runners.cache import TreeCache
from draftwood.runners.forward import ForwardBatch
from draftwood.runners.hidden.eagle import Eagle3Drafter, EaglePass
from draftwood.runners.hidden.eagle_text import EagleText
from draftwood.runners.protocols import PerNode, Seen
from draftwood.runners.slots import SlotTable
from draftwood.sampling.rows import Row


@final
class TorchPasses:
    """Passes over new entries and nodes of rows.

    Args:
        drafter: the drafter.
        target: its target, whose weights it may share.

    Attributes:
        engine, pads, network: of the runner.
        dtype: of scores.
        table: the rows' entries.
    """

    engine = "torch"
    pads = True

    def __init__(self, drafter: Eagle3Drafter, target: Any) -> None:
        self.network: Any = EaglePass(drafter, target)
        self.dtype: torch.dtype = drafter.dtype
        self.table: Any = SlotTable(TreeCache(drafter.config.num_hidden_layers), drafter.dtype, drafter.device, None)
        self._drafter, self._head = drafter, drafter.head(target)

    def another(self) -> TorchPasses:
        """The same network with a table of its own, which holds no rows."""
        found = copy.copy(self)
        found.table = self.table.another(TreeCache(self._drafter.config.num_hidden_layers))
        return found

    @property
    def memory_bytes(self) -> int:
        """Bytes of the keys and values of all entries."""
        return sum(cache.memory_bytes for cache in (self.table.cache, *self.table.kept))

    def keep(self, entries: Row, kept: Row) -> None:
        """Keep the entries of a row as ``kept``, for as long as that lives."""
        self.table.keep(entries, kept, TreeCache(self._drafter.config.num_hidden_layers))

    def read(self, text: EagleText) -> None:
        """Read the entries that wait of the text, whose entries are the only row."""
        features = self._drafter.features(torch.cat(text.waiting).to(self.dtype).unsqueeze(0))
        self._states(self.table.batches_to(text.known - text.first), features)
        text.waiting = []
        self.table.commit([[]])

    def score(
        self, texts: Sequence[EagleText], tokens: PerNode, depths: PerNode, ancestors: Seen, features: Tensor | None
    ) -> tuple[Float[Tensor, "row node width"], Float[Tensor, "row node draft_vocab"]]:
        """Outputs at new nodes, and their scores.

        Args:
            texts: of the rows.
            tokens, depths, ancestors: of the nodes.
            features: outputs at their parents; None for roots. The pass then also reads the entries that wait.
        """
        if features is None:
            rows = [text.unread(self._drafter.no_hidden()) for text in texts]
            longest = max(map(len, rows))
            padded = [nn.functional.pad(row, (0, 0, longest - len(row), 0)) for row in rows]
            features = self._drafter.features(torch.stack(padded))
        states = self._states(self.table.batches(tokens, depths, ancestors), features)[:, -tokens.shape[1] :]
        return states, nn.functional.linear(self._drafter.normed(states), self._head)

    def _states(self, batches: Iterable[ForwardBatch], features: Tensor) -> Tensor:
        """Outputs of the last batch; the features are those of all batches."""
        states, done = features, 0
        for batch in batches:
            self.table.cache.place(batch)
            end = done + batch.tokens.shape[1]
            states = self.network(
                input_ids=batch.tokens,
                features=features[:, done:end],
                positions=batch.positions,
                cache=self.table.cache,
                mask=batch.mask,
            )
            done = end
        return states
