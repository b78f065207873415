"""Mixtures of experts that are read from folders, in which experts have weights of their own or names of other programs."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood.loading.causal import stored_folder
from draftwood.runners.native import experts
from draftwood.runners.native.runner import NativeRunner
from tests.native.test_families import model_of
from tests.native.test_stored import check_module, check_read, saved, scores

KINDS = {
    "mixtral": "block_sparse_moe.experts.5.w1.weight", "qwen3_moe": "mlp.experts.39.up_proj.weight",
    "qwen3_next": "mlp.experts.15.down_proj.weight", "granitemoehybrid": "block_sparse_moe.router.layer.weight",
    "granitemoe": "block_sparse_moe.input_linear.weight",
}  # fmt: skip
"""And a name of a weight of theirs in files."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_read_without_the_model_of_transformers(tmp_path, kind, dtype):
    attends = {"layer_types": ["full_attention"] * 2} if kind == "granitemoehybrid" else {}
    model = saved(model_of(kind, dtype, **attends), tmp_path)
    check_module(check_read(tmp_path, model, check=False), model)
    assert any(name.endswith(KINDS[kind]) for name in load_file(tmp_path / "model.safetensors"))


def test_a_folder_that_lacks_an_expert_is_left_to_transformers(tmp_path):
    model_of("mixtral", torch.float32).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = next(name for name in weights if name.endswith(KINDS["mixtral"]))
    save_file({one: weight for one, weight in weights.items() if one != name}, tmp_path / "model.safetensors")
    assert stored_folder(tmp_path) is None
    save_file({**weights, name: weights[name].bfloat16()}, tmp_path / "model.safetensors")
    assert stored_folder(tmp_path) is None


def test_control_experts_in_another_order_are_seen(tmp_path, monkeypatch):
    model = model_of("qwen3_moe", torch.float32)
    model.save_pretrained(tmp_path)
    together = experts.together
    monkeypatch.setattr(experts, "together", lambda name, parts: together(name, parts[::-1]))
    found = stored_folder(tmp_path)
    assert found is not None
    assert not torch.allclose(scores(found), scores(NativeRunner(model).model), atol=1e-2)
