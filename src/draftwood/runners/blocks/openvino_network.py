"""The masked-block drafter as two OpenVINO graphs: one reads sources, the other fills blocks.

Inputs of the first: ``tokens`` [row, source], ``source_mask`` [row, 1, 1, source] (additive), ``masked`` [position] (masked
positions). Its outputs: ``memory`` [row, part, head, source, dim], the keys and values of the source, layer by layer, and
``answers`` [row, position, width], the attention of masked positions to the source. Inputs of the second: ``tokens`` and
``positions`` [row, token] (the block last), ``keep`` [kept] (indices of the block), ``mask`` [row, 1, 1, token],
``source_mask``, ``answers`` and the parts of the memory, ``source.0`` and so on. Its output: ``scores`` [row, kept, vocab].
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import embedding

from draftwood.runners.bart.encoder import BartEncoder
from draftwood.runners.bart.layers import (
    attend,
    bias_of,
    by_layer,
    layer_of,
    product,
    source_memory,
    split,
    transposed,
    weights_of,
)
from draftwood.runners.blocks.bart_network import read_block
from draftwood.runners.openvino.graph import converting, float32_copy, traced
from draftwood.runners.openvino.network import CompiledGraph, check_precision, padded_length
from draftwood.runners.openvino.store import stored_graphs
from draftwood.runners.rows import padded_rows, remaining, remaining_rows


class _Read(NamedTuple):
    """The outputs of the first graph, and its mask."""

    mask: Float[Tensor, "row 1 1 source"]
    memory: Float[Tensor, "row part head source dim"]
    answers: Float[Tensor, "row position width"]


@final
class OpenVinoBlocks:
    """A :class:`draftwood.runners.blocks.bart_network.BlockNetwork` of compiled graphs.

    It is not compared with the model, unlike a target, because the scores of a drafter affect only speed.

    Args:
        model: a drafter in evaluation mode, on the CPU, in float32 or bfloat16.

    Raises:
        ConfigError: OpenVINO is not installed, or does not support this number format or device.
        ModelError: the model cannot be converted.
    """

    def __init__(self, model: Any) -> None:
        check_precision(model)
        self.model = model
        source, block = stored_graphs(model, {"source": source_graph, "block": block_graph})
        self._reading, self._filling = CompiledGraph(source, model), CompiledGraph(block, model)
        self._heads, self._dim = _heads(model)
        self._room = int(model.positions.num_embeddings)
        self.clear()

    def clear(self) -> None:
        self._sources: list[Sequence[int]] = []
        self._read: _Read | None = None  # of the first rows

    def fresh(self) -> OpenVinoBlocks:
        found = copy.copy(self)
        found._reading, found._filling = self._reading.another(), self._filling.another()
        found.clear()
        return found

    def add(self, sources: Sequence[Sequence[int]]) -> None:
        self._sources += sources

    def drop(self, rows: Sequence[int]) -> None:
        self._sources = remaining(self._sources, rows)
        if self._read is not None:
            stay = torch.tensor(remaining_rows(len(self._read.mask), rows), dtype=torch.long)
            self._attach(_Read(*(part.index_select(0, stay) for part in self._read)))

    def scores(self, texts: Sequence[Sequence[int]], count: int) -> Float[Tensor, "row count vocab"]:
        config, longest = self.model.config, max(map(len, texts))
        self._read_sources(longest + count)
        width = padded_length(longest, self._room)
        block = [int(config.mask_token_id)] * count
        tokens = [[*text, *[int(config.pad_token_id)] * (width - len(text)), *block] for text in texts]
        positions = [[*(min(i, len(t) - 1) for i in range(width)), *range(len(t), len(t) + count)] for t in texts]
        seen = [[*(i < len(text) for i in range(width)), *[True] * count] for text in texts]
        scores = torch.empty(len(texts), count, int(config.vocab_size))
        self._filling.put(
            tokens=torch.tensor(tokens),
            positions=torch.tensor(positions),
            mask=bias_of(torch.tensor(seen), torch.float32),
            scores=scores,
        )
        self._filling.put_list("keep", range(width, width + count), np.int64)
        self._filling.run()
        return scores

    def _read_sources(self, positions: int) -> None:
        """Encode new sources, and compute answers for at least the first ``positions`` masked positions, in portions."""
        old = self._read
        if old is None or old.answers.shape[1] < positions:
            self._attach(self._new(self._sources, min(self._room, positions + int(self.model.config.block))))
        elif len(old.mask) < len(self._sources):
            new = self._new(self._sources[len(old.mask) :], old.answers.shape[1])
            padding = nn.functional.pad
            missing = new.mask.shape[3] - old.mask.shape[3]
            masks = (
                padding(old.mask, (0, max(0, missing)), value=-torch.inf),
                padding(new.mask, (0, max(0, -missing)), value=-torch.inf),
            )
            self._attach(
                _Read(torch.cat(masks), padded_rows(old.memory, new.memory, 3), torch.cat([old.answers, new.answers]))
            )

    def _new(self, sources: Sequence[Sequence[int]], positions: int) -> _Read:
        longest = padded_length(max(map(len, sources)), int(self.model.config.max_position_embeddings))
        padding = int(self.model.config.pad_token_id)
        tokens = torch.tensor([[*source, *[padding] * (longest - len(source))] for source in sources])
        mask = bias_of(torch.tensor([[i < len(source) for i in range(longest)] for source in sources]), torch.float32)
        memory = torch.empty(len(tokens), 2 * len(self.model.layers), self._heads, longest, self._dim)
        answers = torch.empty(len(tokens), positions, int(self.model.config.d_model))
        self._reading.put(tokens=tokens, source_mask=mask, memory=memory, answers=answers)
        self._reading.put_list("masked", range(positions), np.int64)
        self._reading.run()
        return _Read(mask, memory, answers)

    def _attach(self, read: _Read) -> None:
        """Set the sources of the second graph. It holds these tensors, so none may be empty."""
        self._read = read
        if not len(read.mask):
            return
        parts = {f"source.{i}": part for i, part in enumerate(read.memory.unbind(1))}
        self._filling.put(source_mask=read.mask, answers=read.answers, **parts)


def source_graph(model: Any) -> Any:
    """The first graph, as an ``openvino.Model`` in float32; raises a ModelError if the model cannot be traced."""
    rows, source = 2, 3
    with converting(model):
        return traced(
            _Reading(float32_copy(model)),
            {
                "tokens": (torch.ones(rows, source, dtype=torch.long), [-1, -1]),
                "source_mask": (torch.zeros(rows, 1, 1, source), [-1, 1, 1, -1]),
                "masked": (torch.arange(4), [-1]),
            },
            ["memory", "answers"],
        )


def block_graph(model: Any) -> Any:
    """The second graph, as an ``openvino.Model`` in float32; raises a ModelError if the model cannot be traced."""
    rows, token, source, width = 2, 6, 3, int(model.config.d_model)
    heads, dim = _heads(model)
    inputs = {
        "tokens": (torch.ones(rows, token, dtype=torch.long), [-1, -1]),
        "positions": (torch.arange(token).repeat(rows, 1), [-1, -1]),
        "keep": (torch.tensor([4, 5]), [-1]),
        "mask": (torch.zeros(rows, 1, 1, token), [-1, 1, 1, -1]),
        "source_mask": (torch.zeros(rows, 1, 1, source), [-1, 1, 1, -1]),
        "answers": (torch.zeros(rows, 8, width), [-1, -1, width]),
    }
    for part in range(2 * len(model.layers)):
        inputs[f"source.{part}"] = torch.zeros(rows, heads, source, dim), [-1, heads, -1, dim]
    with converting(model):
        return traced(_Filling(float32_copy(model)), inputs, ["scores"])


class _Reading(nn.Module):
    """The encoder, the layers' keys and values, and the attention of masked positions to the source."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._encoder, self._layers = BartEncoder(model.encoder), [layer_of(part) for part in model.layers]
        question = model.question
        self._heads, self._scale = question.num_heads, question.scaling
        self._query, self._key, self._value, self._out = (
            weights_of(part) for part in (question.q_proj, question.k_proj, question.v_proj, question.out_proj)
        )
        self._table = model.positions.weight

    def forward(self, tokens: Tensor, source_mask: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
        embedded = self._encoder.embedded(tokens)
        states = self._encoder.states(embedded, source_mask)
        queries = embedding(masked, self._table).unsqueeze(0).expand(tokens.shape[0], -1, -1)
        query, keys, values = (
            split(product(x, weights), self._heads)
            for x, weights in ((queries, self._query), (embedded, self._key), (embedded, self._value))
        )
        return source_memory(self._layers, states), attend(query, keys, values, source_mask, self._scale, self._out)


class _Filling(nn.Module):
    """The layers on prefix and block."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._words, self._scale = model.encoder.embed_tokens.weight, float(model.encoder.embed_scale)
        self._table = model.positions.weight
        self._layers = [layer_of(part) for part in model.layers]
        self._head = transposed(self._words), None

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        keep: Tensor,
        mask: Tensor,
        source_mask: Tensor,
        answers: Tensor,
        *parts: Tensor,
    ) -> Tensor:
        hidden = embedding(tokens, self._words) * self._scale + embedding(positions, self._table)
        block = positions.index_select(1, keep).unsqueeze(-1).expand(-1, -1, answers.shape[2])
        filled = hidden.index_select(1, keep) + answers.gather(1, block)
        hidden = torch.cat([hidden[:, : hidden.shape[1] - keep.shape[0]], filled], dim=1)
        states = read_block(self._layers, hidden, by_layer(parts), mask, source_mask)
        return product(states.index_select(1, keep), self._head)


def _heads(model: Any) -> tuple[int, int]:
    """Number and width of the layers' heads."""
    heads = int(model.config.decoder_attention_heads)
    return heads, int(model.config.d_model) // heads
