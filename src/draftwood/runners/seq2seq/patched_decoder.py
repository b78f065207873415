"""The decoder of an encoder-decoder model, driven by positions: its own forward with the positions of each row's tree.

These decoders count their positions themselves, so a node's position would be its slot. Shallow copies of the modules that
look positions up take those of the tree instead: a table of absolute positions (Marian, BART, mBART, Pegasus, M2M100 and
their kin), or the relative bias of T5 (Raffel et al. 2020, arXiv 1910.10683).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, final, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from draftwood.core.errors import ModelError
from draftwood.runners.bart.layers import position_table
from draftwood.runners.cache import TreeCache
from draftwood.runners.rows import staying
from draftwood.runners.seq2seq.source import Encoded
from draftwood.runners.seq2seq.twin import name_of, twin, with_parts
from draftwood.runners.slots import ForwardBatch, ForwardOutput, KVCache


@runtime_checkable
class SourceDecoder(Protocol):
    """A decoder and its memory of the rows' sources. Keys and values of the text are in ``cache``, whose rows a
    :class:`draftwood.runners.slots.SlotTable` keeps.

    Attributes:
        bare: a batch without a mask is one in which every token sees everything.
        recent: masks over this round's slots are enough.
        dtype: of the masks that it wants.
    """

    bare: bool
    recent: bool
    dtype: torch.dtype

    @property
    def cache(self) -> KVCache: ...

    def clear(self) -> None:
        """All rows leave."""
        ...

    def add(self, source: Encoded) -> None:
        """New rows, behind those that are there, with these sources."""
        ...

    def drop(self, rows: Sequence[int]) -> None:
        """These rows leave; the others keep their order."""
        ...

    def read(
        self, batch: ForwardBatch, slot_positions: Callable[[], Int[Tensor, "row slot"]], *, hidden: bool
    ) -> ForwardOutput:
        """Read a batch; its hidden states, if wanted, are what the output embedding gets."""
        ...


@final
class PatchedDecoder:
    """A model's own forward, with the positions of the tree.

    Raises:
        ModelError, AttributeError, LookupError: nothing in the decoder looks positions up in a way that is known here.
    """

    bare = recent = False

    def __init__(self, model: Any) -> None:
        self._head = _Head(model.get_output_embeddings())
        self._patches, parts = _patches(model.get_decoder())
        if not self._patches:
            raise ModelError(f"the decoder of {model.config.model_type!r} has no position embedding that is known here")
        inside = name_of(model.get_decoder(), model)
        parts = {f"{inside}.{name}": part for name, part in parts.items()}
        self._twin = with_parts(model, {**parts, name_of(model.get_output_embeddings(), model): self._head})
        self.dtype = model.dtype
        self.cache = TreeCache(len(layer_list(model.get_decoder())))
        self._source: Encoded | None = None
        self._memory = EncoderDecoderCache(self.cache, DynamicCache())

    def clear(self) -> None:
        self._source = None

    def add(self, source: Encoded) -> None:
        self._keep(source if self._source is None else self._source.joined(source))
        # The layers make the keys and values of all sources again in the next forward.
        self._memory = EncoderDecoderCache(self.cache, DynamicCache())

    def drop(self, rows: Sequence[int]) -> None:
        assert self._source is not None
        stay = torch.tensor(staying(len(self._source.tokens), rows), dtype=torch.long, device=self._source.states.device)
        self._keep(self._source.without(rows))
        self._memory.cross_attention_cache.batch_select_indices(stay)

    def _keep(self, source: Encoded) -> None:
        self._source, self._bias = source, source.bias()

    def read(
        self, batch: ForwardBatch, slot_positions: Callable[[], Int[Tensor, "row slot"]], *, hidden: bool
    ) -> ForwardOutput:
        assert self._source is not None
        self.cache.place(batch)
        self._head.keep = batch.keep
        for patch in self._patches:
            patch.place(batch.positions, slot_positions)
        out = self._twin(
            encoder_outputs=BaseModelOutput(last_hidden_state=self._source.states),
            attention_mask=None if self._bias is None else self._bias.expand(-1, -1, batch.tokens.shape[1], -1),
            decoder_input_ids=batch.tokens,
            decoder_attention_mask=batch.mask,
            past_key_values=self._memory,
            use_cache=True,
        )
        return ForwardOutput(out.logits, self._head.states if hidden else None)


def layer_list(decoder: Any) -> nn.ModuleList:
    """The layers of a decoder.

    Raises:
        ModelError: it has no list of layers.
    """
    for part in decoder.modules():
        if isinstance(part, nn.ModuleList):
            return part
    raise ModelError(f"{type(decoder).__name__} has no list of layers")


class _Head(nn.Module):
    """An output embedding that scores the last tokens only, and remembers what it was given."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.keep = 1

    def forward(self, states: Tensor) -> Tensor:
        self.states = states
        scores: Tensor = self.inner(states[:, -self.keep :])
        return scores


@runtime_checkable
class _Patch(Protocol):
    def place(self, positions: Tensor, slot_positions: Callable[[], Tensor]) -> None: ...


def _patches(decoder: Any) -> tuple[list[_Patch], dict[str, nn.Module]]:
    """Whatever looks positions up in a decoder, and what stands in its place in a copy of the decoder."""
    if (table := position_table(decoder)) is not None:
        absolute = _Positions(*table)
        return [absolute], {"embed_positions": absolute}
    patches: list[_Patch] = []
    parts: dict[str, nn.Module] = {}
    for name, part in decoder.named_modules():
        if getattr(part, "has_relative_attention_bias", False) and hasattr(part, "compute_bias"):
            patch = _RelativeBias(part)
            patches.append(patch)
            parts[name] = copied = twin(part)
            copied.compute_bias = patch
    return patches, parts


class _Positions(nn.Module):
    """The embeddings of the positions that the tree's nodes have, whatever the decoder counts."""

    def __init__(self, table: Tensor, offset: int) -> None:
        super().__init__()
        self._table, self._offset = (table,), offset  # hidden from the module: it belongs to another

    def place(self, positions: Tensor, slot_positions: Callable[[], Tensor]) -> None:
        self._found = nn.functional.embedding(positions + self._offset, self._table[0])

    def forward(self, *_: Any, **__: Any) -> Tensor:
        found: Tensor = self._found
        return found


class _RelativeBias:
    """The bias of every query for every key, from the distance of their positions in the text."""

    def __init__(self, attention: Any) -> None:
        farthest = int(attention.relative_attention_max_distance)  # the bias of all greater distances is that of this one
        with torch.inference_mode():
            bias = attention.compute_bias(farthest + 1, farthest + 1)
        self._table = bias[0, :, -1].flip(-1).T.contiguous()  # [distance, head]

    def place(self, positions: Tensor, slot_positions: Callable[[], Tensor]) -> None:
        distance = positions[:, :, None] - slot_positions()[:, None]
        self._bias: Tensor = self._table[distance.clamp_(0, len(self._table) - 1)].permute(0, 3, 1, 2)

    def __call__(self, *_: Any, **__: Any) -> Tensor:
        return self._bias
