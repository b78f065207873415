"""What graphs are made of: copies of models in float32, of which nothing is left."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from draftwood.runners.seq2seq.runner import Seq2SeqRunner
from tests.runners.seq2seq_zoo import tiny as seq2seq
from tests.runners.zoo import tiny

pytest.importorskip("openvino")
from draftwood.runners.openvino import store
from draftwood.runners.openvino.graph import float32_copy
from draftwood.runners.seq2seq import openvino_decoder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_copy_is_float32_shares_what_it_can_and_leaves_the_model_alone(dtype):
    model = tiny("gpt2", dtype=dtype)
    copy, own = float32_copy(model), {weight.data_ptr() for weight in model.parameters()}
    assert {weight.data_ptr() in own for weight in copy.parameters()} == {dtype == torch.float32}
    assert {weight.dtype for weight in copy.parameters()} == {torch.float32}
    assert all(torch.equal(w, o.float()) for w, o in zip(copy.parameters(), model.parameters(), strict=True))
    assert copy.get_output_embeddings().weight is copy.get_input_embeddings().weight  # tied, as in the model
    assert not any(w.requires_grad for w in copy.parameters())
    assert all(w.requires_grad and w.dtype == dtype for w in model.parameters())


def test_a_conversion_leaves_nothing_of_what_was_traced(monkeypatch, tmp_path):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))
    alive: list[weakref.ref] = []
    inner, write = openvino_decoder.traced, store._write

    def traced(function, inputs, outputs):
        alive.append(weakref.ref(function))
        return inner(function, inputs, outputs)

    def written(folder, graph):
        assert alive
        assert all(one() is None for one in alive)  # before the file is written, and before the graph is compiled
        write(folder, graph)

    monkeypatch.setattr(openvino_decoder, "traced", traced)
    monkeypatch.setattr(store, "_write", written)
    gc.disable()
    try:
        Seq2SeqRunner(seq2seq("marian", dtype=torch.bfloat16).float(), engine="openvino", check=False)
    finally:
        gc.enable()
