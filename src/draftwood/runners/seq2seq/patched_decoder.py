"""The forward of an encoder-decoder model, with the positions of each row's tree.

These decoders count positions themselves, so a node's position would be its slot. In a copy of the model, which shares the
weights, the position modules use those of the tree instead. Such a module is a table of absolute positions (Marian, BART,
mBART, Pegasus, M2M100 and similar models), or the relative bias of T5 (Raffel et al. 2020, arXiv 1910.10683).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from draftwood.runners.cache import TreeCache, cache_argument
from draftwood.runners.forward import ForwardBatch, ForwardOutput
from draftwood.runners.rows import Sources
from draftwood.runners.seq2seq.bart_decoder import layer_list, padding_bias, position_table
from draftwood.runners.seq2seq.source import refusal


@final
class PatchedDecoder:
    """The model's own forward, with the positions of the tree.

    Raises:
        ModelError, AttributeError, LookupError: the decoder has no known position module.
    """

    bare = False

    def __init__(self, model: Any) -> None:
        self._encoder, self.dtype = model.get_encoder(), model.dtype
        self._model = copy.deepcopy(model, {id(part): part for part in (*model.parameters(), *model.buffers())})
        decoder = self._model.get_decoder()
        self._patches = _patched(decoder)
        if not self._patches:
            raise refusal(model, "the positions of its decoder cannot be set, as they are no table and no biases like T5's")
        self._head = _Head(self._model.get_output_embeddings())
        self._model.set_output_embeddings(self._head)
        self.cache = TreeCache(len(layer_list(decoder)))

    def encode(self, tokens: Tensor, mask: Tensor) -> Sources:
        return Sources(mask, states=self._encoder(input_ids=tokens, attention_mask=mask.long())[0])

    def attach(self, sources: Sources, kept: Sequence[int] | None = None) -> None:
        assert sources.states is not None
        self._states, self._bias = sources.states, padding_bias(sources.mask, self.dtype)
        if kept is None:  # the next forward computes the keys and values of all sources again
            self._memory = EncoderDecoderCache(self.cache, DynamicCache())
        else:
            self._memory.cross_attention_cache.batch_select_indices(torch.tensor(kept, device=sources.mask.device))

    def read(self, batch: ForwardBatch, slot_positions: Callable[[], Int[Tensor, "row slot"]]) -> ForwardOutput:
        self._head.keep = batch.keep
        for patch in self._patches:
            patch.place(batch.positions, slot_positions)
        out = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=self._states),
            attention_mask=None if self._bias is None else self._bias.expand(-1, -1, batch.tokens.shape[1], -1),
            decoder_input_ids=batch.tokens,
            decoder_attention_mask=batch.mask,
            use_cache=True,
            **cache_argument(self._model, self._memory),
        )
        return ForwardOutput(out.logits)


class _Head(nn.Module):
    """An output embedding that scores the last tokens only."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.keep = 1

    def forward(self, states: Tensor) -> Tensor:
        scores: Tensor = self.inner(states[:, -self.keep :])
        return scores


def _patched(decoder: Any) -> list[_Positions | _RelativeBias]:
    """Replace the position modules of a decoder; returns the replacements."""
    if (table := position_table(decoder)) is not None:
        decoder.embed_positions = absolute = _Positions(*table)
        return [absolute]
    patches: list[_Positions | _RelativeBias] = []
    for part in decoder.modules():
        if getattr(part, "has_relative_attention_bias", False) and hasattr(part, "compute_bias"):
            part.compute_bias = patch = _RelativeBias(part)
            patches.append(patch)
    return patches


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
