"""Functions of tensors as OpenVINO graphs, and graphs that hold the keys and values of a decoder."""

from __future__ import annotations

import copy
import gc
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from draftwood.core.errors import ConfigError, ModelError


@cache
def openvino() -> Any:
    """The ``openvino`` package, without ``openvino_telemetry``, so that it sends nothing.

    Raises:
        ConfigError: it is not installed.
    """
    before = sys.modules.get("openvino_telemetry")
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # an import of it fails
    try:
        return __import__("openvino")
    except ImportError as error:
        raise ConfigError(
            f"this needs the package openvino, which cannot be imported ({error}); install it with: "
            'pip install "draftwood[openvino]"'
        ) from error
    finally:
        del sys.modules["openvino_telemetry"]
        if before is not None:
            sys.modules["openvino_telemetry"] = before


@cache
def core() -> Any:
    """The only ``openvino.Core`` of the process, kept until it ends.

    Each core loads a CPU plugin, which replaces the thread's stack for signal handlers and restores the old one when it is
    unloaded. Plugins unloaded in another order leave a freed stack, and the next signal, such as Ctrl-C, crashes Python.
    """
    return openvino().Core()


def shared(values: Tensor) -> Any:
    """An ``openvino.Tensor`` that shares the memory of contiguous values, without keeping them alive."""
    return openvino().Tensor(values.numpy(), shared_memory=True)


def float32_copy(model: Any) -> Any:
    """A copy in float32 without gradients; it shares weights that are float32."""
    known: dict[int, Any] = {id(w): nn.Parameter(w.detach().float(), requires_grad=False) for w in model.parameters()}
    known |= {id(b): b.detach().float() for b in model.buffers() if b.is_floating_point()}
    return copy.deepcopy(model, known)


@contextmanager
def converting(model: Any) -> Iterator[None]:
    """Report any error except a ConfigError as a ModelError: this model cannot be converted."""
    kind = model.config.model_type
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise ModelError(
            f"model type {kind!r} cannot be converted for OpenVINO ({_reason(error)}). Use --backend torch"
        ) from error


def _reason(error: Exception) -> str:
    """The error in one line; OpenVINO writes the cause below a heading."""
    _heading, _below, inner = str(error).partition("Exception:\n")
    lines = (inner or str(error)).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


class GraphMemory:
    """Keys and values as inputs of a graph, and the longer ones as its outputs."""

    def __init__(self, past: Sequence[Tensor]) -> None:
        self.past = past  # keys and values, layer by layer
        self.present = list(past)

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """The keys and values of a layer with these new ones."""
        for part, new in enumerate((keys, values), 2 * layer):
            self.present[part] = torch.cat([self.past[part], new], dim=2)
        return self.present[2 * layer], self.present[2 * layer + 1]


def memory_names(layers: int) -> tuple[list[str], list[str]]:
    """Names of the input and output keys and values."""
    return [f"past.{i}" for i in range(2 * layers)], [f"present.{i}" for i in range(2 * layers)]


def traced(function: nn.Module, inputs: Mapping[str, tuple[Tensor, list[int]]], outputs: Sequence[str]) -> Any:
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


def stateful(graph: Any, layers: int) -> Any:
    """The graph with keys and values as state of the rows ``rows``, empty at first.

    The CPU plugin fuses attention with its state if a gather of rows by an input of the graph is between them.
    """
    from openvino import opset13 as ops
    from openvino._offline_transformations import apply_make_stateful_transformation

    ov = openvino()
    rows = ops.parameter([-1], ov.Type.i32, name="rows")
    rows.output(0).get_tensor().set_names({"rows"})
    graph.add_parameters([rows])
    past, present = memory_names(layers)
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
