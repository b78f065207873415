"""The runner of a drafter of hidden states: one pass per round, whatever the depth of the tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.scores import Scores
from draftwood.core.settings import Backend
from draftwood.runners.context import token_bytes
from draftwood.runners.hidden.layers import proposed
from draftwood.runners.hidden.memory import HiddenMemory, HiddenStore, TensorStore
from draftwood.runners.hidden.native import NativeDrafter
from draftwood.runners.hidden.network import BlockDrafter, HiddenPass, PassOutput
from draftwood.runners.pairing import known_hidden
from draftwood.runners.protocols import Hidden, PerNode, Prefix, Seen
from draftwood.runners.rows import changes
from draftwood.sampling.rows import Row


@final
class TensorDrafter:
    """A drafter in PyTorch, whose memory is a tensor; arguments as for :class:`HiddenBlockRunner`."""

    def __init__(self, drafter: BlockDrafter, target: Any) -> None:
        self.model, self.dtype = drafter, drafter.dtype
        self.network = HiddenPass(drafter, target)

    def store(self) -> HiddenStore:
        """An empty store."""
        config = self.model.config
        shape = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        return TensorStore(shape, self.dtype, self.model.device)

    def memory_bytes(self, memories: Iterable[HiddenMemory]) -> int:
        """Bytes of the keys and values of these memories, which are all of this drafter's."""
        return sum(memory.store.parts.nbytes for memory in memories)

    def scores(self, memory: HiddenMemory, root: Int[Tensor, "row"]) -> Float[Tensor, "row depth draft_vocab"]:
        """Scores of the block after each root; reads the hidden states that wait."""
        new = memory.unread()
        mask = memory.mask(new.positions.shape[1], self.model.slots, causal=self.model.causal)
        out: PassOutput = self.network(
            input_ids=root.unsqueeze(1),
            hidden=new.hidden,
            positions=new.positions,
            root_position=memory.ends(),
            memory=memory.store.parts,
            mask=mask,
        )
        memory.store.write(out.memory, memory.lengths, memory.waiting)
        memory.read()
        return out.scores

    def below(
        self, scores: Float[Tensor, "row depth draft_vocab"], tokens: PerNode, depths: PerNode
    ) -> Float[Tensor, "row node draft_vocab"]:
        """Scores after nodes: those of their depths, and what their tokens add; -inf beyond the block."""
        row, block = torch.arange(len(tokens), device=scores.device).unsqueeze(1), scores.shape[1]
        found = scores[row, depths.clamp(max=block - 1)] + self.model.markov(tokens)
        return found.masked_fill_((depths >= block).unsqueeze(-1), -torch.inf)


@final
class HiddenBlockRunner:
    """A :class:`draftwood.runners.protocols.Runner` of a :class:`BlockDrafter`.

    The root's scores cost the pass. Scores of other nodes cost one small product each: those of their depth, plus what the
    Markov head says after their token. They are -inf beyond the block, for tokens that the drafter cannot propose, and in
    rows whose hidden states are not known yet: nothing is drafted there.

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
    pads = True
    max_length: int | None = None

    def __init__(self, drafter: BlockDrafter, target: Any, *, engine: Backend = "torch") -> None:
        config = drafter.config
        self.model, self.engine = drafter, engine
        self.forward_seconds = 0.0
        made = NativeDrafter(drafter, target) if engine == "native" else TensorDrafter(drafter, target)
        self._drafter, self.network = made, made.network
        width = len(config.target_layers) * getattr(config, "target_size", config.hidden_size)
        self._memory = HiddenMemory(made.store(), width, made.dtype, self.device)
        self._ahead = self._memory.another(made.store())
        self._rows: list[Row] = []
        self._kept: WeakKeyDictionary[Row, HiddenMemory] = WeakKeyDictionary()  # of one row each
        self._ahead_row: Row | None = None  # whose hidden states ``_ahead`` holds
        self._scores: Float[Tensor, "row depth draft_vocab"] | None = None
        self._tokens = proposed(drafter.draft_tokens, config.vocab_size)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def _ends(self) -> list[int]:
        """Lengths of the rows' texts without their roots."""
        return [len(row.tokens) - 1 for row in self._rows]

    @property
    def vocab_size(self) -> int:
        return int(self.model.config.vocab_size)

    @property
    def token_bytes(self) -> int:
        return token_bytes(self.model.config, self._drafter.dtype.itemsize)

    @property
    def memory_bytes(self) -> int:
        memories = self._memory, self._ahead, *self._kept.values()
        return self._drafter.memory_bytes(memories) + sum(memory.unread_bytes for memory in memories)

    def _memory_of(self, row: Row) -> tuple[HiddenMemory, int] | None:
        """The memory of a present row, or of a text that was kept, and its index there."""
        if row in self._rows:
            return self._memory, self._rows.index(row)
        return (self._kept[row], 0) if row in self._kept else None

    def held(self, row: Row) -> int:
        source = self._memory_of(row)
        return 0 if source is None or source[0].starts[source[1]] else source[0].end(source[1])

    def keep(self, row: Row, text: Row) -> None:
        memory = self._memory.another(self._drafter.store())
        memory.begin(self._memory, self._rows.index(row), self.held(row))
        self._kept[text] = memory

    def clear(self) -> None:
        self._memory.clear()
        self._ahead.clear()
        self._rows, self._ahead_row, self._scores = [], None, None

    def set_rows(self, rows: Sequence[Row]) -> None:
        joins = self._ahead_row is not None and self._ahead_row in rows[-1:]
        gone, new = changes(self._rows, rows)
        if gone:
            self._memory.drop(gone)
        if count := len(new) - joins:
            self._memory.add(count)
        if joins:
            self._memory.join(self._ahead)
            self._ahead_row = None
        self._rows = list(rows)

    def prefill(self, row: Row, end: int, *, prefix: Prefix | None = None, hidden: Hidden | None = None) -> None:
        start = perf_counter()
        if row is not self._ahead_row:
            self._ahead_row = row
            self._ahead.clear()
            if prefix is None or (source := self._memory_of(prefix.row)) is None:
                self._ahead.add(1)
            else:
                self._ahead.begin(*source, prefix.length)
        if hidden is not None and len(hidden):
            self._ahead.append([hidden], [end])
            if max(self._memory.waiting, default=0) <= self.model.slots:  # else the rows are not drafted for now
                with torch.inference_mode():
                    last = torch.tensor([row.tokens[end - 1]], device=self.device)
                    self._drafter.scores(self._ahead, last)  # for the memory alone
        self.forward_seconds += perf_counter() - start

    def extend(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Scores:
        start = perf_counter()
        known = self._memory.known(self._ends)
        with torch.inference_mode():
            if self._scores is None and any(known):
                self._scores = self._drafter.scores(self._memory, tokens[:, 0])
            logits = self._logits(tokens, depths, known)
        self.forward_seconds += perf_counter() - start
        return Scores(logits, tokens=self._tokens)

    def _logits(
        self, tokens: Int[Tensor, "row node"], depths: Int[Tensor, "row node"], known: Sequence[bool]
    ) -> Float[Tensor, "row node draft_vocab"]:
        """Scores of the nodes' depths and tokens."""
        if self._scores is None:
            shape = *tokens.shape, len(self.model.draft_tokens)
            return torch.full(shape, -torch.inf, device=self.device, dtype=self._drafter.dtype)
        scores = self._drafter.below(self._scores, tokens, depths)
        if not all(known):
            scores[[not one for one in known]] = -torch.inf
        return scores

    def commit(self, nodes: Sequence[Sequence[int]], hidden: Sequence[Hidden] | None = None) -> None:
        """End the round with the target's hidden states; raises a PairingError without them."""
        hidden = known_hidden(hidden, f"hidden_layers={tuple(self.model.config.target_layers)}")
        self._memory.append(hidden, self._ends)
        self._scores = None
