"""A drafter of hidden states in the native engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ctypes import byref
from typing import Any, cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.native.library import BlockShape, DrafterSource, Facts, NewHidden, library
from draftwood.runners.hidden.memory import HiddenMemory
from draftwood.runners.hidden.network import BlockDrafter
from draftwood.runners.native.families import Held, layer_source, refuse, why_not_format
from draftwood.runners.native.network import Engine, Memory, free_threads, succeed
from draftwood.runners.native.stored import EMBEDDING, StoredModel
from draftwood.runners.protocols import PerNode


@final
class NativeStore:
    """Keys and values of the rows of a drafter: a :class:`draftwood.runners.hidden.memory.HiddenStore`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.rows: list[Memory] = []

    def clear(self) -> None:
        self.rows = []

    def add(self, rows: int) -> None:
        self.rows += [self._engine.row() for _ in range(rows)]

    def begin(self, other: NativeStore, row: int, length: int) -> None:
        self.rows = [other.rows[row].fork(length)]

    def join(self, other: NativeStore) -> None:
        self.rows += other.rows

    def keep(self, rows: Sequence[int]) -> None:
        self.rows = [self.rows[row] for row in rows]


@final
class NativePass(nn.Module):
    """The pass as one call of the engine; a module, so that hooks can observe its calls.

    Args:
        drafter: the drafter.
        target: its target, whose weights it may share.

    Raises:
        ConfigError: the native library is missing.
        ModelError: the engine does not compute in the drafter's number format, or memory does not suffice.
    """

    def __init__(self, drafter: BlockDrafter, target: Any) -> None:
        super().__init__()
        config, held, own = drafter.config, Held(drafter.dtype, coded=True, mapped=True), cast(Any, drafter)
        self._kept = Held(drafter.dtype)
        markov = drafter.markov_weights()
        source = DrafterSource(
            sources=len(config.target_layers),
            source_width=getattr(config, "target_size", config.hidden_size),
            norm_sources=drafter.norms_sources,
            source_epsilon=torch.finfo(torch.float32).eps,  # as rms_norm of PyTorch
            rank=0 if markov is None else markov[0].shape[1],
            features=held.weights(own.fc.weight),
            feature_norm=held.numbers(own.hidden_norm.weight),
            markov_in=None if markov is None else self._kept.weights(markov[0]),
            markov_out=None if markov is None else held.weights(markov[1]),
        )
        self.engine = drafter_engine(drafter, target, held, source)
        self._block, self._vocab = int(config.block), self.engine.facts.vocab
        mask = self._kept.numbers(drafter.mask_embedding(target))
        self._shape = BlockShape(slots=drafter.slots, scored=self._block, causal=drafter.causal, mask=mask)

    def forward(
        self,
        input_ids: Int[Tensor, "row 1"],
        memories: Sequence[Memory],
        starts: Sequence[int],
        hidden: Sequence[Float[Tensor, "_token taps_width"] | None],
    ) -> Float[Tensor, "row depth draft_vocab"]:
        """Read the rows' hidden states, and score the block after each root.

        Args:
            input_ids: the roots.
            memories, starts: of the rows, and the positions of their first tokens.
            hidden: float32; None where there are no new ones.
        """
        rows = len(input_ids)
        given = (NewHidden * rows)()
        for row, (memory, start, new, root) in enumerate(
            zip(memories, starts, hidden, input_ids.flatten().tolist(), strict=True)
        ):
            count, there = (0, None) if new is None else (len(new), new.data_ptr())
            given[row] = NewHidden(memory.handle, start, count, root, there)
            self.engine.reach(start + len(memory) + count + self._shape.slots)
        scores = torch.empty(rows, self._block, self._vocab)
        succeed(library().draft_block(given, rows, byref(self._shape), scores.data_ptr(), free_threads()))
        return scores


def drafter_engine(drafter: Any, target: Any, held: Held, source: DrafterSource, taps: Sequence[int] = ()) -> Engine:
    """The engine of a drafter with layers as in Llama.

    Args:
        drafter, target: a drafter and its target, whose weights it may share.
        held: keeps the memory of ``source`` alive.
        source: what it has in addition to its layers.
        taps: as for :class:`Engine`.

    Raises:
        ConfigError: the native library is missing.
        ModelError: the engine does not compute in the drafter's number format, or memory does not suffice.
    """
    refuse(why_not_format(drafter))
    config, head = drafter.config, drafter.head(target)
    facts = Facts(
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        inner=config.intermediate_size,
        vocab=len(head),
        rotary_dim=config.head_dim,
        taps=len(taps),
        bfloat16=drafter.dtype == torch.bfloat16,
        epsilon=config.rms_norm_eps,
        scale=config.head_dim**-0.5,
    )

    def rotate(positions: int) -> tuple[Float[Tensor, "position half"], Float[Tensor, "position half"]]:
        cos, sin = drafter.rotation(torch.arange(positions).unsqueeze(0))
        return cos[0, 0], sin[0, 0]

    shared = isinstance(target, StoredModel) and not getattr(config, "own_embedding", False)
    embedding = target.weights[EMBEDDING] if shared else drafter.embedding(target).weight.detach().to(drafter.dtype)
    layers = [layer_source(layer, held) for layer in drafter.layers]
    engine = Engine(facts, layers, taps, (embedding, head, drafter.norm.weight), held, rotate, None)
    succeed(library().drafter(engine.handle, byref(source)))
    return engine


@final
class NativeDrafter:
    """A drafter in the native engine; arguments and errors as for :class:`NativePass`."""

    dtype = torch.float32

    def __init__(self, drafter: BlockDrafter, target: Any) -> None:
        self.network = NativePass(drafter, target)
        self._adds = drafter.markov_weights() is not None

    def store(self) -> NativeStore:
        """An empty store."""
        return NativeStore(self.network.engine)

    def memory_bytes(self, memories: Iterable[HiddenMemory]) -> int:
        """Bytes of the keys and values of these memories, which are all of this drafter's."""
        return self.network.engine.memory_bytes

    def scores(self, memory: HiddenMemory, root: Int[Tensor, "row"]) -> Float[Tensor, "row depth draft_vocab"]:
        """Scores of the block after each root; reads the hidden states that wait."""
        for row, known in zip(memory.store.rows, memory.lengths, strict=True):
            if len(row) != known:  # what came later was forgotten, or a pass was interrupted
                row.cut(known)
        hidden = [memory.unread_of(row) for row in range(len(root))]
        out: Float[Tensor, "row depth draft_vocab"] = self.network(
            input_ids=root.unsqueeze(1), memories=memory.store.rows, starts=memory.starts, hidden=hidden
        )
        memory.read()
        return out

    def below(
        self, scores: Float[Tensor, "row depth draft_vocab"], tokens: PerNode, depths: PerNode
    ) -> Float[Tensor, "row node draft_vocab"]:
        """Scores after nodes: those of their depths, and what their tokens add; -inf beyond the block."""
        (rows, nodes), (_, block, vocab) = tokens.shape, scores.shape
        if not self._adds:
            row = torch.arange(rows).unsqueeze(1)
            return scores[row, depths.clamp(max=block - 1)].masked_fill_((depths >= block).unsqueeze(-1), -torch.inf)
        given, at = tokens.contiguous(), depths.contiguous()
        out = torch.empty(rows, nodes, vocab)
        arguments = given.data_ptr(), at.data_ptr(), rows, nodes, scores.data_ptr(), block, out.data_ptr()
        succeed(library().add_markov(self.network.engine.handle, *arguments, free_threads()))
        return out
