"""The forward of an encoder-decoder model, with the positions of each row's tree.

These decoders count positions themselves, so a node's position would be its slot. Shallow copies of the position modules
use those of the tree instead. Such a module is a table of absolute positions (Marian, BART, mBART, Pegasus, M2M100 and
similar models), or the relative bias of T5 (Raffel et al. 2020, arXiv 1910.10683).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, final, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from draftwood.runners.bart.layers import position_table
from draftwood.runners.cache import TreeCache, cache_argument
from draftwood.runners.forward import ForwardBatch, ForwardOutput, KVCache
from draftwood.runners.rows import remaining_rows
from draftwood.runners.seq2seq.module_copy import name_of, shallow_copy, with_parts
from draftwood.runners.seq2seq.source import Encoded, refusal


@runtime_checkable
class SourceDecoder(Protocol):
    """A decoder and the sources of its rows; ``cache`` holds the keys and values of the text.

    Attributes:
        bare: accepts batches without a mask, in which every token sees everything.
        recent: accepts masks over this round's slots only.
        dtype: type of its masks.
    """

    bare: bool
    recent: bool
    dtype: torch.dtype

    @property
    def cache(self) -> KVCache: ...

    def clear(self) -> None:
        """Remove all rows."""

    def add(self, source: Encoded) -> None:
        """Append rows with these sources."""

    def drop(self, rows: Sequence[int]) -> None:
        """Remove these rows; the others keep their order."""

    def read(self, batch: ForwardBatch, slot_positions: Callable[[], Int[Tensor, "row slot"]]) -> ForwardOutput:
        """Read a batch."""


@final
class PatchedDecoder:
    """The model's own forward, with the positions of the tree.

    Raises:
        ModelError, AttributeError, LookupError: the decoder has no known position module.
    """

    bare = recent = False

    def __init__(self, model: Any) -> None:
        self._head = _Head(model.get_output_embeddings())
        self._patches, parts = _patches(model.get_decoder())
        if not self._patches:
            raise refusal(model, "the positions of its decoder cannot be set, as they are no table and no biases like T5's")
        inside = name_of(model.get_decoder(), model)
        parts = {f"{inside}.{name}": part for name, part in parts.items()}
        self._model = with_parts(model, {**parts, name_of(model.get_output_embeddings(), model): self._head})
        self.dtype = model.dtype
        self.cache = TreeCache(len(layer_list(model.get_decoder())))
        self._source: Encoded | None = None
        self._memory = EncoderDecoderCache(self.cache, DynamicCache())

    def clear(self) -> None:
        self._source = None

    def add(self, source: Encoded) -> None:
        self._keep(source if self._source is None else self._source.joined(source))
        # The next forward computes the keys and values of all sources again.
        self._memory = EncoderDecoderCache(self.cache, DynamicCache())

    def drop(self, rows: Sequence[int]) -> None:
        assert self._source is not None
        stay = remaining_rows(len(self._source.tokens), rows)
        self._keep(self._source.picked(stay))
        device = self._source.states.device
        self._memory.cross_attention_cache.batch_select_indices(torch.tensor(stay, dtype=torch.long, device=device))

    def _keep(self, source: Encoded) -> None:
        self._source, self._bias = source, source.bias()

    def read(self, batch: ForwardBatch, slot_positions: Callable[[], Int[Tensor, "row slot"]]) -> ForwardOutput:
        assert self._source is not None
        self.cache.place(batch)
        self._head.keep = batch.keep
        for patch in self._patches:
            patch.place(batch.positions, slot_positions)
        out = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=self._source.states),
            attention_mask=None if self._bias is None else self._bias.expand(-1, -1, batch.tokens.shape[1], -1),
            decoder_input_ids=batch.tokens,
            decoder_attention_mask=batch.mask,
            use_cache=True,
            **cache_argument(self._model, self._memory),
        )
        return ForwardOutput(out.logits)


def layer_list(decoder: Any) -> nn.ModuleList:
    """The layers of a decoder; raises a LookupError if it has no list of layers."""
    for part in decoder.modules():
        if isinstance(part, nn.ModuleList):
            return part
    raise LookupError(f"{type(decoder).__name__} has no list of layers")


class _Head(nn.Module):
    """An output embedding that scores the last tokens only."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.keep = 1

    def forward(self, states: Tensor) -> Tensor:
        scores: Tensor = self.inner(states[:, -self.keep :])
        return scores


@runtime_checkable
class _Patch(Protocol):
    def place(self, positions: Tensor, slot_positions: Callable[[], Tensor]) -> None: ...


def _patches(decoder: Any) -> tuple[list[_Patch], dict[str, nn.Module]]:
    """The position modules of a decoder, and their replacements in a copy of it, by name."""
    if (table := position_table(decoder)) is not None:
        absolute = _Positions(*table)
        return [absolute], {"embed_positions": absolute}
    patches: list[_Patch] = []
    parts: dict[str, nn.Module] = {}
    for name, part in decoder.named_modules():
        if getattr(part, "has_relative_attention_bias", False) and hasattr(part, "compute_bias"):
            patch = _RelativeBias(part)
            patches.append(patch)
            parts[name] = copied = shallow_copy(part)
            copied.compute_bias = patch
    return patches, parts


class _Positions(nn.Module):
    """Embeddings of the positions of the tree's nodes, instead of those that the decoder counts."""

    def __init__(self, table: Tensor, offset: int) -> None:
        super().__init__()
        self._table, self._offset = (table,), offset  # in a tuple, so that it is no parameter of this module

    def place(self, positions: Tensor, slot_positions: Callable[[], Tensor]) -> None:
        self._found = nn.functional.embedding(positions + self._offset, self._table[0])

    def forward(self, *_: Any, **__: Any) -> Tensor:
        found: Tensor = self._found
        return found


class _RelativeBias:
    """The attention bias, from the distance between the positions of query and key."""

    def __init__(self, attention: Any) -> None:
        farthest = int(attention.relative_attention_max_distance)  # greater distances have the same bias
        with torch.inference_mode():
            bias = attention.compute_bias(farthest + 1, farthest + 1)
        self._table = bias[0, :, -1].flip(-1).T.contiguous()  # [distance, head]

    def place(self, positions: Tensor, slot_positions: Callable[[], Tensor]) -> None:
        distance = positions[:, :, None] - slot_positions()[:, None]
        self._bias: Tensor = self._table[distance.clamp_(0, len(self._table) - 1)].permute(0, 3, 1, 2)

    def __call__(self, *_: Any, **__: Any) -> Tensor:
        return self._bias
