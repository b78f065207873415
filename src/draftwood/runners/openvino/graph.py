"""A Hugging Face causal model as an OpenVINO graph that scores trees and keeps its own keys and values.

Inputs: ``tokens`` and ``positions`` [row, new], ``mask`` [row, 1, new, slot] (additive, over all slots, the new ones last),
``keep`` [kept] (which of the new tokens are scored) and ``rows`` [row] (whose keys and values go on). Output: ``scores``
[row, kept, vocab].
"""

from __future__ import annotations

import copy
import inspect
import io
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import cache
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.cache_utils import Cache

from draftwood.core.errors import ConfigError, ModelError
from draftwood.runners.cache import TreeCache
from draftwood.runners.context import layer_count


@cache
def openvino() -> Any:
    """The ``openvino`` package, which may send no report of its use from here.

    Raises:
        ConfigError: it is not installed.
    """
    return _silent_import("openvino", "openvino")


@cache
def core() -> Any:
    """The process's only ``openvino.Core``, kept to its end.

    Each one loads a CPU plugin of its own, which gives the thread another stack for signal handlers and, unloaded, puts back
    the one it found. Plugins that are not unloaded in reverse order leave a stack that is gone, and the next signal, such
    as Ctrl-C, ends the interpreter.

    Raises:
        ConfigError: OpenVINO is not installed.
    """
    return openvino().Core()


def _silent_import(name: str, extra: str) -> Any:
    """Import a package of OpenVINO's; without ``openvino_telemetry`` they have nothing to report with."""
    before = sys.modules.get("openvino_telemetry")
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # an import of it fails
    try:
        return __import__(name)
    except ImportError as error:
        raise ConfigError(
            f"this needs the package {name}, which cannot be imported ({error}); install it with: "
            f'pip install "draftwood[{extra}]"'
        ) from error
    finally:
        del sys.modules["openvino_telemetry"]
        if before is not None:
            sys.modules["openvino_telemetry"] = before


def shared(values: Tensor) -> Any:
    """An ``openvino.Tensor`` over the memory of these values, which lie in order; it does not keep them alive."""
    return openvino().Tensor(values.numpy(), shared_memory=True)


def graph_of(model: Any) -> Any:
    """The model as an ``openvino.Model``, in float32 whatever the model's number format.

    Raises:
        ConfigError: OpenVINO is not installed.
        ModelError: the model cannot be traced; says why.
    """
    kind = model.config.model_type
    if experts := _experts(model.config):
        raise ModelError(
            f"model type {kind!r} cannot be converted for OpenVINO: it has experts ({experts}), and which of them work "
            "depends on the text, which a fixed graph cannot follow. Use --backend torch"
        )
    with converting(model):
        return stateful(_traced(model), layer_count(model.config))


def plain(model: Any) -> Any:
    """A copy in float32 without gradients, to be traced; weights that are float32 already are shared."""
    known: dict[int, Any] = {id(w): nn.Parameter(w.detach().float(), requires_grad=False) for w in model.parameters()}
    known |= {id(b): b.detach().float() for b in model.buffers() if b.is_floating_point()}
    return copy.deepcopy(model, known)


@contextmanager
def converting(model: Any) -> Iterator[None]:
    """What fails within says that this model cannot be converted, and why.

    Raises:
        ModelError: whatever was raised, but no ConfigError.
    """
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
    """One line; OpenVINO puts what happened below a heading."""
    _heading, _below, inner = str(error).partition("Exception:\n")
    lines = (inner or str(error)).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def _experts(config: Any) -> str | None:
    """The setting that says how many experts there are, if there are any."""
    found = config.get_text_config().to_dict()
    counts = {n: v for n, v in found.items() if "experts" in n and "per_tok" not in n and type(v) is int and v > 1}
    return next((f"{name}={value}" for name, value in counts.items()), None)


@final
class GraphMemory(Cache):  # type: ignore[misc]
    """Keys and values that come in as tensors and go out as longer ones."""

    def __init__(self, past: Sequence[Tensor]) -> None:
        super().__init__(layers=[])
        self.past = past  # keys and values of every layer in turn
        self.present = list(past)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        places = 2 * layer_idx, 2 * layer_idx + 1
        for place, new in zip(places, (key_states, value_states), strict=True):
            self.present[place] = torch.cat([self.past[place], new], dim=2)
        return self.present[places[0]], self.present[places[1]]

    def get_seq_length(self, layer_idx: int = 0) -> Any:  # a tensor while the model is traced, as all sizes are
        return self.past[0].shape[2]

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[Any, int]:
        return self.past[0].shape[2] + query_length, 0

    @property
    def is_compileable(self) -> bool:
        return False


def can_keep(model: Any) -> bool:
    """Whether the model can be asked for the scores of some tokens only."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


@final
class _Traceable(nn.Module):
    """The model as a function of tensors."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.train(model.training)
        self._can_keep = can_keep(model)

    def forward(
        self,
        tokens: Int[Tensor, "row new"],
        positions: Int[Tensor, "row new"],
        mask: Float[Tensor, "row 1 new slot"],
        keep: Int[Tensor, "kept"],
        *past: Tensor,
    ) -> tuple[Tensor, ...]:
        memory = GraphMemory(past)
        only = {"logits_to_keep": keep} if self._can_keep else {}
        scores = self.model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=memory,
            use_cache=True,
            **only,
        ).logits
        return (scores if self._can_keep else scores.index_select(1, keep), *memory.present)


def memory_names(layers: int) -> tuple[list[str], list[str]]:
    """Of the keys and values that come in and go out."""
    return [f"past.{i}" for i in range(2 * layers)], [f"present.{i}" for i in range(2 * layers)]


def _traced(model: Any) -> Any:
    """A graph without state, with names and free sizes."""
    if any(weight.dtype != torch.float32 for weight in model.parameters()):
        model = plain(model)
    rows, new, old, layers = 2, 3, 4, layer_count(model.config)
    sizes = memory_sizes(model, layers)
    past, present = memory_names(layers)
    inputs = {
        "tokens": (torch.ones(rows, new, dtype=torch.long), [-1, -1]),
        "positions": (torch.tensor([[old, old + 1, old + 1]] * rows), [-1, -1]),
        "mask": (torch.zeros(rows, 1, new, old + new), [-1, 1, -1, -1]),
        "keep": (torch.tensor([1, 2]), [-1]),
    }
    for name, (heads, width) in zip(past, sizes, strict=True):
        inputs[name] = torch.zeros(rows, heads, old, width), [-1, heads, -1, width]
    return traced(_Traceable(model), inputs, ["scores", *present])


def traced(function: nn.Module, inputs: Mapping[str, tuple[Tensor, list[int]]], outputs: Sequence[str]) -> Any:
    """A function of tensors as an ``openvino.Model`` without state.

    Args:
        function: its weights want no gradients, or are its parameters.
        inputs: in its order, by the names they get: an example, and the shape, -1 where a size is free.
        outputs: names of what it returns.
    """
    ov = openvino()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the tracer's, about sizes that are the same for every text
        graph = ov.convert_model(function, example_input=tuple(example for example, _shape in inputs.values()))
    for side, names in ((graph.inputs, [*inputs]), (graph.outputs, outputs)):
        for one, name in zip(side, names, strict=True):
            one.get_tensor().set_names({name})
    graph.reshape({name: ov.PartialShape(shape) for name, (_example, shape) in inputs.items()})
    return graph


def memory_sizes(model: Any, layers: int) -> list[tuple[int, int]]:
    """Heads and width of the keys and values of every layer in turn, by one small forward."""
    memory = TreeCache(layers)
    pair = torch.tensor([[0, 1]])
    with torch.inference_mode():
        model(
            input_ids=pair,
            position_ids=pair,
            attention_mask=torch.zeros(1, 1, 2, 2),
            past_key_values=memory,
            use_cache=True,
        )
    if memory.keys is None or memory.values is None:
        raise ValueError("it keeps no keys and values")
    return [(buffer.shape[2], buffer.shape[4]) for buffer in (memory.keys, memory.values)] * layers


def stateful(graph: Any, layers: int) -> Any:
    """A graph with keys and values as its own state, of the rows ``rows``, empty at first.

    The CPU plugin makes attention and its memory one operation if a gather of rows by an input of the graph lies between.
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
            node.set_arguments([ops.broadcast(ops.constant(0.0, ov.Type.f32), ops.concat([batch, *rest], 0))])
    graph.validate_nodes_and_infer_types()
    return graph


def rounded(graph: Any) -> Any:
    """The graph with weights of eight bits and a scale per channel; what it computes with stays as it was.

    Raises:
        ConfigError: ``nncf`` is not installed.
    """
    nncf = _silent_import("nncf", "int8")
    nncf.set_log_level(40)  # errors only
    with redirect_stdout(io.StringIO()):  # its progress bars
        return nncf.compress_weights(graph, mode=nncf.CompressWeightsMode.INT8_ASYM)
