"""Graphs have one layer where several read the same input, and keep matrices, keys and values of models in bfloat16 as they
are. They give what they gave before."""

from __future__ import annotations

import gc
import weakref
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import nn

from draftwood.core.errors import ModelError
from tests.helpers import begin, rows_of
from tests.runners.seq2seq_zoo import tiny as seq2seq
from tests.runners.test_openvino import HAS_BF16, small
from tests.runners.zoo import SLIDING, SUPPORTED, tiny, windowed

pytest.importorskip("openvino")
from benchmarks.genai import served
from draftwood.runners.openvino import graph as graphs
from draftwood.runners.openvino import memory, merge, store
from draftwood.runners.openvino.copies import float32_copy, traceable
from draftwood.runners.openvino.graph import core, graph_of, traced
from draftwood.runners.openvino.merge import merge_layers
from draftwood.runners.openvino.runner import OpenVinoRunner
from draftwood.runners.openvino.store import stored_graph
from draftwood.runners.seq2seq.openvino_decoder import encoder_graph

CLOSE = 1e-5  # float32, scores of up to 10; a graph of other weights is off by more than one
IN_FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32"}


# ---- layers that read the same input ----


class Parted(nn.Module):
    """Layers over one input, and what is made of their outputs."""

    def __init__(self, *biases: int, turned: bool = True, shifted: bool = False, bare: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, w, bias=bool(b)) for w, b in zip((3, 5, 2), biases, strict=True))
        self.others = [layer.weight.detach().T.contiguous() for layer in self.layers]
        self.turned, self.shifted, self.bare = turned, shifted, bare
        self.register_buffer("by_token", torch.randn(3, 3))  # as wide as the first layer, but another one for each token
        self.requires_grad_(False)

    def forward(self, values):
        outs = [layer(values) if self.turned else values @ w for layer, w in zip(self.layers, self.others, strict=True)]
        if self.shifted:
            shifts = (self.by_token, values[..., :1], torch.tensor(2.0))
            outs = [out + shift for out, shift in zip(outs, shifts, strict=True)]
        return tuple(outs if self.bare else [out.tanh() for out in outs])


def products(graph) -> int:
    return sum(node.get_type_name() == "MatMul" for node in graph.get_ops())


@pytest.mark.parametrize(("function", "left"), [
    (Parted(1, 1, 1), 1), (Parted(0, 0, 0), 1), (Parted(1, 0, 1), 2), (Parted(0, 1, 0), 2),
    (Parted(0, 0, 0, turned=False), 1),  # weights that lie the other way round
    (Parted(0, 0, 0, shifted=True), 1),  # what is added from elsewhere is no bias
    (Parted(1, 1, 1, bare=True), 1),  # outputs of the graph keep their names
])  # fmt: skip
def test_layers_are_merged_with_their_likes_and_give_what_they_gave(function, left):
    values = torch.randn(2, 3, 4)
    graph = traced(function, {"values": (values, [-1, -1, 4])}, ["a", "b", "c"])
    merge_layers(graph)
    found = core().compile_model(graph, "CPU", IN_FLOAT32)([values.numpy()])
    for name, wanted in zip("abc", function(values), strict=True):
        np.testing.assert_allclose(found[name], wanted.numpy(), atol=1e-6)
    assert products(graph) == left


@pytest.mark.parametrize(("kind", "fewer"), [("llama", 3), ("qwen2", 3), ("opt", 2), ("gpt2", 0)])
def test_graphs_of_a_model_have_fewer_layers(kind, fewer):
    model = small(kind)
    graph = stored_graph(model)
    merged = products(graph)
    merge_layers(graph)  # again, which changes nothing
    assert products(graph) == merged
    assert products(graph_of(model)) - merged == model.config.num_hidden_layers * fewer
    assert products(served(model)) == merged  # what openvino-genai gets in our benchmarks
    if find_spec("nncf") and kind == "llama":
        assert products(stored_graph(model, "int8")) == merged  # before they are rounded


def test_what_all_layers_of_a_decoder_make_of_a_source_is_one_layer():
    model = seq2seq("marian", dtype=torch.float32)
    before, after = encoder_graph(model), encoder_graph(model)
    merge_layers(after)
    assert products(before) - products(after) == 2 * model.config.decoder_layers - 1


def test_control_parts_that_are_mixed_up_are_seen(monkeypatch):
    inner = merge._merge

    def mixed_up(layers):
        inner([layer._replace(end=other.end) for layer, other in zip(layers, layers[::-1], strict=True)])

    monkeypatch.setattr(merge, "_merge", mixed_up)
    with pytest.raises(ModelError, match="scores a text differently"):
        OpenVinoRunner(small("opt", seed=5))  # of which there is no graph yet


# ---- matrices of a model in bfloat16 ----


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


def rounded(kind: str, dtype: torch.dtype = torch.bfloat16):
    """A model with weights that bfloat16 holds, in this number format."""
    model = tiny("llama" if kind == "odd" else kind, dtype=torch.bfloat16).to(dtype)
    if kind == "odd":
        model.lm_head = Odd(model.lm_head)
    return model


def scores(graph) -> np.ndarray:
    """What the graph computes of a text, in float32."""
    network, places = core().compile_model(graph, "CPU", IN_FLOAT32), np.arange(4)
    mask = np.triu(np.full((1, 1, 4, 4), -np.inf, np.float32), 1)
    inputs = {"tokens": np.array([[5, 17, 60, 2]]), "positions": places[None], "keep": places, "rows": np.zeros(1, np.int32)}
    masks = {name: mask for name in ("mask", "sliding") if any(name in one.get_names() for one in graph.inputs)}
    return network({**inputs, **masks})["scores"]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2", "opt", "gemma", "gemma3_text", "odd"])
def test_it_scores_as_the_graph_of_a_copy_in_float32(kind, monkeypatch):
    """Tied and untied heads, biases, layers of other classes; keys and values are in float32 here."""
    monkeypatch.setattr(graphs, "bfloat16_memory", lambda graph, *_: graph)
    models = [rounded(kind, dtype) for dtype in (torch.bfloat16, torch.float32)]  # whose memory the graphs share
    short, long = map(graph_of, models)
    np.testing.assert_allclose(scores(short), scores(long), atol=CLOSE)
    for graph in (short, long):
        merge_layers(graph)
    np.testing.assert_allclose(scores(short), scores(long), atol=CLOSE)
    assert products(short) == products(long)


@pytest.mark.parametrize("kind", ["llama", "odd"])
@pytest.mark.parametrize("paged", [False, True])
def test_its_file_has_two_bytes_a_weight(kind, paged, monkeypatch, tmp_path):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))
    model = rounded(kind)
    stored_graph(model, paged=paged)
    [file] = store.store_folder().rglob("model.bin")
    weights = sum(weight.numel() for weight in model.parameters())
    assert file.stat().st_size < 2.2 * weights  # vectors and tables of positions are float32


@pytest.mark.parametrize(
    ("make", "dtype"), [(float32_copy, torch.float32), (float32_copy, torch.bfloat16), (traceable, torch.bfloat16)]
)
def test_a_copy_reads_as_float32_shares_what_it_can_and_leaves_the_model_alone(make, dtype):
    model = tiny("gpt2", dtype=dtype)
    copy, own = make(model), {weight.data_ptr() for weight in model.parameters()}
    shared = {weight.ndim > 1: weight.data_ptr() in own for weight in copy.parameters()}  # of matrices, and of vectors
    assert shared == {True: make is traceable or dtype == torch.float32, False: dtype == torch.float32}
    assert all(torch.equal(w.float(), o.float()) for w, o in zip(copy.parameters(), model.parameters(), strict=True))
    read = copy.get_output_embeddings().weight
    assert (read.dtype, copy.transformer.ln_f.weight.dtype) == (torch.float32, torch.float32)
    assert torch.equal(read, copy.get_input_embeddings().weight)  # tied, as in the model
    assert not any(w.requires_grad for w in copy.parameters())
    assert all(w.requires_grad and w.dtype == dtype for w in model.parameters())


def test_a_matrix_that_is_not_contiguous_is_copied_as_its_graph_could_not_share_its_memory():
    model = nn.Linear(3, 5).bfloat16()
    model.weight = nn.Parameter(torch.randn(3, 5, dtype=torch.bfloat16).T)
    copy = traceable(model)
    assert next(copy.parameters()).dtype == torch.float32
    assert torch.equal(copy.weight, model.weight.float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_conversion_leaves_nothing_of_what_was_traced(dtype, monkeypatch, tmp_path):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))
    alive: list[weakref.ref] = []
    inner, write = graphs.traced, store._write

    def traced(function, inputs, outputs):
        alive.append(weakref.ref(function))
        assert not any(w.ndim > 1 and w.dtype != dtype for w in function.parameters())  # no copy of a matrix in float32
        return inner(function, inputs, outputs)

    def written(folder, graph):
        assert alive
        assert all(one() is None for one in alive)  # before the file is written, and before the graph is compiled
        write(folder, graph)

    monkeypatch.setattr(graphs, "traced", traced)
    monkeypatch.setattr(store, "_write", written)
    gc.disable()
    try:
        stored_graph(rounded("llama", dtype))
    finally:
        gc.enable()


# ---- keys and values of a model in bfloat16 ----


def scored(runner: OpenVinoRunner) -> list[torch.Tensor]:
    """Scores of rounds with a rejected node, during which a row joins that was read ahead, and another leaves."""
    rows, found = begin(runner, [[3, 1, 4, 1, 5], [9, 2, 6]]), []
    for step in range(8):
        if step == 3:
            [row] = rows_of([[2, 7, 1, 8]])
            runner.prefill(row, 4)
            rows = [*rows, row]
        elif step == 6:
            rows = rows[1:]
        runner.set_rows(rows)
        tokens, depths = torch.tensor([[5 + step, 9]] * len(rows)), torch.tensor([[0, 1]] * len(rows))
        found.append(runner.extend(tokens, depths, torch.ones(len(rows), 2, 2, dtype=torch.bool).tril()).logits)
        for row in rows:
            row.tokens.append(0)
        runner.commit([[0]] * len(rows))
    return found


@pytest.mark.skipif(not HAS_BF16, reason="the processor has no bfloat16")
@pytest.mark.parametrize("kind", [*SUPPORTED, *SLIDING, "phi3", "cohere2"])
def test_keys_and_values_take_half_the_memory_and_scores_are_the_same(kind, monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_PATIENCE", 1.0)  # dead slots are cleared away again and again
    found, sizes = [], []
    for name in ("narrow", "wide"):
        monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / name))
        model = (windowed(kind) if kind in ("phi3", "cohere2") else tiny(kind)).bfloat16()
        runner = OpenVinoRunner(model, check=False, paged=False)
        found.append(scored(runner))
        sizes.append(sum(part.state.byte_size for part in runner.network.request.query_state()))
        monkeypatch.setattr(graphs, "bfloat16_memory", lambda graph, *_: graph)
    assert all(map(torch.equal, *found))
    wide = kind in ("opt", "gemma2")  # attention with another scale, and without the operation: these stay in float32
    assert sizes[1] == sizes[0] * (1 if wide else 2)
