"""Files that cost what larger ones cost, and what inputs of 8 bits cost and change in such a file."""

import json
import sys
from math import log
from unittest.mock import MagicMock

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM

import draftwood
from benchmarks import files, llama_wheel
from benchmarks.divergence import compared, log_scores
from benchmarks.settings import Setting
from draftwood.native.library import instruction_set
from tests.benchmarks.tiny import call
from tests.loading.gguf_files import source, write_gguf

EIGHT, SIXTEEN = (f"native {bits}{instruction_set()}" for bits in ("8-bit activations ", ""))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A tiny model in the format that files are made from."""
    return write_gguf(tmp_path_factory.mktemp("small") / "small.gguf", *source())


@pytest.fixture(scope="module")
def random_file(small):
    files.write_random(small, path := small.with_name("random.gguf"), 256, 2, 512, heads=4, shared=2)
    return path


def opened(path):
    return draftwood.load(path, options={"backend": "native", "profile": "none"})


def test_a_wider_file_is_made_once_and_the_same_model_to_the_bit(small, tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))
    monkeypatch.setattr(files, "locate", lambda name: small)
    files.write_wide(small, tmp_path / "same.gguf", times=1)
    same, wide = opened(tmp_path / "same.gguf"), opened(files.named_file(files.WIDE))
    assert wide.model.config.intermediate_size == 12 * same.model.config.intermediate_size
    assert torch.equal(*(log_scores(pair.target, list(range(1, 30))) for pair in (same, wide)))
    monkeypatch.setattr(files, "write_wide", None)
    assert [files.named_file(name) for name in (files.WIDE, "smollm2", None)] == [wide.model.name_or_path, "smollm2", None]


def test_random_codes_have_the_types_of_a_usual_file(random_file):
    kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(random_file).tensors if len(t.shape) > 1}
    six = {"token_embd.weight", "blk.1.attn_v.weight", "blk.1.ffn_down.weight"}
    assert kinds == {name: "Q6_K" if name in six else "Q4_K" for name in kinds}


def test_folders_have_the_sizes_of_published_models(small, tmp_path):
    found = {}
    for name, settings in files.FOLDERS.items():
        with torch.device("meta"):
            found[name] = AutoModelForCausalLM.from_config(files.config_of(settings)).num_parameters() / 1e6
    assert found == pytest.approx(
        {"random-qwen3.5-0.8b": 752, "random-attention-0.8b": 695, "random-granite-4-h-350m": 340, "random-lfm2-350m": 354},
        rel=0.03,
    )
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}
    settings = {**files.FOLDERS["random-lfm2-350m"], **sizes, "num_attention_heads": 4, "num_key_value_heads": 2}
    files.write_folder(small, tmp_path / "folder", settings)
    pair = opened(tmp_path / "folder")
    assert (pair.target.engine, pair.model.config.layer_types) == (f"native {instruction_set()}", sizes["layer_types"])


def test_divergence_is_that_of_the_distributions():
    right, other = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log(), torch.tensor([[0.25, 0.75], [0.9, 0.1]]).log()
    found = compared(right, other, [0, 1])
    wanted = {"divergence": 0.5 * log(4 / 3), "tokens": 2, "same_best": 1, "following": 1}
    assert found == pytest.approx({**wanted, "surprise_16": log(2), "surprise_8": -log(0.75)})


def test_both_arithmetics_of_a_file_are_timed_and_compared(random_file, tmp_path):
    options = "--tokens", 1, "--context", 5, "--repeats", 1, "--prompt", 9, "--activations", 8, "--activations", 16
    report = call("cost", "--backend", "native", "--target", random_file, *options, "--output", tmp_path).output
    assert all(f"| {engine} | " in report.partition("A prompt of 9 tokens")[2] for engine in (EIGHT, SIXTEEN))
    (tmp_path / "a.val.txt").write_text("the fox and the dog " * 30)
    options = "--pieces", 2, "--tokens", 40, "--data", tmp_path, "--output", tmp_path
    assert "| all | 80 |" in call("divergence", "--target", random_file, *options).output
    document = json.loads((tmp_path / "divergence.json").read_text())
    assert (document["model"]["engine"], document["against"]) == (EIGHT, SIXTEEN)
    assert 0 < document["sources"][0]["divergence"] / 80 < 0.1


def test_the_wheel_of_llama_cpp_gets_token_ids_and_says_its_times(small, monkeypatch):
    times, server = {"prompt_ms": 500.0, "predicted_per_token_ms": 20.0}, MagicMock()
    said = server.Server().handle_completions
    said.return_value = {"usage": {"completion_tokens": 3}, "choices": [{"text": "x"}], "timings": times}
    monkeypatch.setitem(sys.modules, "xllamacpp", server)
    program = llama_wheel.LlamaWheel(opened(small))
    found = program.maker(Setting(method="llama.cpp-file"), 0.5, 9)([[1, 2, 3]], [7])
    assert (len(found.tokens[0]), found.forwards, program.seconds(5, 2)) == (3, 3, (0.5, 0.02))
    asked = {"prompt": [1, 2, 3], "n_predict": 9, "temperature": 0.5, "seed": 7}
    assert said.call_args_list[0].args[0].items() >= asked.items()
