"""A checkpoint that does not hold the tensors of its model is refused by their names; nothing is made up."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

import draftwood
from draftwood import LoadOptions, ModelError, load, load_translator
from tests.faults.folders import change_tensors, save_tiny

ON_CPU = LoadOptions(dtype="float32", device="cpu", backend="torch")


def configured(folder: Path, **settings: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    return folder


def test_missing_layers_are_refused_by_name(tmp_path: Path) -> None:
    folder = configured(save_tiny(tmp_path, layers=1), num_hidden_layers=3)
    said = r"lack 18 tensors \(model\.layers\.1\.input_layernorm\.weight, .*, and 15 more\)"
    with pytest.raises(ModelError, match=said) as caught:
        load(folder, options=ON_CPU)
    assert str(folder) in str(caught.value)


def test_a_missing_tensor_of_the_draft_is_refused_too(tmp_path: Path) -> None:
    target, draft = save_tiny(tmp_path / "target"), save_tiny(tmp_path / "draft", layers=1)
    change_tensors(draft, lambda tensors: tensors.pop("model.layers.0.mlp.up_proj.weight"))
    with pytest.raises(ModelError, match=r"draft'.* lack 1 tensor \(model\.layers\.0\.mlp\.up_proj\.weight\)"):
        load(target, draft, options=ON_CPU)


def test_a_model_without_its_output_layer_is_refused(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "whole")
    base = tmp_path / "base"
    shutil.copytree(folder, base)
    AutoModel.from_pretrained(folder).save_pretrained(base)
    with pytest.raises(ModelError, match=r"lack 1 tensor \(lm_head\.weight\)"):
        load(base, options=ON_CPU)


def test_tensors_that_no_layer_takes_are_refused_by_name(tmp_path: Path) -> None:
    folder = configured(save_tiny(tmp_path, layers=2), num_hidden_layers=1)
    with pytest.raises(ModelError, match=r"hold 9 tensors that the model has no place for \(model\.layers\.1\..*6 more\)"):
        load(folder, options=ON_CPU)


def test_tensors_of_another_shape_are_refused_by_name_with_both_shapes(tmp_path: Path) -> None:
    folder = configured(save_tiny(tmp_path), intermediate_size=32)
    said = r"model\.layers\.0\.mlp\.down_proj\.weight is 16 x 24 and should be 16 x 32"
    with pytest.raises(ModelError, match=said):
        load(folder, options=ON_CPU)


def test_all_kinds_of_gaps_are_told_at_once(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path)

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.mlp.other_proj.weight"] = tensors.pop("model.layers.0.mlp.up_proj.weight")

    change_tensors(folder, change)
    with pytest.raises(ModelError, match=r"lack 1 tensor \(.*up_proj\.weight\) and hold 1 tensor .*other_proj\.weight"):
        load(folder, options=ON_CPU)


def test_tied_embeddings_old_buffers_and_base_models_are_whole(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "tied", tie_word_embeddings=True)
    change_tensors(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    wanted = load(folder, options=ON_CPU).generate("the fox", seed=1).token_ids
    base = tmp_path / "base"
    shutil.copytree(folder, base)
    AutoModel.from_pretrained(folder).save_pretrained(base)
    for found in (folder, base):
        assert load(found, options=ON_CPU).generate("the fox", seed=1).token_ids == wanted


@pytest.mark.parametrize(("draft", "tensor"), [("block", "question.k_proj.weight"), ("heads", "bias"), (None, "")])
def test_translation_models_and_their_drafters_are_looked_at_too(
    translation: Path, tmp_path: Path, draft: str | None, tensor: str
) -> None:
    name, tensor = (draft, tensor) if draft else ("target", "model.decoder.layers.1.fc1.weight")
    shutil.copytree(translation / name, tmp_path / name)
    whole = {"target": translation / "target", "draft": None if draft is None else translation / draft}
    damaged = {**whole, "draft" if draft else "target": tmp_path / name}
    load_translator(whole["target"], whole["draft"], options=ON_CPU)
    change_tensors(tmp_path / name, lambda tensors: tensors.pop(tensor))
    with pytest.raises(ModelError, match=rf"lack 1 tensor \({tensor}\)"):
        load_translator(damaged["target"], damaged["draft"], options=ON_CPU)


def test_the_bundled_models_are_whole() -> None:
    assert draftwood.load(options=ON_CPU).draft is not None
    assert draftwood.load_translator(options=ON_CPU).draft is not None


def test_training_does_not_fill_gaps_of_its_target_either(tmp_path: Path) -> None:
    from draftwood.train.lm import saved_model

    folder = save_tiny(tmp_path)
    saved_model(folder)
    change_tensors(folder, lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(ModelError, match=r"model\.norm\.weight"):
        saved_model(folder)
