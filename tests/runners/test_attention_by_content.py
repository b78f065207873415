"""Attention that depends on more than mask and position is refused, and proven where a size in the configuration hints."""

import pytest
import torch

from draftwood.core.errors import ModelError
from draftwood.runners import support
from draftwood.runners.context import context
from draftwood.runners.torch_runner import TorchRunner
from tests.runners.zoo import tiny


@pytest.mark.parametrize("layer", ["chunked_attention", "indexed_attention"])
def test_layers_that_choose_their_keys_are_not_said_to_keep_a_state(layer):
    model = tiny("qwen3", dtype=torch.float32)
    model.config.layer_types = [layer, "full_attention"]
    with pytest.raises(ModelError, match=f"layers of type {layer} choose what they attend to"):
        TorchRunner(model)


def forgetful(size, **settings):
    """A llama that behaves as ever up to ``size`` keys and forgets a token beyond."""
    model = tiny("llama", dtype=torch.float32, **settings)
    inner = model.forward

    def forward(input_ids, attention_mask=None, past_key_values=None, **rest):
        """Leaves the second token out where there are more than ``size`` keys, whatever the mask says."""
        if attention_mask is None:
            attention_mask = torch.ones(1, 1, *2 * input_ids.shape[-1:], dtype=torch.bool).tril()
            attention_mask = torch.zeros(attention_mask.shape).masked_fill(~attention_mask, -1e9)
            if input_ids.shape[1] > size:
                attention_mask[..., 2:, 1] = -1e9
        return inner(input_ids=input_ids, attention_mask=attention_mask, past_key_values=past_key_values, **rest)

    model.forward = forward
    return model


def test_the_proof_looks_behind_a_size_that_the_configuration_names():
    model = forgetful(24)
    TorchRunner(model)  # five tokens do not show it, and nothing names it
    model.config.memory_window = 24
    with pytest.raises(ModelError, match=r"'llama' .*memory_window=24"):
        TorchRunner(model)


def test_the_proof_sees_by_itself_what_is_wrong_with_doge(monkeypatch):
    monkeypatch.delitem(support._BY_CONTENT, "keep_window_size")
    with pytest.raises(ModelError, match=r"'doge' .*keep_window_size=32"):
        TorchRunner(tiny("doge", dtype=torch.float32, keep_window_size=32))


def test_a_size_that_changes_nothing_is_no_reason_to_refuse():
    runner = TorchRunner(tiny("llama", dtype=torch.float32, memory_window=24))
    assert runner.max_length == 256


def longest_trial(model):
    """Tokens of the longest forward of the proof."""
    lengths, inner = [], model.forward

    def counting(input_ids, position_ids=None, attention_mask=None, past_key_values=None, use_cache=None, **rest):
        lengths.append(input_ids.shape[1])
        named = {"position_ids": position_ids, "attention_mask": attention_mask, "past_key_values": past_key_values}
        return inner(input_ids=input_ids, use_cache=use_cache, **named, **rest)

    model.forward = counting
    TorchRunner(model)
    return max(lengths)


def test_a_size_that_is_too_large_to_be_tried_ends_the_context():
    model = tiny("llama", dtype=torch.float32, memory_window=2048, max_position_embeddings=8192)
    length, reason = context(model.config)
    assert length == 2048
    assert "memory_window=2048" in reason
    assert longest_trial(model) <= 16


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen3", "opt"])
def test_models_that_name_no_size_are_proven_on_five_tokens_only(kind):
    assert longest_trial(tiny(kind, dtype=torch.float32)) <= 16
