"""Encoder-decoder models like BART as two OpenVINO graphs: one reads sources, the other scores trees over them.

Inputs of the encoder: ``tokens`` [row, source] and ``source_mask`` [row, 1, 1, source] (additive). Its output: ``memory``
[row, part, head, source, dim], the decoder layers' keys and values of the sources, layer by layer. Inputs of the decoder:
those of :mod:`draftwood.runners.openvino.graph`, ``source_mask`` and the parts of the memory, ``source.0`` and so on. Its
output: ``scores`` [row, kept, vocab].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Int
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
from draftwood.runners.seq2seq.source import longest_source
from draftwood.runners.sources import Sources


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
        self._vocab = decoder.output("scores").partial_shape[2].get_length()
        self._longest = longest_source(model) or 0
        self.cache = GrowingMemory(self._decoder.request, spare_tokens(model, len(parts) // 2))

    def encode(self, tokens: Tensor, mask: Tensor) -> Sources:
        rows, longest = tokens.shape
        source = padded_length(longest, self._longest)
        tokens, mask = (nn.functional.pad(part, (0, source - longest)) for part in (tokens, mask))
        parts, heads, dim = self._sizes
        memory = torch.empty(rows, parts, heads, source, dim)
        self._encoder.put(tokens=tokens, source_mask=bias_of(mask, torch.float32), memory=memory)
        self._encoder.run()
        return Sources(mask, memory=memory)

    def attach(self, sources: Sources, kept: Sequence[int] | None = None) -> None:
        assert sources.memory is not None
        parts = {f"source.{i}": part for i, part in enumerate(sources.memory.unbind(1))}
        self._decoder.put(source_mask=bias_of(sources.mask, torch.float32), **parts)

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
            ["memory"],
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
    """The decoder's keys and values of the encoder's states."""

    def __init__(self, encoder: BartEncoder, layers: list[Layer]) -> None:
        super().__init__()
        self._encoder, self._layers = encoder, layers

    def forward(self, tokens: Tensor, source_mask: Tensor) -> Tensor:
        memory: Tensor = source_memory(self._layers, self._encoder.states(self._encoder.embedded(tokens), source_mask))
        return memory


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
