"""The masked-block drafter as two OpenVINO graphs: one reads sources, the other fills blocks.

Inputs of the first: ``tokens`` [row, source], ``source_mask`` [row, 1, 1, source] (additive), ``masked`` [position] (masked
positions). Its outputs: ``memory`` [row, part, head, source, dim], the keys and values of the source, layer by layer, and
``answers`` [row, position, width], the attention of masked positions to the source. Inputs of the second: ``tokens`` and
``positions`` [row, token] (the block last), ``keep`` [kept] (indices of the block), ``mask`` [row, 1, 1, token],
``source_mask``, ``answers`` and the parts of the memory, ``source.0`` and so on. Its output: ``scores`` [row, kept, vocab].
"""

from __future__ import annotations

import copy
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from draftwood.runners.bart.layers import bias_of
from draftwood.runners.blocks.passes import BlockFilling, SourceReading
from draftwood.runners.openvino.graph import converting, float32_copy, traced
from draftwood.runners.openvino.network import CompiledGraph, check_precision, padded_length
from draftwood.runners.openvino.store import stored_graphs
from draftwood.runners.sources import Sources


@final
class OpenVinoPasses:
    """The functions as compiled graphs: a :class:`draftwood.runners.blocks.passes.MaskedBlockPasses`.

    They are not compared with the model, unlike a target, because the scores of a drafter affect only speed.

    Args:
        model: a drafter in evaluation mode, on the CPU, in float32 or bfloat16.

    Raises:
        ConfigError: OpenVINO is not installed, or does not support this number format or device.
        ModelError: the model cannot be converted.
    """

    def __init__(self, model: Any) -> None:
        check_precision(model)
        self._config, self._room = model.config, int(model.positions.num_embeddings)
        source, block = stored_graphs(model, {"source": source_graph, "block": block_graph})
        self._reading, self._filling = CompiledGraph(source, model), CompiledGraph(block, model)

    def another(self) -> OpenVinoPasses:
        found = copy.copy(self)
        found._reading, found._filling = self._reading.another(), self._filling.another()
        return found

    def width(self, longest: int) -> int:
        return padded_length(longest, self._room)

    def read(self, tokens: Tensor, mask: Tensor, positions: int) -> Sources:
        config, (rows, longest) = self._config, tokens.shape
        width = padded_length(longest, int(config.max_position_embeddings))
        tokens, mask = (pad(part, (0, width - longest)) for part in (tokens, mask))
        heads, dim = _heads(config)
        memory = torch.empty(rows, 2 * int(config.decoder_layers), heads, width, dim)
        answers = torch.empty(rows, positions, int(config.d_model))
        self._reading.put(tokens=tokens, source_mask=bias_of(mask, torch.float32), memory=memory, answers=answers)
        self._reading.put_list("masked", range(positions), np.int64)
        self._reading.run()
        return Sources(mask, memory=memory, answers=answers)

    def attach(self, sources: Sources) -> None:
        assert sources.memory is not None
        assert sources.answers is not None
        parts = {f"source.{i}": part for i, part in enumerate(sources.memory.unbind(1))}
        self._filling.put(source_mask=bias_of(sources.mask, torch.float32), answers=sources.answers, **parts)

    def fill(self, tokens: Tensor, positions: Tensor, seen: Tensor, count: int) -> Float[Tensor, "row count vocab"]:
        rows, width = tokens.shape
        scores = torch.empty(rows, count, int(self._config.vocab_size))
        self._filling.put(tokens=tokens, positions=positions, mask=bias_of(seen, torch.float32), scores=scores)
        self._filling.put_list("keep", range(width - count, width), np.int64)
        self._filling.run()
        return scores


def source_graph(model: Any) -> Any:
    """The first graph, as an ``openvino.Model`` in float32; raises a ModelError if the model cannot be traced."""
    rows, source = 2, 3
    with converting(model):
        return traced(
            SourceReading(float32_copy(model)),
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
    heads, dim = _heads(model.config)
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
        return traced(BlockFilling(float32_copy(model)), inputs, ["scores"])


def _heads(config: Any) -> tuple[int, int]:
    """Number and width of the layers' heads."""
    heads = int(config.decoder_attention_heads)
    return heads, int(config.d_model) // heads
