"""Encoder-decoder models like BART as two OpenVINO graphs: one reads sources, the other scores trees over them.

Inputs of the encoder: ``tokens`` [row, source] and ``source_mask`` [row, 1, 1, source] (additive). Its outputs: ``states``
[row, source, width], and ``memory`` [row, part, head, source, dim], the decoder layers' keys and values of these states,
layer by layer. Inputs of the decoder: those of :mod:`draftwood.runners.openvino.graph`, ``source_mask`` and the parts of
the memory, ``source.0`` and so on. Its output: ``scores`` [row, kept, vocab].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from draftwood.core.errors import ModelError
from draftwood.runners.bart.encoder import BartEncoder
from draftwood.runners.bart.layers import Layer, bias_of, by_layer, source_attention_of, source_memory
from draftwood.runners.forward import ForwardBatch, ForwardOutput
from draftwood.runners.openvino.graph import GraphMemory, converting, float32_copy, memory_names, stateful, traced
from draftwood.runners.openvino.memory import GrowingMemory, spare_tokens
from draftwood.runners.openvino.network import CompiledGraph, check_precision, padded_length
from draftwood.runners.openvino.store import stored_graphs
from draftwood.runners.seq2seq.bart_decoder import BartDecoder
from draftwood.runners.seq2seq.source import Encoded, longest_source


@final
class OpenVinoDecoder:
    """A decoder like BART's and its encoder, as graphs.

    The decoder holds the keys and values of the text; the encoder computes those of the sources.

    Args:
        model: a ``transformers`` text-to-text model in evaluation mode, on the CPU, in float32 or bfloat16.

    Raises:
        ConfigError: OpenVINO is not installed, or does not compute in this number format or on this device.
        ModelError: the model has another architecture, or cannot be converted.
    """

    bare = recent = True
    dtype = torch.float32

    def __init__(self, model: Any) -> None:
        check_precision(model)
        encoder, decoder = stored_graphs(model, {"encoder": encoder_graph, "decoder": decoder_graph})
        self._encoder, self._decoder = CompiledGraph(encoder, model), CompiledGraph(decoder, model)
        parts = [one.partial_shape for one in decoder.inputs if one.any_name.startswith("source.")]
        self._sizes = len(parts), parts[0][1].get_length(), parts[0][3].get_length()
        self._width = encoder.output("states").partial_shape[2].get_length()
        self._vocab = decoder.output("scores").partial_shape[2].get_length()
        self._longest = longest_source(model) or 0
        self.cache = GrowingMemory(self._decoder.request, spare_tokens(model, len(parts) // 2))
        self._source: Encoded | None = None

    def encode(self, tokens: Int[Tensor, "row longest"], mask: Bool[Tensor, "row longest"] | None) -> Encoded:
        """Encode padded sources, after more padding; ``mask`` is True at tokens, None without padding."""
        rows, longest = tokens.shape
        source = padded_length(longest, self._longest)
        if source > longest:
            mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
            tokens, mask = (nn.functional.pad(part, (0, source - longest)) for part in (tokens, mask))
        parts, heads, dim = self._sizes
        states = torch.empty(rows, source, self._width)
        memory = torch.empty(rows, parts, heads, source, dim)
        self._encoder.put(tokens=tokens, source_mask=_source_mask(mask, tokens.shape), states=states, memory=memory)
        self._encoder.run()
        return Encoded(tokens, states, mask, memory)

    def clear(self) -> None:
        self._source = None

    def add(self, source: Encoded) -> None:
        self._attach(source if self._source is None else self._source.joined(source))

    def drop(self, rows: Sequence[int]) -> None:
        assert self._source is not None
        self._attach(self._source.without(rows))

    def read(self, batch: ForwardBatch, slot_positions: Callable[[], Int[Tensor, "row slot"]]) -> ForwardOutput:
        inputs = self.cache.inputs(batch)
        rows, new = inputs.tokens.shape
        scores = torch.empty(rows, batch.keep, self._vocab)
        self._decoder.fill(tokens=inputs.tokens, positions=inputs.positions)
        self._decoder.put(mask=inputs.mask, scores=scores)
        self._decoder.put_list("keep", range(new - batch.keep, new), np.int64)
        self._decoder.put_list("rows", inputs.rows, np.int32)
        self._decoder.run()
        return ForwardOutput(scores)

    def _attach(self, source: Encoded) -> None:
        """Set the sources of the graph. It holds these tensors, so none may be empty."""
        assert source.memory is not None
        self._source = source
        if not len(source.tokens):
            return
        parts = {f"source.{i}": part for i, part in enumerate(source.memory.unbind(1))}
        self._decoder.put(source_mask=_source_mask(source.mask, source.tokens.shape), **parts)


def encoder_graph(model: Any) -> Any:
    """The encoder as an ``openvino.Model`` in float32; raises a ModelError if it cannot be converted."""
    model = float32_copy(model)
    encoder, decoder = _bart(model)
    rows, source = 2, 3
    with converting(model):
        return traced(
            _Reading(encoder, decoder.layers),
            {
                "tokens": (torch.ones(rows, source, dtype=torch.long), [-1, -1]),
                "source_mask": (torch.zeros(rows, 1, 1, source), [-1, 1, 1, -1]),
            },
            ["states", "memory"],
        )


def decoder_graph(model: Any) -> Any:
    """The decoder as an ``openvino.Model`` in float32; raises a ModelError if it cannot be converted."""
    model = float32_copy(model)
    _encoder, decoder = _bart(model)
    rows, new, old, source = 2, 3, 4, 5
    inputs = {
        "tokens": (torch.ones(rows, new, dtype=torch.long), [-1, -1]),
        "positions": (torch.tensor([[old, old + 1, old + 1]] * rows), [-1, -1]),
        "mask": (torch.zeros(rows, 1, new, old + new), [-1, 1, -1, -1]),
        "keep": (torch.tensor([1, 2]), [-1]),
        "source_mask": (torch.zeros(rows, 1, 1, source), [-1, 1, 1, -1]),
    }
    past, present = memory_names(len(decoder.layers))
    sources = [f"source.{i}" for i in range(len(past))]
    for names, length in ((sources, source), (past, old)):
        for name, (heads, dim) in zip(names, _sizes(decoder.layers), strict=True):
            inputs[name] = torch.zeros(rows, heads, length, dim), [-1, heads, -1, dim]
    with converting(model):
        return stateful(traced(_Scoring(decoder), inputs, ["scores", *present]), len(decoder.layers))


class _Reading(nn.Module):
    """An encoder, and the decoder's keys and values of its states."""

    def __init__(self, encoder: BartEncoder, layers: list[Layer]) -> None:
        super().__init__()
        self._encoder, self._layers = encoder, layers

    def forward(self, tokens: Tensor, source_mask: Tensor) -> tuple[Tensor, Tensor]:
        states = self._encoder.states(self._encoder.embedded(tokens), source_mask)
        return states, source_memory(self._layers, states)


class _Scoring(nn.Module):
    """A decoder as a function of tensors."""

    def __init__(self, decoder: BartDecoder) -> None:
        super().__init__()
        self._decoder = decoder

    def forward(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, keep: Tensor, source_mask: Tensor, *parts: Tensor
    ) -> tuple[Tensor, ...]:
        half = len(parts) // 2
        source, memory = parts[:half], GraphMemory(parts[half:])
        self._decoder.set_source(by_layer(source), source_mask)
        states = self._decoder.states(memory, tokens, positions, mask).index_select(1, keep)
        return (self._decoder.scores(states), *memory.present)


def _bart(model: Any) -> tuple[BartEncoder, BartDecoder]:
    """Direct implementations of encoder and decoder."""
    try:
        return BartEncoder(model.get_encoder()), BartDecoder(model)
    except (ModelError, AttributeError, LookupError) as error:
        raise ModelError(
            f"model type {model.config.model_type!r} cannot be converted for OpenVINO: its encoder or decoder differs "
            f"from those of Marian, BART and M2M100 ({error}). Use --backend torch"
        ) from error


def _sizes(layers: list[Layer]) -> list[tuple[int, int]]:
    """Number and width of heads of the keys and values, layer by layer."""
    sizes = []
    for layer in layers:
        source = source_attention_of(layer)
        sizes += [(layer.heads, weight.shape[1] // layer.heads) for weight, _ in (source.key, source.value)]
    return sizes


def _source_mask(mask: Tensor | None, shape: Sequence[int]) -> Float[Tensor, "row 1 1 source"]:
    """The additive mask of the sources."""
    return torch.zeros(shape[0], 1, 1, shape[1]) if mask is None else bias_of(mask, torch.float32)
