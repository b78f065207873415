"""A causal model as the OpenVINO graph that GenAI reads."""

from __future__ import annotations

import copy
import gc
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, final

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from draftwood.core.errors import ModelError
from draftwood.runners.cache import TreeCache, cache_argument
from draftwood.runners.context import layer_count, sliding_window


@cache
def openvino() -> Any:
    """The ``openvino`` package, without ``openvino_telemetry``, so that it sends nothing.

    Raises:
        ImportError: it is not installed.
    """
    before = sys.modules.get("openvino_telemetry")
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # an import of it fails
    try:
        return __import__("openvino")
    finally:
        del sys.modules["openvino_telemetry"]
        if before is not None:
            sys.modules["openvino_telemetry"] = before


def served(model: Any) -> Any:
    """The model as a graph with the inputs that GenAI knows: ``input_ids``, ``attention_mask`` [row, slot],
    ``position_ids`` and ``beam_idx``; every new token is scored, and sees those before it.

    Raises:
        ModelError: a model that cannot be converted, or has sliding attention.
    """
    if (window := sliding_window(model.config)) is not None:
        raise ModelError(f"GenAI cannot have the sliding window of {window.size} tokens of {model.config.model_type!r}")
    try:
        graph = _causal_graph(_float32_copy(model))
    except Exception as error:
        kind, reason = model.config.model_type, " ".join(str(error).split())
        raise ModelError(
            f"model type {kind!r} cannot be converted for OpenVINO ({type(error).__name__}: {reason})"
        ) from error
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


def _float32_copy(model: Any) -> Any:
    """A copy in float32 without gradients; it shares weights that are float32."""
    known: dict[int, Any] = {id(w): nn.Parameter(w.detach().float(), requires_grad=False) for w in model.parameters()}
    known |= {id(b): b.detach().float() for b in model.buffers() if b.is_floating_point()}
    return copy.deepcopy(model, known)


@final
class _GraphMemory(Cache):  # type: ignore[misc]
    """Keys and values as inputs of a graph, and the longer ones as its outputs."""

    def __init__(self, past: Sequence[Tensor]) -> None:
        super().__init__(layers=[])
        self.past = past  # keys and values, layer by layer
        self.present = list(past)

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        for part, new in enumerate((keys, values), 2 * layer):
            self.present[part] = torch.cat([self.past[part], new], dim=2)
        return self.present[2 * layer], self.present[2 * layer + 1]

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
        memory = _GraphMemory(past)
        arguments = cache_argument(self.model, memory)
        out = self.model(input_ids=tokens, position_ids=positions, attention_mask=mask, use_cache=True, **arguments)
        return (out.logits, *memory.present)


def _causal_graph(model: Any) -> Any:
    """Inputs ``tokens``, ``positions``, ``mask`` [row, 1, new, slot] (additive) and ``rows``, and the output ``scores``."""
    rows, new, old, layers = 2, 3, 4, layer_count(model.config)
    past, present = _memory_names(layers)
    inputs = {
        "tokens": (torch.ones(rows, new, dtype=torch.long), [-1, -1]),
        "positions": (torch.tensor([[old, old + 1, old + 1]] * rows), [-1, -1]),
        "mask": (torch.zeros(rows, 1, new, old + new), [-1, 1, -1, -1]),
    }
    for name, (heads, width) in zip(past, _memory_sizes(model, layers), strict=True):
        inputs[name] = torch.zeros(rows, heads, old, width), [-1, heads, -1, width]
    return _stateful(_traced(_Traceable(model), inputs, ["scores", *present]), layers)


def _memory_sizes(model: Any, layers: int) -> list[tuple[int, int]]:
    """Number and width of heads of the keys and values, layer by layer, from one small forward."""
    memory, pair = TreeCache(layers), torch.tensor([[0, 1]])
    with torch.inference_mode():
        arguments = cache_argument(model, memory)
        model(input_ids=pair, position_ids=pair, attention_mask=torch.zeros(1, 1, 2, 2), use_cache=True, **arguments)
    if not memory.buffers:
        raise ValueError("it keeps no keys and values")
    return [(buffer.shape[2], buffer.shape[4]) for buffer in memory.buffers[0]] * layers


def _memory_names(layers: int) -> tuple[list[str], list[str]]:
    """Names of the input and output keys and values."""
    return [f"past.{i}" for i in range(2 * layers)], [f"present.{i}" for i in range(2 * layers)]


def _traced(function: nn.Module, inputs: Mapping[str, tuple[Tensor, list[int]]], outputs: Sequence[str]) -> Any:
    """A function of tensors as an ``openvino.Model`` without state.

    Args:
        function: the function; its weights are parameters, or need no gradients.
        inputs: by name, in order: an example, and the shape with -1 for dynamic sizes.
        outputs: names of the outputs.
    """
    ov = openvino()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the tracer warns about sizes that are the same for every text
        examples = tuple(example for example, _shape in inputs.values())
        graph = ov.convert_model(function, example_input=examples)
    gc.collect()  # the tracer's parts refer to each other, and with them the traced copy of the model would stay
    for side, names in ((graph.inputs, [*inputs]), (graph.outputs, outputs)):
        for one, name in zip(side, names, strict=True):
            one.get_tensor().set_names({name})
    graph.reshape({name: ov.PartialShape(shape) for name, (_example, shape) in inputs.items()})
    return graph


def _stateful(graph: Any, layers: int) -> Any:
    """The graph with keys and values as state of the rows ``rows``, empty at first.

    The CPU plugin fuses attention with its state if a gather of rows by an input of the graph is between them.
    """
    from openvino import opset13 as ops
    from openvino._offline_transformations import apply_make_stateful_transformation

    ov = openvino()
    rows = ops.parameter([-1], ov.Type.i32, name="rows")
    rows.output(0).get_tensor().set_names({"rows"})
    graph.add_parameters([rows])
    past, present = _memory_names(layers)
    for name in past:
        source = graph.input(name)
        readers = source.get_target_inputs()
        gathered = ops.gather(source.get_node(), rows, ops.constant(0))
        for reader in readers:
            reader.replace_source_output(gathered.output(0))
    graph.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(graph, dict(zip(past, present, strict=True)))
    tokens = ops.shape_of(graph.input("tokens").get_node())
    batch = ops.gather(tokens, ops.constant([0]), ops.constant(0))
    for node in graph.get_ops():
        if node.get_type_name() == "ReadValue":
            _rows, heads, _slots, width = node.get_output_partial_shape(0)
            rest = [ops.constant([size], ov.Type.i64) for size in (heads.get_length(), 0, width.get_length())]
            zero = ops.constant(0.0, node.get_output_element_type(0))
            node.set_arguments([ops.broadcast(zero, ops.concat([batch, *rest], 0))])
    graph.validate_nodes_and_infer_types()
    return graph


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
