"""A model with layers left out: the same weights, other layers, and the whole model as it was."""

from __future__ import annotations

import pytest
import torch

from draftwood.core.errors import ConfigError
from draftwood.runners.seq2seq.layer_skip import decoder_layer_count, with_layers
from draftwood.runners.seq2seq.runner import Seq2SeqRunner
from draftwood.runners.torch_runner import TorchRunner
from tests.helpers import begin
from tests.runners import seq2seq_zoo, zoo

SOURCE, TEXT = [5, 6, 7, 4], [2, 8, 9, 10]


def layers_of(model):
    return model.get_decoder().block if hasattr(model.get_decoder(), "block") else model.get_decoder().layers


@pytest.mark.parametrize("kind", ["marian", "mbart", "m2m_100", "t5", "umt5"])
@pytest.mark.parametrize("kept", [[0], [0, 2], [0, 1, 2]])
def test_an_encoder_decoder_with_fewer_layers(kind, kept):
    """It says what the whole model says while the layers that are left out pass on what they are given."""
    model = seq2seq_zoo.tiny(kind, decoder_layers=3) if kind not in seq2seq_zoo.RELATIVE else seq2seq_zoo.tiny(kind)
    whole = seq2seq_zoo.plain_scores(model, SOURCE, TEXT)
    short = with_layers(model, kept)
    scores = seq2seq_zoo.plain_scores(short, SOURCE, TEXT)
    assert decoder_layer_count(model) == 3
    assert decoder_layer_count(short) == len(kept)
    assert torch.equal(scores, whole) == (len(kept) == 3)
    assert {id(p) for p in short.parameters()} <= {id(p) for p in model.parameters()}
    rest = [layer for index, layer in enumerate(layers_of(model)) if index not in kept]
    hooks = [layer.register_forward_hook(lambda _, inputs, output: passed_on(inputs, output)) for layer in rest]
    assert torch.equal(seq2seq_zoo.plain_scores(model, SOURCE, TEXT), scores)
    for hook in hooks:
        hook.remove()
    assert torch.equal(seq2seq_zoo.plain_scores(model, SOURCE, TEXT), whole)


def passed_on(inputs, output):
    """What a layer was given, in the form of what it gives."""
    return (inputs[0], *output[1:]) if isinstance(output, tuple) else inputs[0]


@pytest.mark.parametrize("kind", ["marian", "t5"])
def test_it_drafts_and_generates_with_a_cache_of_its_own_size(kind):
    model = seq2seq_zoo.tiny(kind, **({"decoder_layers": 3} if kind == "marian" else {}))
    short = with_layers(model, [0, 2])
    runner = Seq2SeqRunner(short, drafts=True)
    begin(runner, [TEXT], [SOURCE])
    one = torch.tensor([[6]])
    scores = runner.extend(one, one * 0, one[None] > 0).logits[0, 0]
    assert torch.allclose(scores, seq2seq_zoo.plain_scores(short, SOURCE, [*TEXT, 6]), atol=1e-4)
    assert runner._decoder.cache.keys.shape[0] == 2
    settings = {"max_new_tokens": 6, "num_beams": 1, "do_sample": False}
    cached, fresh = (short.generate(torch.tensor([SOURCE]), use_cache=c, **settings).tolist() for c in (True, False))
    assert cached == fresh
    count = "decoder_layers" if kind == "marian" else "num_decoder_layers"
    assert (getattr(short.config, count), getattr(model.config, count)) == (2, 3)
    assert short.config.num_hidden_layers == model.config.num_hidden_layers == 2  # the encoder's


@pytest.mark.parametrize("kind", ["llama", "gpt2", "opt", "gpt_neox", "gemma3_text"])
def test_a_causal_model_with_fewer_layers(kind):
    model = zoo.tiny(kind)
    whole = zoo.plain_scores(model, TEXT)
    short = with_layers(model, [1])
    TorchRunner(short)  # compares a tree with its paths
    assert (short.config.num_hidden_layers, model.config.num_hidden_layers) == (1, 2)
    assert not torch.equal(zoo.plain_scores(short, TEXT), whole)
    assert torch.equal(zoo.plain_scores(model, TEXT), whole)
    assert torch.equal(zoo.plain_scores(with_layers(model, [0, 1]), TEXT), whole)


@pytest.mark.parametrize("layers", [[], [2], [-1, 0], [1, 0], [0, 0]])
def test_layers_that_are_not_there_are_refused(layers):
    with pytest.raises(ConfigError, match=r"a decoder with layers 0 to 1: give at least one of these, each once, ascending"):
        with_layers(seq2seq_zoo.tiny("marian"), layers)


def test_a_layer_that_others_need_is_kept():
    with pytest.raises(ConfigError, match="'t5' leave out layer 0, which makes the position biases"):
        with_layers(seq2seq_zoo.tiny("t5"), [1, 2])
    with_layers(seq2seq_zoo.tiny("umt5"), [1, 2])  # each layer has its own
