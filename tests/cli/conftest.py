"""A tiny pair of models with a byte-level tokenizer in a folder, and a way to call the program."""

import json
import os
import signal
import sys

import pytest
from click.testing import CliRunner

from draftwood.cli import main
from tests.cli.jobs import Job
from tests.faults.folders import tiny_llama, tiny_tokenizer
from tests.other_tokens import pieces

SIZES = {"hidden_size": 32, "num_key_value_heads": 1, "intermediate_size": 48, "max_position_embeddings": 96}
WORDS = ["the fox ran to the hill and the hen sat on the red hill", "a dog and a hen ran and sat", "once upon a time 1 2 3"]


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folders ``target``, ``draft``, ``stranger`` (no token of the target's) and ``bare`` (no beginning-of-text token)."""
    folder = tmp_path_factory.mktemp("models")
    for name, seed, layers in (("target", 1, 2), ("draft", 1, 1), ("stranger", 3, 1), ("bare", 1, 1)):
        start = {"bos_token": None} if name == "bare" else {}
        tokenizer = pieces("ζξψ") if name == "stranger" else tiny_tokenizer(WORDS, 290, **start)
        model = tiny_llama(len(tokenizer), layers=layers, seed=seed, **SIZES)
        model.generation_config.update(do_sample=True, top_k=0)  # as the bundled pair asks
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="session")
def pair(models):
    """Options that name the pair."""
    return ["--target", str(models / "target"), "--draft", str(models / "draft")]


@pytest.fixture
def run(monkeypatch):
    """Call the program in this process; ``--compare`` has time for one run of each, and no other process is seen."""
    monkeypatch.delenv("DRAFTWOOD_DEBUG", raising=False)
    monkeypatch.setattr("draftwood.cli.comparison.SECONDS", 0.0)
    monkeypatch.setattr("draftwood.hardware.cores.CoreMeter.taken", lambda meter: 0.0)

    def call(*args, stdin=None):
        return CliRunner().invoke(main, [str(arg) for arg in args], input=stdin, prog_name="draftwood")

    return call


@pytest.fixture
def job(run, pair, prompts, request):
    """A command from the prompts to a file of answers, with the options ``SHORT`` of the test's file."""
    return Job(run, [*pair, *request.module.SHORT], prompts.parent)


@pytest.fixture(scope="session")
def environment():
    """For a process of its own: it finds the package, and one thread is enough."""
    path = os.pathsep.join(p for p in sys.path if p)
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"}


@pytest.fixture
def prompts(tmp_path):
    """Seven prompts, some with a seed or an id, and a blank line."""
    path = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"the fox {i}"} for i in range(7)]
    lines[1] |= {"seed": 70, "id": "one"}
    lines[4] |= {"id": [4], "topic": "foxes"}
    texts = [json.dumps(line) for line in lines]
    path.write_text("\n".join([*texts[:3], "", *texts[3:]]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def interruptible():
    """SIGINT as on a terminal: where the tests run in the background it is ignored from the start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
