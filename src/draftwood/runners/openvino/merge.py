"""Merges layers that read the same input: the query, key and value of attention, or both halves of a gated block.

Each layer is a separate call with its own overhead. Merging does not change the sums of the outputs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class _Layer(NamedTuple):
    """A product with constant weights, and its bias."""

    product: Any  # the operation, a MatMul
    weights: Any  # its Constant [out, in], of the product's number format or a shorter one
    bias: Any | None  # the Constant that is added to it, or None
    end: Any  # the last operation of the layer


def merge_layers(graph: Any) -> None:
    """Replace layers that read the same output of an operation by one layer with a split output, in place."""
    found: dict[tuple[object, ...], list[_Layer]] = defaultdict(list)
    for node in graph.get_ordered_ops():
        if (layer := _layer_of(node)) is not None:
            source = node.input_value(0)
            rank = None if layer.bias is None else len(layer.bias.shape)
            held = layer.weights.get_element_type().get_type_name()
            found[source.get_node().get_name(), source.get_index(), rank, held].append(layer)
    while found:
        _input, layers = found.popitem()  # popped, so that the old weights are freed
        if len(layers) > 1:
            _merge(sorted(layers, key=lambda layer: str(layer.weights.get_name())))
    graph.validate_nodes_and_infer_types()


def _layer_of(node: Any) -> _Layer | None:
    if node.get_type_name() != "MatMul":
        return None
    weights, settings = node.input_value(1).get_node(), node.get_attributes()
    if weights.get_type_name() == "Convert":
        weights = weights.input_value(0).get_node()
    if weights.get_type_name() != "Constant" or len(weights.shape) != 2:
        return None
    if settings["transpose_a"] or not settings["transpose_b"]:  # conversion makes all weights [out, in]
        return None
    readers = [reader.get_node() for reader in node.output(0).get_target_inputs()]
    if len(readers) == 1 and readers[0].get_type_name() == "Add":
        inputs = [value.get_node() for value in readers[0].input_values()]
        bias = next((one for one in inputs if one.get_type_name() == "Constant"), None)
        if bias is not None and _is_bias(list(bias.shape), weights.shape[0]):
            return _Layer(node, weights, bias, readers[0])
    return _Layer(node, weights, None, node)


def _is_bias(shape: Sequence[int], width: int) -> bool:
    """Whether the shape has one number per output, the same for all tokens."""
    return len(shape) > 0 and shape[-1] == width and all(size == 1 for size in shape[:-1])


def _merge(layers: list[_Layer]) -> None:
    from openvino import Tensor
    from openvino import opset13 as ops

    def joined(constants: Sequence[Any], axis: int) -> Any:
        values = np.concatenate([constant.data for constant in constants], axis=axis)
        held = Tensor(constants[0].get_element_type(), values.shape)  # NumPy has no bfloat16, only its bits
        held.data[...] = values
        return ops.convert(ops.constant(held), first.product.get_element_type().get_type_name())

    first, weights = layers[0], [layer.weights for layer in layers]
    out = ops.matmul(first.product.input_value(0), joined(weights, 0), False, True)
    if first.bias is not None:
        out = ops.add(out, joined([layer.bias for layer in layers], -1))
    widths = np.array([one.shape[0] for one in weights], np.int64)
    parts = ops.variadic_split(out, ops.constant(np.int64(-1)), ops.constant(widths))
    for layer, part in zip(layers, parts.outputs(), strict=True):
        layer.end.output(0).replace(part)
