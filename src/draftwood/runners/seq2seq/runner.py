"""The runner of encoder-decoder models: it reads the source once, and the text like a causal model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, final

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from draftwood.core.draft_kind import SEQ2SEQ
from draftwood.core.errors import ModelError
from draftwood.core.scores import Scores
from draftwood.runners.cache import TreeCache, cache_argument
from draftwood.runners.forward import ForwardBatch, ForwardOutput
from draftwood.runners.protocols import Hidden, PerNode, ReadsAtOnce, Seen
from draftwood.runners.rows import Sources, sources_of
from draftwood.runners.seq2seq.bart_decoder import BartDecoder, layer_list, padding_bias, position_table
from draftwood.runners.seq2seq.source import (
    check_encoder_decoder,
    check_source_trees,
    longest_source,
    read_sources,
    refusal,
    source_text_limits,
)
from draftwood.runners.slots import SlotTable
from draftwood.sampling.rows import Row


@final
class PatchedDecoder:
    """The model's own forward, with the positions of the tree: decoders count positions, and a node's would be its slot.

    In a copy of the model, which shares the weights, the position modules use those of the tree instead. Such a module is a
    table of absolute positions (Marian, BART, mBART, Pegasus, M2M100 and similar models), or the relative bias of T5 (Raffel
    et al. 2020, arXiv 1910.10683).

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


@final
class Seq2SeqRunner(ReadsAtOnce):
    """An encoder-decoder language model with a tree cache, on the model's device and dtype.

    Args:
        model: a ``transformers`` text-to-text model in evaluation mode.
        check: compare two small trees with plain forwards of their paths.
        drafts: the model is a draft model, as in :class:`draftwood.runners.context.TextLimits`. It truncates long sources.

    Raises:
        ModelError: the architecture cannot score a tree; the message has the reason.
    """

    engine = "torch"
    kind = SEQ2SEQ
    pads = True

    def __init__(self, model: Any, *, check: bool = True, drafts: bool = False) -> None:
        check_encoder_decoder(model)
        self.model = model
        self._limits = source_text_limits(model, drafts=drafts)
        self.max_length, self.max_source = self._limits.longest, longest_source(model)
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self.device = model.device
        self.forward_seconds = 0.0
        self._sources: Sources | None = None
        try:
            self._use(BartDecoder, check)
        except ModelError:
            self._use(PatchedDecoder, check)

    def _use(self, kind: type[BartDecoder | PatchedDecoder], check: bool) -> None:
        try:
            self._decoder = decoder = kind(self.model)
        except (AttributeError, LookupError) as error:
            raise refusal(self.model, f"its decoder has an unknown structure ({error})") from error
        self._rows = SlotTable(decoder.cache, decoder.dtype, self.device, self.max_length, bare=decoder.bare)
        if check:
            check_source_trees(self)

    def clear(self) -> None:
        self._sources = None
        self._rows.clear()

    def set_rows(self, rows: Sequence[Row]) -> None:
        start, old = perf_counter(), self._rows.rows
        self._sources, kept = sources_of(self._sources, old, rows, self._encoded)
        if self._sources is not None and kept != list(range(len(old))):
            self._decoder.attach(self._sources, kept)
        self.forward_seconds += perf_counter() - start
        self._rows.set_rows(rows)

    def _encoded(self, rows: Sequence[Row]) -> Sources:
        sources = [row.source for row in rows]
        return self._decoder.encode(*read_sources(self.model, sources, self.max_source, drafts=self._limits.drafts))

    def extend(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Scores:
        self._limits.check(self._rows.longest_text)
        return self._rows.scores(tokens, depths, ancestors, self._forward)

    def commit(self, nodes: Sequence[Sequence[int]], hidden: Sequence[Hidden] | None = None) -> None:
        self._rows.commit(nodes)

    def _forward(self, batch: ForwardBatch) -> ForwardOutput:
        start = perf_counter()
        batch = batch._replace(tokens=self._limits.clamp(batch.tokens))
        with torch.inference_mode():
            output = self._decoder.cache.read(batch, lambda batch: self._decoder.read(batch, self._rows.slot_positions))
        self.forward_seconds += perf_counter() - start
        return output
