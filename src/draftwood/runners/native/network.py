"""A model in the native engine, and the memory of its rows."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterable, Sequence
from ctypes import addressof, byref
from functools import partial
from typing import TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.core.errors import ModelError
from draftwood.core.scores import Peaks, Scores
from draftwood.hardware.threads import RULE
from draftwood.native.library import DrafterSource, Facts, LayerSource, Matrix, NewTokens, address, array_address, library
from draftwood.runners.native.family import EMBEDDING
from draftwood.runners.native.layers import LAYER_NORM, LAYER_PROJECTION, LAYER_TABLE
from draftwood.runners.native.memory import RowMemory, succeed
from draftwood.runners.native.sources import Held, Part
from draftwood.runners.native.stored import StoredModel
from draftwood.runners.native.weights import sized
from draftwood.runners.protocols import PerNode, Seen
from draftwood.runners.rows import RowTable
from draftwood.sampling.rows import Row

_POSITIONS = 1024  # the first table of rotations
Rotation: TypeAlias = Callable[[int], tuple[Float[Tensor, "*table position half"], Float[Tensor, "*table position half"]]]
"""Cosines and sines of the first positions; of several tables if layers differ."""


@final
class Engine(nn.Module):
    """Packed weights; a module, so that hooks can observe its forwards.

    Args:
        facts, layers: of the model. Layers are taken one by one.
        taps: layers whose hidden states forwards return.
        parts: the embedding, the head, and the weight of the last norm. The head may be another engine, which shares its.
        held: what keeps the memory of all these alive while they are packed.
        rotate: the model's rotations.
        temper: what queries of the first positions are multiplied by, if it is not None.
        longest: number of positions, None if unlimited; later ones are taken as the last.

    Raises:
        ConfigError: the native library is missing.
        ModelError: memory does not suffice, or a weight has another shape than the facts say.
    """

    def __init__(
        self,
        facts: Facts,
        layers: Iterable[LayerSource],
        taps: Sequence[int],
        parts: tuple[Part, Part | Engine, Part],
        held: Held,
        rotate: Rotation,
        longest: int | None,
        temper: Callable[[int], Float[Tensor, "position"] | None] = lambda positions: None,
    ) -> None:
        super().__init__()
        embedding = sized("embedding", parts[0], max(facts.tokens, parts[0].shape[0]), facts.width)
        head, norm = parts[1], sized("norm", parts[2], facts.width)
        self.lender = head if isinstance(head, Engine) else None
        facts.taps = len(taps)
        self._kept = Held(held.dtype, coded=held.coded)  # the embedding is read where it lies
        handle = library().model(
            byref(facts),
            (ctypes.c_int * len(taps))(*taps),
            byref(self._kept.matrix(embedding)),
            byref(Matrix() if isinstance(head, Engine) else held.matrix(sized("head", head, facts.vocab, facts.width))),
            held.numbers(norm),
            RULE.now,
        )
        self.handle, self.facts = succeed(handle, ModelError), facts
        self._end = weakref.finalize(self, library().free_model, handle)
        left = facts.layers
        for layer in layers:
            succeed(library().layer(handle, byref(layer)), ModelError)
            left -= 1
        if left:
            raise ValueError(f"{facts.layers - left} layers: the facts have {facts.layers}")
        if self.lender is not None:
            succeed(library().share_head(handle, self.lender.handle))
        self._rotate, self._temper, self._longest, self._positions = rotate, temper, longest, 0
        self.embeds, self.sources_width = False, 0
        self.reach(1)

    def drafts(self, source: DrafterSource) -> None:
        """Make the model a drafter of hidden states; raises as the engine."""
        succeed(library().drafter(self.handle, byref(source)))
        self.embeds, self.sources_width = bool(source.embeds), (source.sources - source.embeds) * source.source_width

    def give_layers(self, table: Part, projection: Part, norm: Part, scale: float, held: Held) -> None:
        """Give layers what they have of a token of their own: rows of a table times ``scale``, [token][layer][input], and
        products of the embedding, [layer][input][width], normed. Raises as the engine; ``held`` keeps packed parts alive."""
        width, size = self.facts.layers * self.facts.layer_inputs, self.facts.layer_inputs
        rows = self._kept.matrix(sized(LAYER_TABLE, table, max(self.facts.tokens, table.shape[0]), width))
        products = held.matrix(sized(LAYER_PROJECTION, projection, width, self.facts.width))
        given = byref(rows), byref(products), held.numbers(sized(LAYER_NORM, norm, size)), scale
        succeed(library().layer_inputs(self.handle, *given), ModelError)

    def row(self) -> RowMemory:
        """An empty memory."""
        return RowMemory(library().row(self.handle), self.handle)

    @property
    def memory_bytes(self) -> int:
        """Bytes of all rows: pages of keys and values, of which shared ones count once, and running states."""
        return int(library().memory_bytes(self.handle))

    @property
    def token_bytes(self) -> int:
        """Bytes of a page for each of its tokens: large pages of the system may be wider than what they hold."""
        return int(library().token_bytes(self.handle))

    @property
    def row_bytes(self) -> int:
        """Bytes of what a row keeps whatever the length of its text: running states, and entries; 0 without them."""
        return int(library().row_bytes(self.handle))

    def reach(self, positions: int) -> None:
        """Make the table of rotations cover so many positions, as far as the model has them."""
        if positions > self._positions and self._positions != self._longest:
            reached = max(_POSITIONS, 2 * positions)
            if self._longest is not None:
                reached = min(reached, self._longest)
            cos, sin = (part.float().contiguous() for part in self._rotate(reached))
            shape = *cos.shape[:-2], reached, self.facts.rotary_dim // 2
            given = [address(cos, torch.float32, *shape), address(sin, torch.float32, *shape), None]
            if (queries := self._temper(reached)) is not None:
                given[2] = address(queries, torch.float32, reached)
            succeed(library().rotate(self.handle, *given, cos.shape[:-2].numel(), reached))
            self._positions = reached

    def read(self) -> None:
        """Read all weights once: no forward can be faster."""
        library().read(self.handle, RULE.now)

    def forward(
        self,
        input_ids: PerNode,
        depths: PerNode,
        seen: Seen,
        memories: Sequence[RowMemory],
        pending: Sequence[Sequence[int]],
        sources: Sequence[Float[Tensor, "_token sources_width"]] | None = None,
        features: Float[Tensor, "row node width"] | None = None,
    ) -> Scores:
        """Read each row's pending tokens and nodes; score the nodes.

        Args:
            input_ids, depths, seen: of the nodes.
            memories, pending: of the rows.
            sources: of a drafter that reads features, the float32 hidden states of the target at pending tokens, then nodes.
                Those of an MTP head may be its own.
            features: or the features of the nodes, if nothing is pending. With either, only nodes get hidden states, and
                those of pending tokens are any numbers.

        Raises:
            CacheError: memory does not suffice, or the engine does not know a token.
            ValueError: tensors or arrays have other sizes or types.
        """
        input_ids, depths, seen = map(np.ascontiguousarray, (input_ids, depths, seen))
        (rows, nodes), (_, _, all_nodes) = input_ids.shape, seen.shape
        tokens, at = array_address(input_ids, np.int64, rows, nodes), array_address(depths, np.int64, rows, nodes)
        sees = array_address(seen, np.bool_, rows, nodes, all_nodes)
        if not 0 < rows == len(memories):
            raise ValueError(f"{rows} rows of nodes and {len(memories)} memories: give one for each, and at least one")
        given, texts = (NewTokens * rows)(), []
        for row, (memory, waiting) in enumerate(zip(memories, pending, strict=True)):
            texts.append((ctypes.c_int * len(waiting))(*waiting))
            given[row] = NewTokens(
                memory.of(self.handle), len(waiting), nodes, all_nodes, addressof(texts[-1]),
                tokens + 8 * nodes * row, at + 8 * nodes * row, sees + nodes * all_nodes * row,
                None if sources is None else address(sources[row], torch.float32, len(waiting) + nodes, self.sources_width),
                None if features is None else address(features[row], torch.float32, nodes, self.facts.width),
            )  # fmt: skip
        new, counts = partial(torch.empty, dtype=torch.float32), list(map(len, texts))
        self.reach(all_nodes + max(len(memory) + count for memory, count in zip(memories, counts, strict=True)))
        logits = new(rows, nodes, self.facts.vocab)
        peaks = Peaks(np.empty((rows, nodes), np.float32), np.empty((rows, nodes), np.int64))
        width = self.facts.taps * self.facts.width
        hidden = new(rows * nodes + sum(counts), width) if width else None
        found = (None if part is None else part.data_ptr() for part in (logits, hidden))
        succeed(library().read_tokens(given, rows, *found, *(part.ctypes.data for part in peaks), RULE.now))
        if hidden is None:
            return Scores(logits, peaks=peaks)
        of_nodes, *read = hidden.split_with_sizes([rows * nodes, *counts])
        return Scores(logits, of_nodes.view(rows, nodes, width), read, peaks=peaks)


def causal_network(source: StoredModel, hidden_layers: Sequence[int], longest: int | None) -> Engine:
    """The engine of a causal model, which returns the hidden states of these layers; ``longest`` and errors as for
    :class:`Engine`."""
    held, facts = Held(source.dtype, coded=source.coded), source.facts()
    parts = source.weights[EMBEDDING], source.head, source.norm()
    rotary, layers = source.rotary, source.layers(facts)
    engine = Engine(facts, layers, hidden_layers, parts, held, rotary, longest, rotary.queries)
    if facts.layer_inputs:
        table, projection, norm = (source.weights[name] for name in (LAYER_TABLE, LAYER_PROJECTION, LAYER_NORM))
        engine.give_layers(table, projection, norm, source.embedding_scale(LAYER_TABLE), held)
    return engine


@final
class MemoryTable(RowTable[RowMemory]):
    """Rows and their memories, which change as those of a :class:`draftwood.runners.slots.SlotTable`.

    Args:
        engine: makes memories.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        super().__init__(lambda _: engine.row(), lambda source, _, length: source.fork(min(length, len(source))))

    def clear(self) -> None:
        super().clear()
        self._begun = False  # the present round

    def _end_round(self) -> None:
        if self._begun:
            for memory in self.parts:
                memory.cut(len(memory))
        self._begun = False

    def set_rows(self, rows: Sequence[Row]) -> tuple[list[int], list[Row]]:
        self._end_round()
        return super().set_rows(rows)

    def held(self, row: Row) -> int:
        """As :meth:`draftwood.runners.protocols.KeepsTexts.held`."""
        memory = self.of(row)
        return 0 if memory is None else len(memory)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the memories of all rows and kept texts, also of other tables of the engine."""
        return self._engine.memory_bytes

    def keep(self, row: Row, text: Row) -> None:
        """As :meth:`draftwood.runners.protocols.KeepsTexts.keep`; pages are shared."""
        memory = self.parts[self.rows.index(row)]
        self.kept[text] = memory.fork(len(memory))

    def restore(self, text: Row, length: int) -> RowMemory:
        """As :meth:`draftwood.runners.native.memory.StoresTexts.restore`."""
        self.kept[text] = memory = self._engine.row()
        memory.restore(length)
        return memory

    def thin_marks(self) -> bool:
        """As :meth:`draftwood.runners.protocols.KeepsTexts.thin_marks`."""
        coming = [] if self.coming is None else [self.coming[1]]
        return any([memory.thin_marks() for memory in (*self.parts, *coming)])

    def cut(self, row: Row, length: int) -> None:
        """As :meth:`draftwood.runners.slots.SlotTable.cut`; with running states less may be left."""
        index = self.rows.index(row)
        if length < len(memory := self.parts[index]):
            self.parts[index] = memory.fork(length)

    def pending(self) -> list[list[int]]:
        """What the memories lack of the rows' tokens before the roots, read next: a round begins, or goes on."""
        self._begun = True  # first: an interrupted call may have read nodes
        return [row.tokens[len(memory) : -1] for row, memory in zip(self.rows, self.parts, strict=True)]

    def commit(self, nodes: Sequence[Sequence[int]]) -> None:
        """End the round: per row, the text has the tokens of these nodes next, in this order."""
        if self._begun:  # else nothing was read
            for memory, kept in zip(self.parts, nodes, strict=True):
                memory.commit(kept)
        self._begun = False
