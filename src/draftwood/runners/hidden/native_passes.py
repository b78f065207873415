"""The passes of drafters of hidden states in the native engine."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.core.scores import Scores, at_depths
from draftwood.core.tree import NOTHING
from draftwood.hardware.threads import RULE
from draftwood.native.library import (
    BlockShape,
    DrafterSource,
    NewHidden,
    TreeExpansion,
    address,
    array_address,
    instruction_set,
    library,
)
from draftwood.runners.hidden.module import BlockDrafter, DrafterModule
from draftwood.runners.hidden.native_engine import drafter_engine, feature_engine
from draftwood.runners.hidden.text import HiddenText
from draftwood.runners.native.memory import RowMemory, succeed
from draftwood.runners.native.network import Engine, MemoryTable
from draftwood.runners.native.sources import Held
from draftwood.runners.native.weights import sized
from draftwood.runners.protocols import PerNode, Seen


class NativePasses:
    """Passes in the native engine, with the table of the rows' entries.

    Attributes:
        network: a module, so that hooks can observe its calls.
        name: the engine of the runner.
        dtype: of hidden states and scores.
    """

    def __init__(self, engine: Engine, width: int) -> None:
        self.table: Any = MemoryTable(engine)
        self.dtype = torch.float32
        self._nothing = torch.zeros(1, width)
        eight = "int8 8-bit activations " if engine.facts.activations == 8 else ""
        self.name = f"native {eight}{instruction_set()}"

    def _memories(self, texts: Sequence[HiddenText]) -> list[RowMemory]:
        """The memories of entries, without what an interrupted pass has read."""
        found: list[RowMemory] = [self.table.of(text.entries) for text in texts]
        for text, memory in zip(texts, found, strict=True):
            if len(memory) != text.cached:
                memory.cut(text.cached)
        return found


@final
class NativeEaglePasses(NativePasses):
    """The passes of a drafter with one pass per level; arguments and errors as for
    :func:`draftwood.runners.hidden.native_engine.drafter_engine`."""

    pads = False

    def __init__(self, drafter: DrafterModule, target: Any, lender: Engine | None = None) -> None:
        self.network = feature_engine(drafter, target, lender)
        super().__init__(self.network, drafter.hidden_width)

    def read(self, text: HiddenText) -> None:
        hidden = text.unread(self._nothing, root=False)
        if not len(hidden):
            return
        pending = [text.entries.tokens[text.cached : text.cached + len(hidden)]]
        self._pass(*NOTHING, self._memories([text]), pending, sources=[hidden])
        text.entries_read()

    def score(
        self, texts: Sequence[HiddenText], tokens: PerNode, depths: PerNode, ancestors: Seen, features: Tensor | None
    ) -> tuple[Float[Tensor, "row node width"], Float[Tensor, "row node draft_vocab"]]:
        if features is None:
            inputs: dict[str, Any] = {"sources": [text.unread(self._nothing, root=True) for text in texts]}
        elif self.network.embeds:
            inputs = {"sources": list(features.contiguous())}
        else:
            inputs = {"features": features.contiguous()}
        out = self._pass(tokens, depths, ancestors, self.table.parts, self.table.pending(), **inputs)
        for text in texts:
            text.entries_read()
        assert out.hidden is not None
        return out.hidden, out.logits

    def _pass(self, tokens: PerNode, depths: PerNode, seen: Seen, memories: Any, pending: Any, **inputs: Any) -> Scores:
        """A pass of the network, whose ``inputs`` are either ``sources`` or ``features``."""
        given = {"input_ids": tokens, "depths": depths, "seen": seen, "memories": memories, "pending": pending}
        out: Scores = self.network(**given, **inputs)
        return out


@final
class NativeBlockPasses(NativePasses, nn.Module):
    """The pass of a block drafter, one call of the engine; arguments and errors as for :class:`NativeEaglePasses`."""

    pads = True

    def __init__(self, drafter: BlockDrafter, target: Any, lender: Engine | None = None) -> None:
        nn.Module.__init__(self)
        config, held = drafter.config, Held(drafter.dtype, coded=True, mapped=True)
        self._kept, width = Held(drafter.dtype), config.hidden_size
        rank = config.markov_rank
        source = DrafterSource(
            sources=len(config.target_layers),
            source_width=config.target_size,
            norm_sources=drafter.norms_sources,
            source_epsilon=torch.finfo(torch.float32).eps,  # as rms_norm of PyTorch
            rank=rank,
            features=held.weights(sized("fc", drafter.fc.weight, width, len(config.target_layers) * config.target_size)),
            feature_norm=held.numbers(sized("hidden_norm", drafter.hidden_norm.weight, width)),
        )
        if rank:
            source.markov_in = self._kept.weights(sized("markov_in", drafter.markov_in.weight, config.vocab_size, rank))
        self.engine = drafter_engine(drafter, target, held, source, lender=lender)
        self._block, self._vocab = int(config.block), self.engine.facts.vocab
        mask = self._kept.numbers(sized("mask", drafter.mask_embedding(target), width))
        self._shape = BlockShape(slots=config.slots, scored=self._block, causal=drafter.causal, mask=mask)
        self._adds = bool(rank)
        super().__init__(self.engine, drafter.hidden_width)

    @property
    def network(self) -> NativeBlockPasses:
        return self

    def forward(
        self,
        input_ids: Int[np.ndarray, "row 1"],
        memories: Sequence[RowMemory],
        starts: Sequence[int],
        hidden: Sequence[Float[Tensor, "_token taps_width"]],
    ) -> Float[Tensor, "row depth draft_vocab"]:
        """Read the rows' hidden states, and score the block after each root.

        Args:
            input_ids: the roots.
            memories, starts: of the rows, and the positions of their first tokens.
            hidden: float32.
        """
        rows = len(input_ids)
        given = (NewHidden * rows)()
        for row, (memory, start, new, root) in enumerate(
            zip(memories, starts, hidden, input_ids.flatten().tolist(), strict=True)
        ):
            there = address(new, torch.float32, len(new), self.engine.sources_width)
            given[row] = NewHidden(memory.of(self.engine.handle), start, len(new), root, there)
            self.engine.reach(start + len(memory) + len(new) + self._shape.slots)
        scores = torch.empty(rows, self._block, self._vocab, dtype=torch.float32)
        succeed(library().draft_block(given, rows, byref(self._shape), scores.data_ptr(), RULE.now))
        return scores

    def read(self, text: HiddenText) -> None:
        """Read the hidden states that wait; the block of the pass is not used."""
        self.score([text], np.zeros((1, 1), np.int64))

    def score(self, texts: Sequence[HiddenText], roots: Int[np.ndarray, "row 1"]) -> Float[Tensor, "row depth draft_vocab"]:
        """Scores of the block after each root; reads the hidden states that wait."""
        hidden, starts = [text.unread(self._nothing, root=True) for text in texts], [text.start for text in texts]
        scores: Tensor = self(input_ids=roots, memories=self._memories(texts), starts=starts, hidden=hidden)
        for text in texts:
            text.entries_read()
        return scores

    def give_block(self, expansion: TreeExpansion, scores: Float[Tensor, "row depth draft_vocab"]) -> None:
        """Give the library the scores of a block, below which trees grow."""
        expansion.model, expansion.markov = self.engine.handle, self._adds
        expansion.block, expansion.vocab = self._block, self._vocab
        expansion.scores = address(scores, torch.float32, expansion.rows, self._block, self._vocab)
        expansion.threads = RULE.now

    def below(
        self, scores: Float[Tensor, "row depth draft_vocab"], tokens: PerNode, depths: PerNode
    ) -> Float[Tensor, "row node draft_vocab"]:
        """Scores after nodes: those of their depths, and what their tokens add; -inf beyond the block."""
        if not self._adds:
            return at_depths(scores, depths)
        (rows, nodes), (_, block, vocab) = tokens.shape, scores.shape
        given, at = np.ascontiguousarray(tokens), np.ascontiguousarray(depths)
        where = array_address(given, np.int64, rows, nodes), array_address(at, np.int64, rows, nodes)
        out = torch.empty(rows, nodes, vocab, dtype=torch.float32)
        there = address(scores, torch.float32, rows, block, self._vocab)
        succeed(library().add_markov(self.engine.handle, *where, rows, nodes, there, block, out.data_ptr(), RULE.now))
        return out
