"""Layers that read the same input are one in a graph, and give what they gave."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from draftwood.core.errors import ModelError
from tests.runners.test_openvino import small

pytest.importorskip("openvino")
from benchmarks.genai import served
from draftwood.runners.openvino import merge
from draftwood.runners.openvino.graph import core, graph_of, traced
from draftwood.runners.openvino.merge import merge_layers
from draftwood.runners.openvino.runner import OpenVinoRunner
from draftwood.runners.openvino.store import stored_graph
from draftwood.runners.seq2seq.openvino_decoder import encoder_graph
from tests.runners.seq2seq_zoo import tiny as seq2seq

WIDTHS = (3, 5, 2)


class Parted(nn.Module):
    """Layers over one input, and what is made of their outputs."""

    def __init__(self, biases: tuple[bool, ...], *, turned: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, w, bias=b) for w, b in zip(WIDTHS, biases, strict=True))
        self.turned = turned
        self.others = [layer.weight.detach().T.contiguous() for layer in self.layers]
        self.requires_grad_(False)

    def forward(self, values):
        outs = [layer(values) if self.turned else values @ w for layer, w in zip(self.layers, self.others, strict=True)]
        return tuple(out.tanh() for out in outs)


def merged(function: nn.Module) -> object:
    """Its graph, which gives what the function gives."""
    values = torch.randn(2, 3, 4)
    graph = traced(function, {"values": (values, [-1, -1, 4])}, ["a", "b", "c"])
    merge_layers(graph)
    found = core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([values.numpy()])
    for name, wanted in zip("abc", function(values), strict=True):
        np.testing.assert_allclose(found[name], wanted.numpy(), atol=1e-6)
    return graph


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
    graph = merged(Parted(biases))
    assert len(products(graph)) == left


def test_weights_that_lie_the_other_way_round_are_merged_too():
    graph = merged(Parted((False,) * 3, turned=False))
    assert len(products(graph)) == 1


def test_what_is_added_from_elsewhere_is_no_bias():
    class Shifted(Parted):
        def __init__(self) -> None:
            super().__init__((False,) * 3)
            self.register_buffer("by_token", torch.randn(3, 3))  # as wide as the layer, but another one for each token

        def forward(self, values):
            shifts = (self.by_token, values[..., :1], torch.tensor(2.0))
            return tuple((layer(values) + shift).tanh() for layer, shift in zip(self.layers, shifts, strict=True))

    graph = merged(Shifted())
    assert len(products(graph)) == 1


def test_outputs_of_the_graph_keep_their_names():
    class Bare(Parted):
        def forward(self, values):
            return tuple(layer(values) for layer in self.layers)

    graph = merged(Bare((True,) * 3))
    assert len(products(graph)) == 1
    assert [out.get_names() for out in graph.outputs] == [{"a"}, {"b"}, {"c"}]


@pytest.mark.parametrize(("kind", "fewer"), [("llama", 3), ("qwen2", 3), ("opt", 2), ("gpt2", 0)])
def test_of_a_model_each_input_is_read_once(kind, fewer):
    before, after = graph_of(small(kind)), graph_of(small(kind))
    merge_layers(after)
    layers = small(kind).config.num_hidden_layers
    assert readers_of_one_output(after) == 1
    assert len(products(before)) - len(products(after)) == layers * fewer
    assert readers_of_one_output(before) == (3 if fewer else 1)  # the count sees what is not merged


def test_what_all_layers_of_a_decoder_make_of_a_source_is_one_layer():
    model = seq2seq("marian", dtype=torch.float32)
    before, after = encoder_graph(model), encoder_graph(model)
    merge_layers(after)
    assert readers_of_one_output(before) == 2 * model.config.decoder_layers
    assert readers_of_one_output(after) == 1


def test_layers_are_merged_before_they_are_rounded():
    pytest.importorskip("nncf")
    model = small("llama")
    assert len(products(stored_graph(model, "int8"))) == len(products(stored_graph(model)))


def test_genai_gets_the_graph_that_our_own_runner_has():
    model = small("llama")
    assert len(products(served(model))) == len(products(stored_graph(model)))


def test_control_parts_that_are_mixed_up_are_seen(monkeypatch):
    inner = merge._merge

    def mixed_up(layers):
        inner([layer._replace(end=other.end) for layer, other in zip(layers, layers[::-1], strict=True)])

    monkeypatch.setattr(merge, "_merge", mixed_up)
    model = small("opt", seed=5)  # of which there is no graph yet
    with pytest.raises(ModelError, match="scores a text differently"):
        OpenVinoRunner(model)


def test_merging_again_changes_nothing():
    graph = graph_of(small("llama"))
    merge_layers(graph)
    before = len(graph.get_ops())
    merge_layers(graph)
    assert len(graph.get_ops()) == before
