"""Layers that read the same input are one in a graph, and give what they gave."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from draftwood.errors import ModelError
from tests.models.test_openvino import small

pytest.importorskip("openvino")
from draftwood.models import openvino_merge
from draftwood.models.openvino_chain import SPAN, _chain_graph
from draftwood.models.openvino_graph import core, graph_of, traced
from draftwood.models.openvino_merge import merge_layers
from draftwood.models.openvino_runner import OpenVinoRunner

WIDTHS = (3, 5, 2)


class Parted(nn.Module):
    """Layers over one input, and what is made of their outputs."""

    def __init__(self, biases: tuple[bool, ...], *, turned: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, w, bias=b) for w, b in zip(WIDTHS, biases, strict=True))
        self.turned = turned
        self.requires_grad_(False)

    def forward(self, values):
        outs = [layer(values) if self.turned else values @ layer.weight.T.contiguous() for layer in self.layers]
        return tuple(out.tanh() for out in outs)


def graph_and_answers(function: nn.Module) -> tuple[object, list[np.ndarray], list[np.ndarray]]:
    values = torch.randn(2, 3, 4)
    graph = traced(function, {"values": (values, [-1, -1, 4])}, ["a", "b", "c"])
    merge_layers(graph)
    found = core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([values.numpy()])
    return graph, [found[name] for name in "abc"], [out.numpy() for out in function(values)]


def products(graph) -> list[object]:
    return [node for node in graph.get_ops() if node.get_type_name() == "MatMul"]


def readers_of_one_output(graph) -> int:
    """The most layers with weights that read the same."""
    sources = Counter(
        node.input_value(0).get_node().get_name()
        for node in products(graph)
        if node.input_value(1).get_node().get_type_name() == "Constant"
    )
    return max(sources.values())


@pytest.mark.parametrize(
    ("biases", "left"),
    [((True, True, True), 1), ((False, False, False), 1), ((True, False, True), 2), ((False, True, False), 2)],
)
def test_layers_are_merged_with_their_likes_and_give_what_they_gave(biases, left):
    graph, found, wanted = graph_and_answers(Parted(biases))
    assert len(products(graph)) == left
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_weights_that_lie_the_other_way_round_are_merged_too():
    graph, found, wanted = graph_and_answers(Parted((False,) * 3, turned=False))
    assert len(products(graph)) == 1
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_what_is_added_from_elsewhere_is_no_bias():
    class Shifted(Parted):
        def forward(self, values):
            by = (torch.arange(3.0).unsqueeze(1), values[..., :1], torch.tensor(2.0))
            return tuple(layer(values) + shift for layer, shift in zip(self.layers, by, strict=True))

    graph, found, wanted = graph_and_answers(Shifted((False,) * 3))
    assert len(products(graph)) == 1
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize(("kind", "merged"), [("llama", 3), ("qwen2", 3), ("opt", 2), ("gpt2", 0)])
def test_of_a_model_each_input_is_read_once(kind, merged):
    before, after = graph_of(small(kind)), graph_of(small(kind))
    merge_layers(after)
    layers = small(kind).config.num_hidden_layers
    assert readers_of_one_output(after) == 1
    assert len(products(before)) - len(products(after)) == layers * merged
    assert readers_of_one_output(before) == (3 if merged else 1)  # the count sees what is not merged


def test_the_steps_of_a_chain_share_their_merged_weights():
    graph = _chain_graph(small("llama"), None)
    merge_layers(graph)
    names = [node.input_value(1).get_node().get_name() for node in products(graph)]
    shared = [count for name, count in Counter(names).items() if count > 1]
    assert shared
    assert set(shared) == {SPAN}
    assert readers_of_one_output(graph) == 1


def test_control_parts_that_are_mixed_up_are_seen(monkeypatch):
    inner = openvino_merge._merge

    def mixed_up(layers, made):
        inner([layer._replace(end=other.end) for layer, other in zip(layers, layers[::-1], strict=True)], made)

    monkeypatch.setattr(openvino_merge, "_merge", mixed_up)
    model = small("opt", seed=5)  # of which there is no graph yet
    with pytest.raises(ModelError, match="scores a text otherwise"):
        OpenVinoRunner(model)


def test_merging_again_changes_nothing():
    graph = graph_of(small("llama"))
    merge_layers(graph)
    before = len(graph.get_ops())
    merge_layers(graph)
    assert len(graph.get_ops()) == before
