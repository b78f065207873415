"""A Hugging Face causal model as an OpenVINO graph that scores trees and holds its keys and values.

Inputs: ``tokens`` and ``positions`` [row, new], ``mask`` [row, 1, new, slot] (additive, over all slots, the new ones last),
``sliding`` (the mask of layers with sliding attention, only if others have full attention), ``keep`` [kept] (indices of the
new tokens to score) and ``rows`` [row] (the row of the state that each row continues).
Output: ``scores`` [row, kept, vocab], and with hidden layers ``hidden`` [row, new, width].
"""

from __future__ import annotations

import gc
import inspect
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, final

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers.cache_utils import Cache

from draftwood.core.errors import ConfigError, ModelError
from draftwood.runners.cache import TreeCache, cache_argument
from draftwood.runners.context import context, layer_count
from draftwood.runners.openvino.copies import products, traceable
from draftwood.runners.openvino.kv_precision import bfloat16_memory
from draftwood.runners.windows import mask_argument, sliding_window


@cache
def openvino() -> Any:
    """The ``openvino`` package, without telemetry; raises a ConfigError if it is not installed."""
    return silent_import("openvino", "openvino")


@cache
def core() -> Any:
    """The only ``openvino.Core`` of the process, kept until it ends.

    Each core loads a CPU plugin, which replaces the thread's stack for signal handlers and restores the old one when it is
    unloaded. Plugins unloaded in another order leave a freed stack, and the next signal, such as Ctrl-C, crashes Python.
    """
    return openvino().Core()


def silent_import(name: str, extra: str) -> Any:
    """Import a package of OpenVINO's without ``openvino_telemetry``, so that it sends nothing."""
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
    """An ``openvino.Tensor`` that shares the memory of contiguous values, without keeping them alive."""
    return openvino().Tensor(values.numpy(), shared_memory=True)


def graph_of(model: Any, hidden_layers: Sequence[int] = ()) -> Any:
    """The model as an ``openvino.Model`` in float32; matrices, keys and values of a model in bfloat16 are in bfloat16.

    Its weights share the memory of the model, which must live as long.

    Args:
        hidden_layers: layers whose hidden states are an output, concatenated; as for :class:`TorchRunner`.

    Raises:
        ConfigError: OpenVINO is not installed.
        ModelError: the model cannot be traced; the message has the reason.
    """
    check_convertible(model)
    with converting(model):
        graph, layers = traced_model(model, hidden_layers), layer_count(model.config)
        return stateful(bfloat16_memory(graph, *memory_names(layers)) if model.dtype == torch.bfloat16 else graph, layers)


def check_convertible(model: Any) -> None:
    """Raise a ModelError if no fixed graph can be the model."""
    if experts := _experts(model.config):
        raise ModelError(
            f"model type {model.config.model_type!r} cannot be converted for OpenVINO: it has experts ({experts}), and a "
            "fixed graph cannot choose them by the text. Use --backend torch"
        )


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


def _experts(config: Any) -> str | None:
    """The setting with the number of experts; None if there are none."""
    found = config.get_text_config().to_dict()
    counts = {n: v for n, v in found.items() if "experts" in n and "per_tok" not in n and type(v) is int and v > 1}
    return next((f"{name}={value}" for name, value in counts.items()), None)


@final
class GraphMemory(Cache):  # type: ignore[misc]
    """Keys and values as inputs of a graph, and the longer ones as its outputs."""

    def __init__(self, past: Sequence[Tensor]) -> None:
        super().__init__(layers=[])
        self.past = past  # keys and values, layer by layer
        self.present = list(past)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        for part, new in enumerate((key_states, value_states), 2 * layer_idx):
            self.present[part] = torch.cat([self.past[part], new], dim=2)
        return self.present[2 * layer_idx], self.present[2 * layer_idx + 1]

    def get_seq_length(self, layer_idx: int = 0) -> Any:  # a tensor during tracing
        return self.past[0].shape[2]

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[Any, int]:
        return self.past[0].shape[2] + query_length, 0

    @property
    def is_compileable(self) -> bool:
        return False


def has_two_masks(model: Any) -> bool:
    """Whether some layers have sliding attention, and others full attention."""
    window = sliding_window(model.config)
    return window is not None and not window.everywhere


@final
class _Traceable(nn.Module):
    """The model as a function of tensors."""

    def __init__(self, model: Any, hidden_layers: Sequence[int], scores_all: bool) -> None:
        super().__init__()
        self.model = model
        self._hidden_layers = hidden_layers
        self._scores_all = scores_all
        self.train(model.training)
        self._can_keep = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._masks = 1 + has_two_masks(model)

    def forward(
        self,
        tokens: Int[Tensor, "row new"],
        positions: Int[Tensor, "row new"],
        *rest: Tensor,
    ) -> tuple[Tensor, ...]:
        keep, masks_and_past = (None, rest) if self._scores_all else (rest[0], rest[1:])
        mask, sliding = (*masks_and_past[: self._masks], None)[:2]
        memory = GraphMemory(masks_and_past[self._masks :])
        only = {"logits_to_keep": keep} if self._can_keep and keep is not None else {}
        states = {"output_hidden_states": True} if self._hidden_layers else {}
        out = self.model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask_argument(mask, sliding),
            use_cache=True,
            **cache_argument(self.model, memory),
            **only,
            **states,
        )
        scores = out.logits if self._can_keep or keep is None else out.logits.index_select(1, keep)
        hidden = [torch.cat([out.hidden_states[i] for i in self._hidden_layers], dim=-1)] if self._hidden_layers else []
        return (scores, *hidden, *memory.present)


def memory_names(layers: int) -> tuple[list[str], list[str]]:
    """Names of the input and output keys and values."""
    return [f"past.{i}" for i in range(2 * layers)], [f"present.{i}" for i in range(2 * layers)]


def traced_model(model: Any, hidden_layers: Sequence[int], *, scores_all: bool = False) -> Any:
    """The model as a graph without state, with names and dynamic sizes; without ``keep`` if it scores all tokens."""
    model = traceable(model)
    rows, new, old, layers = 2, 3, 4, layer_count(model.config)
    past, present = memory_names(layers)
    last = longest.length - 1 if (longest := context(model.config)) else old + 1  # beyond it some rotary embeddings change
    inputs = {
        "tokens": (torch.ones(rows, new, dtype=torch.long), [-1, -1]),
        "positions": (torch.tensor([[old, old + 1, old + 1]] * rows).clamp(max=last), [-1, -1]),
    }
    if not scores_all:
        inputs["keep"] = torch.tensor([1, 2]), [-1]
    for name in ("mask", "sliding") if has_two_masks(model) else ("mask",):
        inputs[name] = torch.zeros(rows, 1, new, old + new), [-1, 1, -1, -1]
    for name, (heads, width) in zip(past, memory_sizes(model, layers), strict=True):
        inputs[name] = torch.zeros(rows, heads, old, width), [-1, heads, -1, width]
    outputs = ["scores", *(["hidden"] if hidden_layers else []), *present]
    return traced(_Traceable(model, hidden_layers, scores_all), inputs, outputs)


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
        graph = ov.convert_model(function, example_input=examples, extension=products())
    gc.collect()  # the tracer's parts refer to each other, and with them the traced copy of the model would stay
    for side, names in ((graph.inputs, [*inputs]), (graph.outputs, outputs)):
        for one, name in zip(side, names, strict=True):
            one.get_tensor().set_names({name})
    graph.reshape({name: ov.PartialShape(shape) for name, (_example, shape) in inputs.items()})
    return graph


def memory_sizes(model: Any, layers: int) -> list[tuple[int, int]]:
    """Number and width of heads of the keys and values, layer by layer, from one small forward."""
    memory = TreeCache(layers)
    pair = torch.tensor([[0, 1]])
    with torch.inference_mode():
        model(
            input_ids=pair,
            position_ids=pair,
            attention_mask=torch.zeros(1, 1, 2, 2),
            use_cache=True,
            **cache_argument(model, memory),
        )
    if memory.keys is None or memory.values is None:
        raise ValueError("it keeps no keys and values")
    return [(buffer.shape[2], buffer.shape[4]) for buffer in (memory.keys, memory.values)] * layers


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
