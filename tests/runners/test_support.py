"""What cannot score a tree is refused by name, and where a context ends is known and said."""

from types import SimpleNamespace

import pytest
import torch
from transformers import FalconConfig

from draftwood.core.errors import ModelError
from draftwood.runners.support import check_architecture
from draftwood.runners.torch_runner import TorchRunner
from tests.runners.seq2seq_zoo import tiny as tiny_source
from tests.runners.zoo import tiny


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("bloom", {}, "ALiBi"),
        ("mpt", {"d_model": 32, "n_heads": 4, "n_layers": 1}, "ALiBi"),
        ("gpt_neo", {"attention_types": [[["global", "local"], 1]], "num_layers": 2}, "local attention"),
        ("mamba", {}, "state"),
        ("rwkv", {"attention_hidden_size": 32}, "state"),
        ("jamba", {}, "state"),
        ("qwen3_next", {"linear_num_value_heads": 2, "linear_num_key_heads": 2, "num_experts": 2}, "state"),
        ("doge", {"keep_window_size": 32}, "keep_window_size=32.*chosen by their content"),
        ("doge", {}, "keep_window_size=2048.*chosen by their content"),
        ("big_bird", {"is_decoder": True}, "block_sparse"),
        ("llama", {"index_topk": 8}, "index_topk=8"),
    ],
)
def test_architectures_without_trees_are_refused_by_name(kind, settings, reason):
    with pytest.raises(ModelError, match=rf"'{kind}' cannot score a draft tree: .*{reason}"):
        TorchRunner(tiny(kind, dtype=torch.float32, **settings))


def test_only_its_alibi_variant_makes_falcon_unfit():
    fit, unfit = (SimpleNamespace(config=FalconConfig(alibi=one), get_output_embeddings=object) for one in (False, True))
    check_architecture(fit)
    with pytest.raises(ModelError, match=r"'falcon' .*ALiBi"):
        check_architecture(unfit)


def test_encoder_decoders_layers_with_a_state_and_models_without_a_head_are_refused_by_name():
    with pytest.raises(ModelError, match=r"'t5' .* encoder-decoder"):
        TorchRunner(tiny_source("t5"))
    with pytest.raises(ModelError, match="no language-model head"):
        TorchRunner(tiny("gpt2").transformer)
    config = SimpleNamespace(model_type="new", layer_types=["full_attention", "conv"])  # it says enough
    config.get_text_config = lambda: config
    with pytest.raises(ModelError, match=r"'new' .*type conv keep a running state"):
        check_architecture(SimpleNamespace(config=config, get_output_embeddings=lambda: object()))


@pytest.mark.parametrize("ignored", ["position_ids", "attention_mask"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_control_a_model_that_ignores_what_a_tree_needs(kind, ignored):
    model = tiny(kind)
    inner = model.forward
    model.forward = lambda **inputs: inner(**{**inputs, ignored: None})
    with pytest.raises(ModelError, match=f"'{kind}' .* ignores the attention mask or the positions"):
        TorchRunner(model)


def test_a_forward_that_fails_is_named():
    model = tiny("llama")
    model.forward = lambda input_ids: None
    with pytest.raises(ModelError, match="'llama' cannot score a draft tree: TypeError"):
        TorchRunner(model)


def test_dropout_is_not_blamed_on_the_architecture():
    with pytest.raises(ModelError, match=r"training mode.*model\.eval\(\)"):
        TorchRunner(tiny("gpt2").train())
