"""The decoder of an encoder-decoder model, driven by positions: its own forward with the positions of each row's tree.

These decoders count their positions themselves, so a node would stand where its place in memory is. Shallow copies of the
modules that look positions up ask the tree instead: a table of absolute positions (Marian, BART, mBART, Pegasus, M2M100 and
their kin), or the relative bias of T5 (Raffel et al. 2020, arXiv 1910.10683).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from draftwood.core.errors import ModelError
from draftwood.runners.bart.layers import position_table
from draftwood.runners.cache import TreeCache
from draftwood.runners.seq2seq.source import Encoded
from draftwood.runners.seq2seq.twin import name_of, twin, with_parts
from draftwood.runners.slots import ForwardBatch, KVCache


class Scored(NamedTuple):
    """What a decoder says after the last tokens of a step."""

    states: Float[Tensor, "row keep width"]
    """As the output embedding gets them."""
    scores: Float[Tensor, "row keep vocab"]


@runtime_checkable
class SourceDecoder(Protocol):
    """A decoder and its memory: keys and values of the text in ``cache``, those of the sources beside it.

    Attributes:
        bare: a step without a mask is one in which every token sees everything.
        recent: masks over this round's slots are enough.
        dtype: of the masks that it wants.
    """

    bare: bool
    recent: bool
    dtype: torch.dtype

    @property
    def cache(self) -> KVCache: ...

    def start(self, source: Encoded) -> None:
        """Forget everything; read these sources from now on."""
        ...

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows."""
        ...

    def read(self, step: ForwardBatch, slot_positions: Callable[[], Int[Tensor, "row slot"]], keep: int) -> Scored:
        """Score the last ``keep`` tokens of a step."""
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
        self._layers = len(layer_list(model.get_decoder()))
        self.dtype = model.dtype

    def start(self, source: Encoded) -> None:
        self._source, self._bias = source, source.bias()
        self.cache = TreeCache(self._layers)
        self._cross = DynamicCache()
        self._memory = EncoderDecoderCache(self.cache, self._cross)

    def select(self, rows: Sequence[int]) -> None:
        self._source = self._source.select(rows)
        self._bias = self._source.bias()
        self.cache.select(rows)
        self._cross.batch_select_indices(torch.tensor(list(rows), device=self._source.states.device))

    def read(self, step: ForwardBatch, slot_positions: Callable[[], Int[Tensor, "row slot"]], keep: int) -> Scored:
        self.cache.place(step)
        self._head.keep = keep
        for patch in self._patches:
            patch.place(step.positions, slot_positions)
        out = self._twin(
            encoder_outputs=BaseModelOutput(last_hidden_state=self._source.states),
            attention_mask=None if self._bias is None else self._bias.expand(-1, -1, step.tokens.shape[1], -1),
            decoder_input_ids=step.tokens,
            decoder_attention_mask=step.mask,
            past_key_values=self._memory,
            use_cache=True,
        )
        return Scored(self._head.states, out.logits)


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
        self.states = states[:, -self.keep :]
        scores: Tensor = self.inner(self.states)
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
