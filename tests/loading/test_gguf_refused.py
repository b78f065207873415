"""GGUF files that are damaged, incomplete or unsupported are refused by name, in one sentence."""

import random
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import draftwood
from draftwood.core.errors import ModelError
from draftwood.loading import causal, gguf_model
from draftwood.loading.gguf_config import stored_config
from draftwood.loading.gguf_header import read_header
from draftwood.loading.names import resolve
from draftwood.loading.outline import Outline, outline_of
from draftwood.runners.backends import VARIABLE
from tests.loading.gguf_files import F16, F32, source, write_gguf


def refusal(file):
    """The message, the same for every backend."""
    messages = set()
    for backend in ("torch", "native"):
        with pytest.raises(ModelError) as caught:
            draftwood.load(file, options={"backend": backend})
        messages.add(str(caught.value))
    [message] = messages
    assert str(file) in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "there is no file"),
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "is a pointer of Git LFS, not the file: run 'git lfs pull'"),
        (b"PK\x03\x04 a zip archive", "is not a GGUF file"),
        (b"GGUF", "damaged or incomplete"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1 of the format"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "no architecture"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60), "damaged or incomplete"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 0, 2**62), "damaged or incomplete"),
    ],
)
def test_what_is_no_gguf_file_is_said(tmp_path, data, said):
    file = tmp_path / "x.gguf"
    if data is not None:
        file.write_bytes(data)
    assert said in refusal(file)


def test_a_truncated_file_is_incomplete_wherever_it_ends(file):
    data = file.read_bytes()
    start = read_header(file).data_start
    for end in (5, 20, 100, start // 2, start - 50, start + 1, (start + len(data)) // 2, len(data) - 64):
        file.write_bytes(data[:end])
        assert "incomplete" in refusal(file), end


def test_a_damaged_header_is_an_error_of_the_file_and_is_found_at_once(file):
    data, start, random_ = file.read_bytes(), read_header(file).data_start, random.Random(0)
    kept = 0  # for example where a name has changed
    for _ in range(300):
        damaged = bytearray(data)
        for at in random_.sample(range(start), 3):
            damaged[at] = random_.randrange(256)
        file.write_bytes(damaged)
        with suppress(ModelError):
            read_header(file)
            kept += 1
    assert 0 < kept < 270


@pytest.mark.parametrize("kind", [15, 7777])
def test_quantisations_that_cannot_be_read_are_named(tmp_path, kind):
    file = write_gguf(tmp_path / "x.gguf", *source(), F16)
    data = file.read_bytes()
    entry = b"blk.0.ffn_up.weight" + struct.pack("<IQQ", 2, 32, 64)
    at = data.index(entry) + len(entry)
    file.write_bytes(data[:at] + struct.pack("<I", kind) + data[at + 4 :])
    message = refusal(file)
    assert f"in type {kind}, which" in message
    assert "give the model's safetensors folder or hub name" in message


ADVICE = "give the model's safetensors folder"
KEYS = [
    ({"rope.dimension_count": 8}, ["llama.rope.dimension_count 8", "16 is computed"]),
    ({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, ["llama.rope.scaling.type 'yarn'"]),
    ({"rope.scaling.factor": float("nan")}, ["llama.rope.scaling.factor nan"]),
    ({"rope.scaling.attn_factor": 0.5}, ["llama.rope.scaling.attn_factor 0.5"]),
    ({"rope.dimension_sections": [4, 2, 2, 0]}, ["llama.rope.dimension_sections [4, 2, 2, 0]"]),
    ({"attention.head_count_kv": [1, 2]}, ["llama.attention.head_count_kv [1, 2]"]),
    ({"attention.value_length": 8}, ["llama.attention.value_length 8", "16 is computed"]),
    ({"attention.scale": 0.5}, ["llama.attention.scale 0.5"]),
    ({"attention.causal": False}, ["llama.attention.causal False"]),
    ({"attention.sliding_window": 16}, ["llama.attention.sliding_window 16"]),
    ({"logit_scale": 0.5}, ["llama.logit_scale 0.5"]),
    ({"residual_scale": 0.0}, ["llama.residual_scale 0.0"]),
    ({"expert_count": 8}, ["does not say llama.expert_used_count"]),
    ({"expert_used_count": 2}, ["llama.expert_used_count 2"]),
    ({"a_key_of_tomorrow": "x"}, ["llama.a_key_of_tomorrow 'x'"]),
]
"""Keys of a Llama that change what it computes, or that are not known."""
TOKENIZER_KEYS = [
    ({"add_space_prefix": True}, ["tokenizer.ggml.add_space_prefix True", "False is computed"]),
    ({"remove_extra_whitespaces": True}, ["tokenizer.ggml.remove_extra_whitespaces True", "is not read"]),
    ({"precompiled_charsmap": [1, 2]}, ["tokenizer.ggml.precompiled_charsmap [1, 2]"]),
    ({"a_key_of_tomorrow": 1}, ["tokenizer.ggml.a_key_of_tomorrow 1"]),
]
"""Keys of a tokenizer that could change tokens."""


@pytest.mark.parametrize(("settings", "said"), [
    *(({"metadata": {f"{kind}.{name}": value for name, value in said.items()}}, [*words, ADVICE])
      for kind, keys in (("llama", KEYS), ("tokenizer.ggml", TOKENIZER_KEYS)) for said, words in keys),
    ({"pre": None}, ["does not say tokenizer.ggml.pre", "must name a way", ADVICE]),
    *(({"pre": name}, [f"tokenizer.ggml.pre '{name}'", ADVICE]) for name in ("default", "not-a-name")),
    ({"arch": "clip"}, ["'clip'", ADVICE]),
    ({"arch": "t5"}, ["'t5'"]),  # an encoder and a decoder
    ({"leave_out": "blk.1.ffn_up.weight"}, ["lacks tensor 'blk.1.ffn_up.weight'"]),
    ({"leave_out": "token_embd.weight"}, ["lacks tensor 'token_embd.weight'"]),
    ({"extra": {"blk.0.attn_sinks.weight": np.ones(32, np.float32)}}, ["holds tensor 'blk.0.attn_sinks.weight', which"]),
    ({"extra": {"blk.0.ffn_up.weight": np.ones((32, 32), np.float32)}}, ["'blk.0.ffn_up.weight' as 32 x 32", "64 x 32"]),
    ({"extra": {"output.weight": np.ones((5, 32), np.float32)}}, ["'output.weight' as 5 x 32"]),
    ({"metadata": {"tokenizer.ggml.model": "rwkv"}}, ["the tokenizer in", "'rwkv'"]),
    ({"metadata": {"split.count": 3}}, ["one of 3 parts"]),
])  # fmt: skip
def test_models_that_cannot_be_read_whole_are_refused_by_name(tmp_path, settings, said):
    message = refusal(write_gguf(tmp_path / "x.gguf", *source(), F32, **settings))
    assert all(part in message for part in said)


def test_arrays_in_place_of_single_values_are_no_values_and_as_the_alignment_an_error_of_the_file(tmp_path):
    names = "general.file_type", "llama.context_length", "tokenizer.chat_template", "split.count"
    arrays = {name: [1, 2] for name in (*names, "tokenizer.ggml.add_bos_token", "tokenizer.ggml.cls_token_id")}
    file = write_gguf(tmp_path / "x.gguf", *source(), F32, metadata=arrays, template=None)
    found = outline_of(file)
    assert (found.architecture, found.quantisation, found.template, found.length) == ("llama", "unknown", "", None)
    assert "llama.context_length [1, 2]" in refusal(file)
    del arrays["llama.context_length"]
    file = write_gguf(tmp_path / "y.gguf", *source(), F32, metadata=arrays, template=None)
    assert draftwood.load(file).tokenizer.chat_template is None
    file = write_gguf(tmp_path / "z.gguf", *source(), F32, metadata={"tokenizer.ggml.padding_token_id": [1, 2]})
    assert stored_config(read_header(file))["pad_token_id"] is None
    file = write_gguf(tmp_path / "v.gguf", *source(), F32, metadata={"general.alignment": [32, 32]})
    assert "damaged" in refusal(file)
    assert outline_of(file) == Outline()


def test_without_the_native_library_a_file_is_refused(file, monkeypatch):
    monkeypatch.setattr(gguf_model, "why_missing", lambda: "there is no compiler")
    with pytest.raises(ModelError, match=r"which is missing \(there is no compiler\): build it, or give the model's"):
        draftwood.load(file, options={"backend": "torch"})


def test_a_file_that_does_not_fit_in_memory_is_refused_before_it_is_read(file, monkeypatch):
    monkeypatch.setattr(causal, "available_memory", lambda: 1000)
    monkeypatch.delenv(VARIABLE)  # PyTorch, in tests
    for backend in ("native", "auto"):
        with pytest.raises(ModelError, match=r"fox.gguf' needs 0.0 GB of memory, and 0.0 GB are available: take a smaller"):
            draftwood.load(file, options={"backend": backend})


def test_a_folder_may_hold_one_gguf_file_only(file):
    assert resolve(file.parent) == resolve(file)
    write_gguf(file.with_name("hen.GGUF"), *source(seed=2))
    with pytest.raises(ModelError, match=r"holds 2 GGUF files.*fox.gguf, hen.GGUF"):
        resolve(file.parent)


def test_a_folder_with_a_config_is_that_model(file):
    model, tokenizer = source(seed=3)
    model.save_pretrained(file.parent)
    tokenizer.save_pretrained(file.parent)
    assert resolve(file.parent) == file.parent
    assert draftwood.load(file.parent, options={"backend": "torch"}).encode("the")


def test_names_that_are_no_paths_stay_as_they_are():
    names = ["someone/model", "", Path("nowhere"), 7, None]
    assert [resolve(name) for name in names] == names
