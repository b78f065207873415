"""The runner of an EAGLE-3 drafter: one pass per level of a tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.scores import Scores
from draftwood.core.settings import Backend
from draftwood.runners.context import token_bytes
from draftwood.runners.hidden.eagle import Eagle3Drafter
from draftwood.runners.hidden.eagle_native import NativePasses
from draftwood.runners.hidden.eagle_prefill import EaglePasses, EaglePrefill
from draftwood.runners.hidden.eagle_text import EagleText
from draftwood.runners.hidden.eagle_torch import TorchPasses
from draftwood.runners.hidden.layers import proposed
from draftwood.runners.pairing import known_hidden
from draftwood.runners.protocols import Hidden, PerNode, Prefix, Seen
from draftwood.runners.rows import changes, remaining
from draftwood.sampling.rows import Row


@final
class Eagle3Runner:
    """A :class:`draftwood.runners.protocols.Runner` of an :class:`Eagle3Drafter`.

    The memory keeps entries of committed tokens only, all made of the target's hidden states. Those of drafted tokens are
    made again once they are accepted. Scores are those of the tokens that the drafter can propose. They are -inf in rows
    whose hidden states are not known yet: nothing is drafted there.

    Args:
        drafter: a drafter in evaluation mode.
        target: its target, a causal language model; the target's runner must return the hidden states of
            ``drafter.config.target_layers``.
        engine: the backend, ``native`` or ``torch``.

    Raises:
        ConfigError: the native library is missing.
        ModelError: the native engine does not run the drafter.
    """

    reads_source = False
    reads_hidden = True
    max_length: int | None = None

    def __init__(self, drafter: Eagle3Drafter, target: Any, *, engine: Backend = "torch") -> None:
        self.model = drafter
        self.forward_seconds = 0.0
        made: EaglePasses = NativePasses(drafter, target) if engine == "native" else TorchPasses(drafter, target)
        self._passes, self.network, self.engine, self.pads = made, made.network, made.engine, made.pads
        self._tokens = proposed(drafter.draft_tokens, self.vocab_size)
        self._prefill = EaglePrefill(made)
        self._texts: list[EagleText] = []
        self._kept: WeakKeyDictionary[Row, EagleText] = WeakKeyDictionary()
        self._nodes = _Nodes()

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def vocab_size(self) -> int:
        return int(self.model.config.vocab_size)

    @property
    def token_bytes(self) -> int:
        return token_bytes(self.model.config, self.model.dtype.itemsize)

    @property
    def memory_bytes(self) -> int:
        waiting = sum(part.nbytes for text in (*self._texts, *self._kept.values()) for part in text.waiting)
        return int(self._passes.memory_bytes + waiting)

    def _text_of(self, row: Row | None) -> EagleText | None:
        """A present row, or a text that was kept."""
        return next((text for text in self._texts if text.row is row), None) or (row and self._kept.get(row))

    def held(self, row: Row) -> int:
        text = self._text_of(row)
        return text.known if text is not None and text.first == 1 else 0

    def keep(self, row: Row, text: Row) -> None:
        source = self._text_of(row)
        assert source is not None
        self._kept[text] = kept = source.for_row(Row(tokens=text.tokens), source.known)  # does not hold ``text``
        self._passes.keep(source.entries, kept.entries)

    def clear(self) -> None:
        self._passes.table.clear()
        self._texts, self._nodes = [], _Nodes()
        self._prefill.clear()

    def set_rows(self, rows: Sequence[Row]) -> None:
        gone, new = changes([text.row for text in self._texts], rows)
        joins = bool(new) and self._prefill.reads(new[-1])
        self._texts = [*remaining(self._texts, gone), *map(EagleText, new[:-1] if joins else new)]
        self._passes.table.set_rows([text.entries for text in self._texts])
        if joins:
            self._texts.append(self._prefill.join())

    def prefill(self, row: Row, end: int, *, prefix: Prefix | None = None, hidden: Hidden | None = None) -> None:
        start = perf_counter()
        with torch.inference_mode():
            present, length = (None, 0) if prefix is None else prefix
            self._prefill.read(row, end, hidden, self._text_of(present), length)
        self.forward_seconds += perf_counter() - start

    def extend(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Scores:
        start = perf_counter()
        ready = self._nodes.ready = [text.ready for text in self._texts]
        with torch.inference_mode():
            parents = self._nodes.add(depths, ancestors)
            if any(ready):
                logits = self._logits(tokens, depths, ancestors, parents)
                logits[[not one for one in ready]] = -torch.inf
            else:
                shape = *tokens.shape, len(self.model.draft_tokens)
                logits = torch.full(shape, -torch.inf, device=self.device, dtype=self._passes.dtype)
        self.forward_seconds += perf_counter() - start
        return Scores(logits, tokens=self._tokens)

    def _logits(
        self, tokens: PerNode, depths: PerNode, ancestors: Seen, parents: PerNode
    ) -> Float[Tensor, "row node draft_vocab"]:
        """Scores of new nodes, level by level."""
        nodes, old, logits, features = self._nodes, ancestors.shape[2] - tokens.shape[1], [], None
        for first, last in _levels(parents, old):
            if nodes.states:
                index = parents[:, first:last, None].expand(-1, -1, self.model.config.hidden_size)
                features = torch.cat(nodes.states, dim=1).gather(1, index)
            part = slice(first, last)
            seen = ancestors[:, part, : old + last]
            states, scores = self._passes.score(self._texts, tokens[:, part], depths[:, part], seen, features)
            nodes.states.append(states)
            logits.append(scores)
        return torch.cat(logits, dim=1)

    def commit(self, nodes: Sequence[Sequence[int]], hidden: Sequence[Hidden] | None = None) -> None:
        """End the round with the target's hidden states; raises a PairingError without them."""
        hidden = known_hidden(hidden, f"hidden_layers={tuple(self.model.config.target_layers)}")
        ready = self._nodes.ready if self._nodes.states else [False] * len(hidden)
        kept = [one and len(new) > 0 for one, new in zip(ready, hidden, strict=True)]
        ends = [len(text.row.tokens) - 1 for text in self._texts]
        firsts = [end - len(new) for end, new in zip(ends, hidden, strict=True)]
        if any(first > text.known for first, text in zip(firsts, self._texts, strict=True)):
            self._passes.table.clear()  # hidden states are missing: another drafter, or none, was in use
            kept = [False] * len(kept)
            for text, first in zip(self._texts, firsts, strict=True):
                text.begin(first)
            self._passes.table.set_rows([text.entries for text in self._texts])
        for text, new, end, root in zip(self._texts, hidden, ends, kept, strict=True):
            text.read(new, end, root_kept=root)
        self._passes.table.commit([[0] if root else [] for root in kept])
        self._nodes = _Nodes()


@final
class _Nodes:
    """The nodes of a round."""

    def __init__(self) -> None:
        self.ready: list[bool] = []  # per row
        self.depths: list[Int[Tensor, "row node"]] = []
        self.states: list[Float[Tensor, "row node width"]] = []

    def add(self, depths: PerNode, ancestors: Seen) -> PerNode:
        """Note new nodes; returns their parents, 0 for the root."""
        self.depths.append(depths)
        above = torch.cat(self.depths, dim=1).unsqueeze(1) == depths.unsqueeze(2) - 1
        return (ancestors & above).int().argmax(dim=2)


def _levels(parents: Int[Tensor, "row node"], old: int) -> Iterator[tuple[int, int]]:
    """Parts of new nodes whose parents all come before the part, after ``old`` earlier nodes of the round."""
    latest = parents.max(dim=0).values.tolist()  # host sync
    first = 0
    for node, parent in enumerate(latest):
        if node > first and parent >= old + first:
            yield first, node
            first = node
    yield first, len(latest)
