"""Graphs of models in bfloat16 hold their matrices in bfloat16, and no copy of the model in float32 is made for them."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from tests.runners.zoo import VOCAB, tiny

pytest.importorskip("openvino")
from draftwood.runners.openvino import graph as graphs
from draftwood.runners.openvino import store
from draftwood.runners.openvino.copies import float32_copy, traceable
from draftwood.runners.openvino.graph import core, graph_of
from draftwood.runners.openvino.merge import merge_layers
from draftwood.runners.openvino.paged import paged_graph
from draftwood.runners.openvino.store import stored_graph

CLOSE = 1e-5  # float32, scores of up to 10; a graph of other weights is off by more than one
TEXT = [[5, 17, 60, 2]]
KINDS = ["llama", "gpt2", "qwen2", "opt", "gemma", "gemma3_text"]  # tied and untied heads, biases, layers of other classes


def rounded(kind: str, dtype: torch.dtype):
    """A model with weights that bfloat16 holds, in this number format."""
    return tiny(kind, dtype=torch.bfloat16).to(dtype)


def matrices(graph) -> set[str]:
    """The element types of constants that are multiplied or looked up in."""
    found = set()
    for node in graph.get_ops():
        place = {"MatMul": 1, "Gather": 0}.get(node.get_type_name())
        source = None if place is None else node.input_value(place).get_node()
        if source is not None and source.get_type_name() == "Convert":
            source = source.input_value(0).get_node()
        if source is not None and source.get_type_name() == "Constant" and len(source.shape) == 2:
            found.add(source.get_element_type().get_type_name())
    return found


def scores(graph) -> np.ndarray:
    """What the graph computes of a text, in float32."""
    network = core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    tokens = np.array(TEXT)
    length = tokens.shape[1]
    mask = np.triu(np.full((1, 1, length, length), -np.inf, np.float32), 1)
    places = np.arange(length)
    inputs = {"tokens": tokens, "positions": places[None], "keep": places, "rows": np.zeros(1, np.int32)}
    masks = {name: mask for name in ("mask", "sliding") if any(name in one.get_names() for one in graph.inputs)}
    return network({**inputs, **masks})["scores"]


def in_float32_memory(monkeypatch):
    """Keys and values of both number formats in float32, so that scores can be compared bit by bit."""
    monkeypatch.setattr(graphs, "bfloat16_memory", lambda graph, *_names: graph)


@pytest.mark.parametrize("kind", KINDS)
def test_it_scores_as_the_graph_of_a_copy_in_float32(kind, monkeypatch):
    in_float32_memory(monkeypatch)
    models = [rounded(kind, dtype) for dtype in (torch.bfloat16, torch.float32)]  # whose memory the graphs share
    short, long = map(graph_of, models)
    np.testing.assert_allclose(scores(short), scores(long), atol=CLOSE)
    for graph in (short, long):
        merge_layers(graph)
    np.testing.assert_allclose(scores(short), scores(long), atol=CLOSE)


@pytest.mark.parametrize("make", [graph_of, paged_graph])
def test_every_matrix_stays_in_bfloat16_and_layers_are_merged_as_ever(make):
    models = [rounded("llama", dtype) for dtype in (torch.bfloat16, torch.float32)]
    short, long = map(make, models)
    assert (matrices(short), matrices(long)) == ({"bf16"}, {"f32"})
    for graph in (short, long):
        merge_layers(graph)
    assert (matrices(short), matrices(long)) == ({"bf16"}, {"f32"})
    counts = [sum(node.get_type_name() == "MatMul" for node in graph.get_ops()) for graph in (short, long)]
    assert counts[0] == counts[1]


def test_its_file_has_two_bytes_a_weight(monkeypatch, tmp_path):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))
    model = rounded("llama", torch.bfloat16)
    stored_graph(model, paged=True)
    [file] = store.store_folder().rglob("model.bin")
    weights = sum(weight.numel() for weight in model.parameters())
    assert file.stat().st_size < 2.2 * weights  # vectors and tables of positions are float32


def test_what_is_traced_holds_no_matrix_in_float32_and_leaves_the_model_alone(monkeypatch):
    model, seen = rounded("llama", torch.bfloat16), []
    inner = graphs.traced

    def traced(function, inputs, outputs):
        seen.extend(function.parameters())
        return inner(function, inputs, outputs)

    monkeypatch.setattr(graphs, "traced", traced)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    graph_of(model)
    long = [weight.untyped_storage().nbytes() for weight in seen if weight.dtype == torch.float32]
    assert max(long) <= 4 * max(weight.numel() for weight in model.parameters() if weight.ndim == 1)
    own = {weight.data_ptr() for weight in model.parameters()}
    assert all(weight.data_ptr() in own for weight in seen if weight.dtype == torch.bfloat16)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_copy_in_float32_shares_the_weights_that_are(dtype):
    model = tiny("gpt2", dtype=dtype)
    copy = float32_copy(model)
    own = {weight.data_ptr() for weight in model.parameters()}
    assert {weight.data_ptr() in own for weight in copy.parameters()} == {dtype == torch.float32}
    assert all(torch.equal(w, o.float()) for w, o in zip(copy.parameters(), model.parameters(), strict=True))
    assert copy.get_output_embeddings().weight is copy.get_input_embeddings().weight  # tied, as in the model
    assert not any(w.requires_grad for w in copy.parameters())


def test_what_is_traced_reads_as_float32_and_shares_all_matrices():
    model = tiny("gpt2", dtype=torch.bfloat16)
    copy = traceable(model)
    own = {weight.data_ptr() for weight in model.parameters()}
    assert all((weight.data_ptr() in own) == (weight.ndim > 1) for weight in copy.parameters())
    assert all(torch.equal(w.float(), o.float()) for w, o in zip(copy.parameters(), model.parameters(), strict=True))
    read = copy.get_output_embeddings().weight
    assert (read.dtype, copy.transformer.ln_f.weight.dtype) == (torch.float32, torch.float32)
    assert torch.equal(read, copy.get_input_embeddings().weight)  # tied, as in the model
    assert not any(w.requires_grad for w in copy.parameters())
    assert all(w.requires_grad and w.dtype == torch.bfloat16 for w in model.parameters())


def test_a_matrix_that_is_not_contiguous_is_copied_as_its_graph_could_not_share_its_memory():
    model = nn.Linear(3, 5).bfloat16()
    model.weight = nn.Parameter(torch.randn(3, 5, dtype=torch.bfloat16).T)
    copy = traceable(model)
    assert next(copy.parameters()).dtype == torch.float32
    assert torch.equal(copy.weight, model.weight.float())


class Odd(nn.Module):
    """A head of its own kind: it computes with the weights of a layer, not through the layer."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.inner = layer

    @property
    def weight(self):
        return self.inner.weight

    def forward(self, values):
        return values.to(self.inner.weight.dtype) @ self.inner.weight.T


def test_weights_that_are_read_outside_of_their_layer_stay_in_bfloat16_too(monkeypatch):
    in_float32_memory(monkeypatch)
    models = [rounded("llama", dtype) for dtype in (torch.bfloat16, torch.float32)]
    for model in models:
        model.lm_head = Odd(model.lm_head)
    short, long = map(graph_of, models)
    found = scores(short)
    assert found.shape == (1, len(TEXT[0]), VOCAB)
    np.testing.assert_allclose(found, scores(long), atol=CLOSE)
    assert matrices(short) == {"bf16"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_conversion_leaves_nothing_of_what_was_traced(dtype, monkeypatch, tmp_path):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))
    alive: list[weakref.ref] = []
    inner = graphs.traced

    def traced(function, inputs, outputs):
        alive.append(weakref.ref(function))
        return inner(function, inputs, outputs)

    def written(folder, graph):
        assert alive
        assert all(one() is None for one in alive)  # before the file is written, and before the graph is compiled
        write(folder, graph)

    write = store._write
    monkeypatch.setattr(graphs, "traced", traced)
    monkeypatch.setattr(store, "_write", written)
    gc.disable()
    try:
        stored_graph(rounded("llama", dtype))
    finally:
        gc.enable()
