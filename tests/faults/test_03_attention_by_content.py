"""Attention that depends on more than mask and position is refused, and proven where a size in the configuration hints."""

from __future__ import annotations

import pytest
import torch

from draftwood.errors import ModelError
from draftwood.models.support import context
from draftwood.models.torch_runner import TorchRunner
from tests.models.zoo import tiny


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("doge", {"keep_window_size": 32}, "keep_window_size=32.*most relevant"),
        ("doge", {}, "keep_window_size=2048.*most relevant"),
        ("big_bird", {"is_decoder": True}, "block_sparse"),
        ("llama", {"index_topk": 8}, "index_topk=8"),
    ],
)
def test_attention_that_chooses_by_content_is_refused_by_name(kind, settings, reason):
    with pytest.raises(ModelError, match=rf"'{kind}' cannot score a draft tree: .*{reason}"):
        TorchRunner(tiny(kind, dtype=torch.float32, **settings))


@pytest.mark.parametrize("layer", ["chunked_attention", "indexed_attention"])
def test_layers_that_choose_their_keys_are_not_said_to_keep_a_state(layer):
    model = tiny("qwen3", dtype=torch.float32)
    model.config.layer_types = [layer, "full_attention"]
    with pytest.raises(ModelError, match=f"layers of type {layer} choose what they attend to"):
        TorchRunner(model)


def forgetful(size: int, **settings):
    """A llama that behaves as ever up to ``size`` keys and leaves the weakest keys out beyond."""
    model = tiny("llama", dtype=torch.float32, **settings)
    for layer in model.model.layers:
        layer.self_attn.v_proj.register_forward_hook(_fades(size))
    return model


def _fades(size: int):
    def hook(module, inputs, output):
        return output * 0.5 if output.shape[1] > size else output

    return hook


def test_the_proof_looks_behind_a_size_that_the_configuration_names():
    TorchRunner(forgetful(24))  # five tokens do not show it, and nothing names it
    with pytest.raises(ModelError, match=r"'llama' .*memory_window=24"):
        TorchRunner(forgetful(24, memory_window=24))


def test_a_size_that_changes_nothing_is_no_reason_to_refuse():
    runner = TorchRunner(tiny("llama", dtype=torch.float32, memory_window=24))
    assert runner.max_length == 256


def test_a_size_that_is_too_large_to_be_tried_ends_the_context():
    model = tiny("llama", dtype=torch.float32, memory_window=2048, max_position_embeddings=8192)
    length, reason = context(model.config)
    assert length == 2048
    assert "memory_window=2048" in reason
    lengths = []
    inner = model.forward
    model.forward = lambda **inputs: lengths.append(inputs["input_ids"].shape[1]) or inner(**inputs)
    TorchRunner(model)
    assert max(lengths) <= 16


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen3", "opt"])
def test_models_that_name_no_size_are_proven_on_five_tokens_only(kind):
    model = tiny(kind, dtype=torch.float32)
    lengths = []
    inner = model.forward

    def counting(input_ids, position_ids=None, attention_mask=None, past_key_values=None, use_cache=None, **rest):
        lengths.append(input_ids.shape[1])
        return inner(
            input_ids=input_ids, position_ids=position_ids, attention_mask=attention_mask,
            past_key_values=past_key_values, use_cache=use_cache, **rest,
        )  # fmt: skip

    model.forward = counting
    TorchRunner(model)
    assert max(lengths) <= 16
