"""A Hugging Face causal model as an OpenVINO graph with paged attention: keys and values lie in blocks of slots.

The tokens of all rows follow one another, without padding. A row's tokens see its earlier slots, and of each other what
``qq_bias`` says; its kernels read a tree with matrix products, where a graph with state reads token after token.

Inputs: ``tokens`` and ``positions`` [token], ``keep`` [kept] (indices of the tokens to score), and those of OpenVINO's
PagedAttention: ``past_lens`` [row], ``subsequence_begins`` [row + 1], ``block_indices``, ``block_indices_begins``
[row + 1], ``max_context_len``, ``qq_bias``, ``qq_bias_begins`` [row + 1], and for every layer i ``key_cache.i`` and
``value_cache.i`` [block, head, slot, width].
Output: ``scores`` [kept, 1, vocab], and with hidden layers ``hidden`` [token, 1, width].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from draftwood.core.errors import ModelError
from draftwood.runners.context import layer_count
from draftwood.runners.openvino.graph import check_convertible, converting, openvino, stateful, traced_model

_NAMES = {"tokens": "input_ids", "positions": "position_ids", "mask": "attention_mask", "rows": "beam_idx"}
"""Our inputs by the names that the transformation knows."""
_ATTENTION, _KEYS = "PagedAttentionExtension", 3  # the operation, and its input of keys


def paged_graph(model: Any, hidden_layers: Sequence[int] = ()) -> Any:
    """The model as an ``openvino.Model`` in float32; arguments and errors as for :func:`graph_of`."""
    from openvino._offline_transformations import paged_attention_transformation

    check_convertible(model)
    layers = layer_count(model.config)
    with converting(model):
        graph = stateful(traced_model(model, hidden_layers, scores_all=True), layers)
        for ours, known in _NAMES.items():
            _rename(graph.input(ours), known)
        paged_attention_transformation(graph, allow_qq_bias=True)
        for ours in ("tokens", "positions"):
            _rename(graph.input(_NAMES[ours]), ours)
        _keep(graph)
        if hidden_layers:
            _end_at_product(graph.output("hidden").get_node().input(0))
        for node, info, cache in _sizes(graph):
            heads, width = (int(node.get_rt_info()[name].value) for name in info)
            cache.set_partial_shape(openvino().PartialShape([-1, heads, -1, width]))
        kinds = [node.get_type_name() for node in graph.get_ops()]
        if kinds.count(_ATTENTION) != layers or "ReadValue" in kinds:
            raise ModelError(f"model type {model.config.model_type!r} has attention that cannot be paged")
        return graph


def read_sizes(graph: Any) -> Any:
    """The graph, with what compilation needs and files do not hold: the sizes of keys and values, from inputs' shapes."""
    for node, info, cache in _sizes(graph):
        _blocks, heads, _slots, width = cache.get_partial_shape()
        for name, size in zip(info, (heads, width), strict=True):
            node.get_rt_info()[name] = size.get_length()
    return graph


def _sizes(graph: Any) -> Iterator[tuple[Any, tuple[str, str], Any]]:
    """Attention, the names of its number and width of heads, and the input with these; once for keys, once for values."""
    for node in graph.get_ops():
        if node.get_type_name() == _ATTENTION:
            for index, part in ((_KEYS, "k"), (_KEYS + 1, "v")):
                yield node, (f"num_{part}_heads", f"{part}_head_size"), node.input_value(index).get_node()


def _rename(port: Any, name: str) -> None:
    port.get_tensor().set_names({name})
    port.get_node().set_friendly_name(name)


def _keep(graph: Any) -> None:
    """Score the tokens ``keep`` only: select them before the product with the output embedding."""
    from openvino import opset13 as ops

    keep = ops.parameter([-1], openvino().Type.i64, name="keep")
    keep.output(0).get_tensor().set_names({"keep"})
    scores = graph.output("scores").get_node().input(0)
    entry = _head(scores.get_source_output().get_node()) or scores
    kept = ops.gather(entry.get_source_output(), keep, ops.constant(0))
    if entry is scores:
        kept.output(0).get_tensor().set_names({"scores"})
    entry.replace_source_output(kept.output(0))
    graph.add_parameters([keep])
    graph.validate_nodes_and_infer_types()


def _end_at_product(result: Any) -> None:
    """Multiply a result by one, in a matrix product.

    In bfloat16 the CPU plugin computes what lies between the last product and a result in float32. For hidden states this
    would be all sums of layers, which makes a forward about 5 % slower, and another model than one without this result.
    """
    from openvino import opset13 as ops

    source, shape = result.get_source_output(), result.get_partial_shape()
    one = ops.constant([[1.0]], openvino().Type.f32)
    product = ops.matmul(ops.reshape(source, ops.constant([-1, 1]), False), one, False, True)
    ended = ops.reshape(product, ops.constant([-1, *(size.get_length() for size in list(shape)[1:])]), False)
    ended.output(0).get_tensor().set_names({"hidden"})
    result.replace_source_output(ended.output(0))


def _head(node: Any) -> Any | None:
    """The input of the product that these scores come from, if only operations with one number for each follow it."""
    while True:
        kind, inputs = node.get_type_name(), node.inputs()
        varying = [one for one in inputs if one.get_node().get_type_name() and not _is_constant(one)]
        if kind == "MatMul" and len(varying) == 1 and varying[0].get_index() == 0:
            return varying[0]
        if kind not in ("Add", "Convert", "Divide", "Multiply", "Tanh") or len(varying) != 1:
            return None
        node = varying[0].get_source_output().get_node()


def _is_constant(port: Any) -> bool:
    node = port.get_source_output().get_node()
    return node.get_type_name() == "Constant" or (node.get_type_name() == "Convert" and _is_constant(node.input(0)))
