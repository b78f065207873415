"""Models from GGUF files: the same weights and tokens, made once, by one process, and found again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import draftwood
from draftwood.core.errors import ModelError
from draftwood.loading import gguf_convert
from draftwood.loading.gguf_store import converted, store_folder, stored
from draftwood.loading.names import resolve
from draftwood.loading.profile import default_path, document
from draftwood.tune.documents import text_of
from tests.helpers import interrupted
from tests.loading.gguf_files import BF16, F16, F32, Q4_1, Q8_0, logits, rounded, source, write_gguf

TEXT = "the fox ran to the red hill"
OPTIONS = {"backend": "torch"}


@pytest.mark.parametrize(("kind", "dtype", "more"), [
    (F32, "float32", {}), (F16, "float16", {}), (BF16, "bfloat16", {}), (Q8_0, "bfloat16", {}), (Q4_1, "bfloat16", {}),
    (F32, "float32", {"tie_word_embeddings": False}),
])  # fmt: skip
def test_logits_and_tokens_are_those_of_the_model_that_the_file_holds(
    tmp_path: Path, kind: Any, dtype: str, more: dict[str, bool]
) -> None:
    model, tokenizer = source(**more)
    path = write_gguf(tmp_path / "fox.gguf", model, tokenizer, kind, metadata={"tokenizer.ggml.eot_token_id": 7})
    pair = draftwood.load(path, options=OPTIONS)
    ids = tokenizer(TEXT)["input_ids"]
    assert pair.encode(TEXT) == ids
    assert pair.tokenizer.decode(ids) == tokenizer.decode(ids)
    assert torch.equal(logits(pair.target.model, ids), logits(rounded(model, kind, getattr(torch, dtype)), ids))
    assert [one.dtype for one in stored()] == [dtype]
    assert set(pair.eos) == {0, 7}  # the end of a turn ends a text, too


def test_target_and_draft_may_both_be_gguf_files(tmp_path: Path) -> None:
    target = write_gguf(tmp_path / "target.gguf", *source())
    draft = write_gguf(tmp_path / "draft.gguf", *source(layers=1), Q8_0)
    pair = draftwood.load(str(target), str(draft), options=OPTIONS)
    drafted, plain = (pair.generate(TEXT, max_new_tokens=12, temperature=0, method=name) for name in ("rsd-s", "ar"))
    assert drafted.token_ids == plain.token_ids


def test_chat_template_and_special_tokens_are_kept(file: Path) -> None:
    tokenizer = draftwood.load(file, options=OPTIONS).tokenizer
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hen"}], tokenize=False)
    assert text == "<end>hen"
    assert tokenizer(text)["input_ids"][0] == tokenizer.eos_token_id == 0


@pytest.mark.parametrize(("pre", "tokens"), [("gpt-2", ["Ġ", "Ġ", "5"]), ("smollm", ["ĠĠ", "5"])])
def test_digits_are_split_off_first_where_the_file_says_so(tmp_path: Path, pre: str, tokens: list[str]) -> None:
    path = write_gguf(tmp_path / "fox.gguf", *source(), pre=pre)
    splitter = draftwood.load(path, options=OPTIONS).tokenizer.backend_tokenizer.pre_tokenizer
    assert [part for part, _ in splitter.pre_tokenize_str("a  5")][-2:] == ([tokens[0], "Ġ5"] if pre == "gpt-2" else tokens)


@pytest.mark.parametrize(
    ("pre", "said", "begins"),
    [("gpt-2", True, 1), ("gpt-2", False, 0), ("gpt-2", None, 0), ("llama-bpe", True, 1), ("llama-bpe", False, 0),
     ("llama-bpe", None, 1)],
)  # fmt: skip
def test_a_text_begins_as_the_file_says_and_as_in_llama_cpp_where_it_says_nothing(
    tmp_path: Path, pre: str, said: bool | None, begins: int
) -> None:
    """ggml-org/llama.cpp#15086, abetlen/llama-cpp-python#1501: no beginning of text, two of them, or another token."""
    model, tokenizer = source()
    metadata: dict[str, int | str | bool] = {} if said is None else {"tokenizer.ggml.add_bos_token": said}
    file = write_gguf(tmp_path / "fox.gguf", model, tokenizer, F32, pre=pre, metadata=metadata)
    pair = draftwood.load(file, options=OPTIONS)
    begin, words = pair.tokenizer.bos_token_id, tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    assert pair.encode(TEXT) == [begin] * begins + words
    chat = [{"role": "user", "content": TEXT}]
    found = list(pair.chat_request(chat).prompt)
    assert found == pair.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert found.count(begin) == 1, "which the template writes"
    assert pair.encode(pair.tokenizer.apply_chat_template(chat, tokenize=False)) == found


def test_the_tokenizer_of_another_model_in_the_same_folder_is_not_read(file: Path) -> None:
    from tests.cli.conftest import _tokenizer

    _tokenizer(True, ["zebras quiz vexed jocks of my big sphinx"]).save_pretrained(file.parent)
    assert draftwood.load(file, options=OPTIONS).encode(TEXT) == source()[1](TEXT)["input_ids"]


def test_the_second_load_reads_the_cache_and_a_changed_file_is_another_model(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = converted(file)
    with monkeypatch.context() as patch:
        patch.setattr(gguf_convert, "convert", interrupted(gguf_convert.convert, 0))
        assert converted(file) == first
        assert converted(Path(shutil.copy(file, file.with_name("copy.gguf")))) == first  # its content counts
        assert [path.name for path in store_folder().iterdir()] == [first.name]  # neither lock nor unfinished folders
        assert draftwood.load(file, options=OPTIONS).profile_key["target"]["name"] == str(first)
    write_gguf(file, *source(seed=5))
    assert converted(file) != first


def test_an_interrupted_conversion_leaves_nothing_behind_and_a_cache_that_cannot_be_written_is_named(
    file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(header: Any, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(gguf_convert, "convert", stopped)
        with pytest.raises(KeyboardInterrupt):
            converted(file)
    assert list(store_folder().iterdir()) == []
    assert draftwood.load(file, options=OPTIONS).encode("the")
    shutil.rmtree(cache)
    cache.write_text("no folder")
    with pytest.raises(ModelError, match=r"cannot be kept in .*DRAFTWOOD_CACHE"):
        converted(file)


def test_remains_of_a_killed_process_and_damaged_models_are_made_again(file: Path) -> None:
    first = converted(file)
    weights = (first / "model.safetensors").read_bytes()
    killed = first.with_name(f"{first.name}.abc")
    shutil.copytree(first, killed)
    (killed / "source.json").unlink()
    (first / "model.safetensors").write_bytes(weights[:100])
    assert stored() == []
    assert converted(file) == first
    assert (first / "model.safetensors").read_bytes() == weights
    assert not killed.exists()


CHILD = """
import sys, time
from pathlib import Path
from draftwood.loading import gguf_convert, gguf_store
made, own = Path(sys.argv[2]), gguf_convert.convert
def convert(header, folder):
    with made.open("a") as log:
        log.write("x")
    time.sleep(1)
    own(header, folder)
gguf_convert.convert = convert
Path(sys.argv[3]).touch()
while len(list(Path(sys.argv[3]).parent.glob("*.ready"))) < 2:
    time.sleep(0.01)
print(gguf_store.converted(Path(sys.argv[1])))
"""


def test_two_processes_at_once_convert_it_once(file: Path, tmp_path: Path, cache: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    made = tmp_path / "made"
    commands = [[sys.executable, "-c", CHILD, str(file), str(made), str(tmp_path / f"{i}.ready")] for i in range(2)]
    running = [subprocess.Popen(c, env=environment, stdout=subprocess.PIPE, text=True) for c in commands]
    printed = {process.communicate(timeout=300)[0].strip() for process in running}
    assert printed == {str(converted(file))}
    assert made.read_text() == "x"


def test_profiles_of_tune_apply_to_a_gguf_target(file: Path) -> None:
    profile_key = draftwood.load(file, options=OPTIONS).profile_key
    assert profile_key is not None
    path = default_path(profile_key)
    path.parent.mkdir(parents=True)
    method = draftwood.Method(method="ngram", shape="7")
    path.write_text(text_of(document(profile_key, {1.0: method}, {})))
    again = draftwood.load(file, options=OPTIONS)
    assert again.method(temperature=1.0).shape == "7"


def test_rotary_scaling_of_llama_3_is_set(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    model, tokenizer = source(rope_parameters=scaling, max_position_embeddings=131072, head_dim=64)
    plain, _ = source(rope_parameters={"rope_type": "default", "rope_theta": 500000.0}, head_dim=64)
    divisors = (plain.model.rotary_emb.inv_freq / model.model.rotary_emb.inv_freq).numpy().astype(np.float32)
    assert divisors.max() == pytest.approx(32)
    path = write_gguf(tmp_path / "fox.gguf", model, tokenizer, F32, extra={"rope_freqs.weight": divisors})
    loaded = draftwood.load(path, options=OPTIONS).target.model
    ids = tokenizer(TEXT)["input_ids"] * 5
    assert torch.equal(logits(loaded, ids), logits(model, ids))
    assert not torch.equal(logits(loaded, ids), logits(plain, ids))
    odd = write_gguf(tmp_path / "odd.gguf", model, tokenizer, F32, extra={"rope_freqs.weight": divisors[::-1].copy()})
    with pytest.raises(ModelError, match="rotary embedding in a way"):
        resolve(odd)


def test_a_model_in_a_file_is_a_target_for_training(file: Path) -> None:
    from draftwood.train.config import DraftConfig
    from draftwood.train.draft import load_target

    model, _ = load_target(DraftConfig(data=Path(), out=Path(), target=file, context=32))
    assert model.config.hidden_size == 32
