"""A causal model as the OpenVINO graph that GenAI reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from draftwood.core.errors import ModelError
from draftwood.runners.cache import TreeCache, cache_argument
from draftwood.runners.context import layer_count
from draftwood.runners.openvino.graph import (
    GraphMemory,
    converting,
    float32_copy,
    memory_names,
    openvino,
    stateful,
    traced,
)
from draftwood.runners.windows import sliding_window


def served(model: Any) -> Any:
    """The model as a graph with the inputs that GenAI knows: ``input_ids``, ``attention_mask`` [row, slot],
    ``position_ids`` and ``beam_idx``; every new token is scored, and sees those before it.

    Raises:
        ModelError: a model that cannot be converted, or has sliding attention.
    """
    if (window := sliding_window(model.config)) is not None:
        raise ModelError(f"GenAI cannot have the sliding window of {window.size} tokens of {model.config.model_type!r}")
    with converting(model):
        graph = _causal_graph(float32_copy(model))
    for ours, theirs in (("tokens", "input_ids"), ("positions", "position_ids"), ("rows", "beam_idx")):
        _rename(graph.input(ours), theirs)
    _rename(graph.output("scores"), "logits")
    from openvino import opset13 as ops

    ov = openvino()
    seen = ops.parameter([-1, -1], ov.Type.i64, name="attention_mask")
    seen.output(0).get_tensor().set_names({"attention_mask"})
    new, total = (_columns(ops, node) for node in (graph.input("input_ids").get_node(), seen))
    positions = ops.range(ops.subtract(total, new), total, ops.constant(1, ov.Type.i64), output_type="i64")
    node = graph.input("mask").get_node()
    mask = _mask(ops, ov, seen, positions, total)
    for reader in node.output(0).get_target_inputs():
        reader.replace_source_output(mask.output(0))
    graph.remove_parameter(node)
    graph.add_parameters([seen])
    graph.validate_nodes_and_infer_types()
    return graph


@final
class _CausalMemory(GraphMemory, Cache):  # type: ignore[misc]
    """The memory as a cache of ``transformers``."""

    def __init__(self, past: Sequence[Tensor]) -> None:
        Cache.__init__(self, layers=[])
        GraphMemory.__init__(self, past)

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return GraphMemory.update(self, keys, values, layer)

    def get_seq_length(self, layer_idx: int = 0) -> Any:  # a tensor during tracing
        return self.past[0].shape[2]

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[Any, int]:
        return self.past[0].shape[2] + query_length, 0

    @property
    def is_compileable(self) -> bool:
        return False


@final
class _Traceable(nn.Module):
    """The model as a function of tensors."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.eval()

    def forward(self, tokens: Tensor, positions: Tensor, mask: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        memory = _CausalMemory(past)
        arguments = cache_argument(self.model, memory)
        out = self.model(input_ids=tokens, position_ids=positions, attention_mask=mask, use_cache=True, **arguments)
        return (out.logits, *memory.present)


def _causal_graph(model: Any) -> Any:
    """Inputs ``tokens``, ``positions``, ``mask`` [row, 1, new, slot] (additive) and ``rows``, and the output ``scores``."""
    rows, new, old, layers = 2, 3, 4, layer_count(model.config)
    past, present = memory_names(layers)
    inputs = {
        "tokens": (torch.ones(rows, new, dtype=torch.long), [-1, -1]),
        "positions": (torch.tensor([[old, old + 1, old + 1]] * rows), [-1, -1]),
        "mask": (torch.zeros(rows, 1, new, old + new), [-1, 1, -1, -1]),
    }
    for name, (heads, width) in zip(past, _memory_sizes(model, layers), strict=True):
        inputs[name] = torch.zeros(rows, heads, old, width), [-1, heads, -1, width]
    return stateful(traced(_Traceable(model), inputs, ["scores", *present]), layers)


def _memory_sizes(model: Any, layers: int) -> list[tuple[int, int]]:
    """Number and width of heads of the keys and values, layer by layer, from one small forward."""
    memory, pair = TreeCache(layers), torch.tensor([[0, 1]])
    with torch.inference_mode():
        arguments = cache_argument(model, memory)
        model(input_ids=pair, position_ids=pair, attention_mask=torch.zeros(1, 1, 2, 2), use_cache=True, **arguments)
    if not memory.buffers:
        raise ValueError("it keeps no keys and values")
    return [(buffer.shape[2], buffer.shape[4]) for buffer in memory.buffers[0]] * layers


def _columns(ops: Any, node: Any) -> Any:
    return ops.gather(ops.shape_of(node), ops.constant(1), ops.constant(0))


def _mask(ops: Any, ov: Any, seen: Any, positions: Any, total: Any) -> Any:
    """Additive [row, 1, new, slot]: slots after the new token's own position and those of padding are hidden."""
    zero = ops.constant(0, ov.Type.i64)
    slots = ops.range(zero, total, ops.constant(1, ov.Type.i64), output_type="i64")
    later = ops.greater(ops.unsqueeze(slots, ops.constant([0])), ops.unsqueeze(positions, ops.constant([1])))
    padding = ops.equal(ops.unsqueeze(seen, ops.constant([1, 2])), zero)
    hidden = ops.logical_or(padding, ops.unsqueeze(later, ops.constant([0, 1])))
    lowest, nothing = (ops.constant(value, ov.Type.f32) for value in (torch.finfo(torch.float32).min, 0.0))
    return ops.select(hidden, lowest, nothing)


def _rename(port: Any, name: str) -> None:
    port.get_tensor().set_names({name})
    port.get_node().set_friendly_name(name)
