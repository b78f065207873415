"""A checkpoint that does not hold the tensors of its model is refused by their names; nothing is made up."""

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from draftwood import LoadOptions, ModelError, load, load_translator
from tests.faults.folders import change_json, change_tensors, save_tiny

ON_CPU = LoadOptions(dtype="float32", device="cpu", backend="torch")


def configured(folder, **settings):
    change_json(folder / "config.json", **settings)
    return folder


def renamed(tensors):
    tensors["model.layers.0.mlp.other_proj.weight"] = tensors.pop("model.layers.0.mlp.up_proj.weight")


def based(folder):
    """The same model without its output layer."""
    base = Path(shutil.copytree(folder, folder.parent / "base"))
    AutoModel.from_pretrained(folder).save_pretrained(base)
    return base


GAPS = [
    (
        lambda folder: configured(folder, num_hidden_layers=3),
        r"lack 9 tensors \(model\.layers\.2\.input_layernorm\.weight, .*, and 6 more\)",
    ),
    (
        lambda folder: configured(folder, num_hidden_layers=1),
        r"hold 9 tensors that the model has no place for \(model\.layers\.1\..*6 more\)",
    ),
    (
        lambda folder: configured(folder, intermediate_size=32),
        r"model\.layers\.0\.mlp\.down_proj\.weight is 16 x 24 and should be 16 x 32",
    ),
    (
        lambda folder: change_tensors(folder, renamed),
        r"lack 1 tensor \(.*up_proj\.weight\) and hold 1 tensor .*other_proj\.weight",
    ),
    (
        lambda folder: configured(save_tiny(folder, tie_word_embeddings=True), tie_word_embeddings=False),
        r"lack 1 tensor \(lm_head\.weight\)",
    ),
    (lambda folder: AutoModel.from_pretrained(folder).save_pretrained(folder), r"lack 1 tensor \(lm_head\.weight\)"),
]


@pytest.mark.parametrize(("damage", "said"), GAPS, ids=["missing", "unknown", "shape", "both", "output layer", "base"])
def test_gaps_are_refused_by_name_in_a_target_and_in_a_draft(tmp_path, damage, said):
    folder, whole = save_tiny(tmp_path / "damaged"), save_tiny(tmp_path / "whole")
    damage(folder)
    for models in ((folder,), (whole, folder)):
        with pytest.raises(ModelError, match=said) as caught:
            load(*models, options=ON_CPU)
        assert str(folder) in str(caught.value)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
FILES = [
    ("model.safetensors", LFS, "a pointer of Git LFS, not the file: run 'git lfs pull'"),
    ("tokenizer.json", LFS, "a pointer of Git LFS, not the file: run 'git lfs pull'"),
    ("model.safetensors", b"<!DOCTYPE html>", "header too large.*copy or download that file again"),
]


@pytest.mark.parametrize(("name", "data", "said"), FILES)
@pytest.mark.parametrize("backend", ["torch", "native"])
def test_a_file_that_was_not_downloaded_is_named_with_what_to_do(tmp_path, backend, name, data, said):
    folder = save_tiny(tmp_path / "clone")
    (folder / name).write_bytes(data)
    with pytest.raises(ModelError, match=said) as caught:
        load(folder, options=LoadOptions(dtype="float32", device="cpu", backend=backend))
    assert str(folder / name) in str(caught.value)


def test_a_folder_with_an_adapter_alone_is_not_a_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="merge its adapter into the model"):
        load(tmp_path, options=ON_CPU)


def test_tied_embeddings_old_buffers_and_base_models_are_whole(tmp_path):
    folder = save_tiny(tmp_path / "tied", tie_word_embeddings=True)
    change_tensors(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    wanted = load(folder, options=ON_CPU).generate("the fox", seed=1).token_ids
    for found in (folder, based(folder)):
        assert load(found, options=ON_CPU).generate("the fox", seed=1).token_ids == wanted


@pytest.mark.parametrize(
    ("part", "tensor"), [("draft", "question.k_proj.weight"), ("target", "model.decoder.layers.1.fc1.weight")]
)
def test_translation_models_and_their_drafters_are_looked_at_too(translation, tmp_path, part, tensor):
    models = {"target": translation / "target", "draft": translation / "block"}
    load_translator(**models, options=ON_CPU)
    models[part] = Path(shutil.copytree(models[part], tmp_path / part))
    change_tensors(models[part], lambda tensors: tensors.pop(tensor))
    with pytest.raises(ModelError, match=rf"lack 1 tensor \({tensor}\)"):
        load_translator(**models, options=ON_CPU)


# Tied embeddings --------------------------------------------------------------------------------------------------------

BACKENDS = pytest.mark.parametrize("backend", ["torch", "native"])
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def texts_of(folder, role, backend):
    """A text that the model writes, or that it drafts and a target of its kind writes."""
    options = LoadOptions(dtype="float32", device="cpu", backend=backend)
    if role == "target":
        return load(folder, options=options).generate("the fox", seed=1, max_new_tokens=8).token_ids
    pair = load(save_tiny(folder.parent / "whole", seed=3), folder, options=options)
    result = pair.generate("the fox", seed=1, max_new_tokens=8, method="rsd-s")
    assert result.stats.drafted
    return result.token_ids


@BACKENDS
@pytest.mark.parametrize("role", ["target", "draft"])
def test_two_different_embeddings_that_are_said_to_be_tied_stay_two_and_the_user_is_told(tmp_path, role, backend, caplog):
    """The rule of transformers since 5.5 (huggingface/transformers#48154): the files count, not the flag."""
    caplog.set_level("WARNING", logger="draftwood.loading.checkpoint")
    untied = save_tiny(tmp_path / "untied", tie_word_embeddings=False)
    said = configured(Path(shutil.copytree(untied, tmp_path / "said")), tie_word_embeddings=True)
    once = save_tiny(tmp_path / "once", tie_word_embeddings=True)
    twice = Path(shutil.copytree(once, tmp_path / "twice"))
    change_tensors(twice, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].clone()}))
    wanted = texts_of(untied, role, backend)
    assert texts_of(twice, role, backend) == texts_of(once, role, backend)
    assert "tied" not in caplog.text, "control: an output embedding that repeats a tied one is no fault"
    assert texts_of(said, role, backend) == wanted
    told = f"the config of {str(said)!r} says that input and output embeddings are tied, but its files hold two different"
    assert told in caplog.text
