"""Gemma 4: layers with heads of several sizes, keys and values of earlier layers, and inputs of their own."""

import json

import pytest
import torch
from safetensors.torch import save_file

from draftwood.runners.native import layers
from draftwood.runners.native.refusals import why_not_config
from draftwood.runners.native.runner import NativeRunner
from tests.native.test_families import model_of
from tests.native.test_stored import check_module, check_read, saved
from tests.runners.zoo import NATIVE, tiny

KIND = "gemma4_text"
SMALL = {"enable_moe_block": False}
WIDE = {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "use_double_wide_mlp": False}


def write_as_published(model, folder):
    """Write a model of text, pictures and sounds, with the keys and values that its last layers do not use."""
    weights = {name.replace("model.", "model.language_model.", 1): one for name, one in model.state_dict().items()}
    for number in layers.borrowers(model.config):
        for name in ("k_proj", "v_proj", "k_norm"):
            weights[f"model.language_model.layers.{number}.self_attn.{name}.weight"] = torch.ones(2, 3)
    for other in ("vision_tower.a", "audio_tower.a") if model.config.model_type == KIND else ("vision_embedder.a",):
        weights[f"model.{other}"] = torch.ones(1)
    for other in ("embed_vision.a", "embed_audio.a"):
        weights[f"model.{other}"] = torch.ones(1)
    save_file({name: one.contiguous().clone() for name, one in weights.items()}, folder / "model.safetensors")
    text = json.loads((folder / "config.json").read_text())
    name = model.config.architectures[0].replace("CausalLM", "ConditionalGeneration")
    kind = text["model_type"].removesuffix("_text")
    whole = {"model_type": kind, "architectures": [name], "tie_word_embeddings": False}
    text["use_bidirectional_attention"] = "vision"
    (folder / "config.json").write_text(json.dumps({**whole, "text_config": text}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "more"), [(KIND, SMALL), (KIND, WIDE), ("gemma4_unified_text", {})], ids=["small", "mixture", "unified"]
)
def test_folders_are_read_as_transformers_reads_them(tmp_path, kind, more, dtype):
    model = saved(model_of(kind, dtype, **more), tmp_path)
    check_module(check_read(tmp_path, model), model)
    write_as_published(model, tmp_path)
    check_module(check_read(tmp_path, model), model)


def test_settings_of_older_versions_say_the_same(tmp_path):
    model = model_of(KIND, torch.float32)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["per_layer_config"]
    config |= {"global_head_dim": 40, "num_global_key_value_heads": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    check_read(tmp_path, model)


def test_pages_have_keys_and_values_of_layers_with_their_own():
    models = (tiny(KIND, dtype=torch.float32, **{**NATIVE[KIND], "num_kv_shared_layers": shared}) for shared in (2, 0))
    small, large = 2 * 2 * 32, 2 * 64  # numbers of keys and values of a layer, padded
    bytes_of = 4 * (2 * small + large), 4 * (3 * small + 2 * large)
    assert tuple(NativeRunner(model).token_bytes for model in models) == bytes_of


def test_last_layers_without_a_lender_are_refused():
    config = tiny(KIND, dtype=torch.float32, **NATIVE[KIND]).config
    config.num_kv_shared_layers = 4
    assert (
        why_not_config(config)
        == "its last layers of type full_attention read keys and values of an earlier one, and there is none"
    )
