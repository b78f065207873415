"""A target that two processes share."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

import draftwood
from draftwood import LoadOptions
from draftwood.cli import main
from draftwood.core.errors import ConfigError, ModelError
from draftwood.loading.shared import _shards
from draftwood.ray.spec import ReplicaSpec
from draftwood.runners.pairing import vocabulary_digest
from tests.helpers import tiny_gpt, tiny_hidden
from tests.runners.shared_cases import SOME, Started, both, command, commands, loaded, texts
from tests.tiny_chat import chat_tokenizer, save_chat

OPTIONS = ["--dtype", "float64", "--profile", "none", "--temperature", "1", "--seed", "5", "--threads", "1"]
SECONDS = 40  # within which all processes have ended, on a busy machine


os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # the store of a dead process


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A target of four heads, a draft model, and a drafter of hidden states that shares the target's vocabulary."""
    folder = tmp_path_factory.mktemp("shared")
    longest = {"max_position_embeddings": 2048}  # a text that is still being written when signals come
    save_chat(folder / "target", num_attention_heads=4, hidden_size=32, num_key_value_heads=2, **longest)
    save_chat(folder / "draft", layers=1, seed=1, **longest)
    model = draftwood.load(folder / "target", options={"dtype": "float64", "backend": "torch", "profile": "none"}).model
    drafter = tiny_hidden(model)
    drafter.config.vocabulary = vocabulary_digest(chat_tokenizer())
    drafter.save_pretrained(folder / "hidden")
    return folder


@pytest.fixture(scope="module")
def pair_options(folder):
    return ["--target", str(folder / "target"), "--draft", str(folder / "draft"), *OPTIONS]


@pytest.fixture(scope="module")
def written(folder, tmp_path_factory):
    """What two processes have written."""
    (status, out, errors), other = Started(tmp_path_factory.mktemp("both"), both, folder).wait(2 * SECONDS)
    assert status == 0, errors
    assert other == (1, "", "")
    return json.loads(out)


@pytest.mark.parametrize("draft", ["draft", "hidden"])
def test_texts_are_those_of_one_process(folder, written, draft):
    alone = json.loads(json.dumps(texts(loaded(folder, draft), *([SOME] if draft == "hidden" else []))))
    assert written["hidden" if draft == "hidden" else "texts"] == alone
    assert written["engine"] == "torch x2"


def test_an_error_of_another_process_is_reported_by_the_first(written):
    assert written["load"] == "process 1 of 2: no such file here"
    assert written["broken"] == ["process 1 of 2: out of memory: take a shorter number format or more processes"] * 2
    assert "shared by 2 processes" in written["direct"]


def test_torchrun_starts_the_command(pair_options, tmp_path):
    lines = tmp_path / "prompts.jsonl"
    lines.write_text("".join(json.dumps({"prompt": f"the fox {i}"}) + "\n" for i in range(5)), encoding="utf-8")
    options = ["generate", *pair_options, "--input", str(lines), "--max-new-tokens", "6", "--batch-size", "2"]
    alone = CliRunner().invoke(main, [*options, "--backend", "torch", "--output", str(tmp_path / "alone.jsonl")])
    assert alone.exit_code == 0, alone.output
    shared = [*options, "--tensor-parallel", "--output", str(tmp_path / "shared.jsonl")]
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "draftwood"]
    made = subprocess.run([*start, *shared], text=True, capture_output=True, check=False, timeout=2 * SECONDS)
    assert made.returncode == 0, made.stderr
    assert made.stderr.count("seed 5") == 1
    found, wanted = (
        [json.loads(line)["token_ids"] for line in (tmp_path / f"{name}.jsonl").read_text("utf-8").splitlines()]
        for name in ("shared", "alone")
    )
    assert found == wanted


def test_other_commands_are_those_of_rank_0(folder, pair_options, tmp_path):
    few = ["--dtype", "float64", "--threads", "1", "--temperature", "0", "--prompts", "1", "--max-new-tokens", "4"]
    lines = {
        "tune": [*pair_options[:4], *few, "--minutes", "0.001", "--out"],
        "trace": [*pair_options, "--max-new-tokens", "8", "the fox", "--json"],
    }
    given = [[name, "--tensor-parallel", *line, str(tmp_path / f"{name}.json")] for name, line in lines.items()]
    first, second = Started(tmp_path, commands, given).wait(4 * SECONDS)
    assert (first[0], second) == (0, (0, "", "")), first
    for name, times in (("tune", 1), ("trace", 0)):
        assert (tmp_path / f"{name}.json").read_text("utf-8").count("torch x2") == times
    alone = tmp_path / "alone.json"
    assert CliRunner().invoke(main, ["trace", "--backend", "torch", *lines["trace"], str(alone)]).exit_code == 0
    found, wanted = (json.loads(path.read_text("utf-8"))["traces"][0] for path in (tmp_path / "trace.json", alone))
    assert found["tokens"] == wanted["tokens"]


def writing(pair_options, folder):
    """Two processes that write a long text."""
    options = [*pair_options, "--tensor-parallel", "--max-new-tokens", "1900", "--ignore-eos", "--method", "chain"]
    started = Started(folder, command, "generate", *options, "the fox")
    while not started.outputs[0].exists() or not started.outputs[0].stat().st_size:
        assert started.processes[0].is_alive()
        time.sleep(0.01)
    return started


@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_that_is_killed_ends_the_other_with_a_sentence(pair_options, killed, tmp_path):
    started = writing(pair_options, tmp_path)
    os.kill(started.processes[killed].pid, signal.SIGKILL)
    status, _, errors = started.wait(10)[1 - killed]
    assert status == 1
    assert errors.count("has ended, so no text can go on") == errors.count("\n") == 1


def test_rank_0_decides_what_a_signal_to_all_means(pair_options, tmp_path):
    started = writing(pair_options, tmp_path)
    os.kill(started.processes[1].pid, signal.SIGTERM)
    for process in started.processes:
        os.kill(process.pid, signal.SIGINT)
    (status, text, errors), second = started.wait(SECONDS)
    assert (status, second) == (130, (0, "", ""))
    assert errors.startswith("Stopped: ")
    assert errors.endswith("seed 5.\n")
    assert text


def test_what_is_refused_before_loading_ends_all(pair_options, tmp_path):
    options = ["generate", *pair_options, "--tensor-parallel", "--nodes", "0"]
    first, second = Started(tmp_path, command, *options, "the fox").wait(SECONDS)
    assert (first[0], first[1], second) == (2, "", (0, "", ""))
    assert first[2].startswith("Error: nodes is 0")


def test_a_model_that_cannot_be_divided_is_refused(folder, tmp_path):
    with pytest.raises(ModelError, match=r"3 processes cannot share this model: .* num_attention_heads=4"):
        _shards(folder / "target", LoadOptions(), 3, False)
    with pytest.raises(ModelError, match=r"4 processes cannot share this model: .* num_key_value_heads=2"):
        _shards(folder / "target", LoadOptions(), 4, False)
    tiny_gpt(20, 0).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="model type 'gpt2' cannot be shared by processes"):
        _shards(tmp_path, LoadOptions(), 2, False)
    with pytest.raises(ModelError, match="cannot be loaded"):
        _shards(tmp_path / "none", LoadOptions(), 2, False)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"backend": "native"}, "backend 'native' is impossible with tensor_parallel"),
        ({"device": "cpu"}, "device 'cpu' is impossible with tensor_parallel: each process takes its own"),
        ({"weights": "int8"}, "weights 'int8' are impossible with tensor_parallel"),
        ({"tensor_parallel": 2}, "tensor_parallel is 2"),
    ],
)
def test_options_that_exclude_it(more, said):
    with pytest.raises(ConfigError, match=said):
        LoadOptions(**{"tensor_parallel": True, **more})


def test_it_needs_torchrun(folder, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    options = LoadOptions(tensor_parallel=True, profile="none")
    with pytest.raises(ConfigError, match="torchrun has not started this one"):
        draftwood.load(folder / "target", options=options)
    with pytest.raises(ConfigError, match="tensor_parallel True was given, but it is for causal language models only"):
        draftwood.load_translator(options=options)
    with pytest.raises(ConfigError, match="Ray starts these"):
        ReplicaSpec(loading=options)


@pytest.mark.parametrize("command", [["check"], ["bench", "--transformers"]])
def test_commands_that_call_the_whole_model_refuse_it(command):
    result = CliRunner().invoke(main, [*command, "--tensor-parallel"])
    assert result.exit_code == 2
    assert "the whole model" in result.output
