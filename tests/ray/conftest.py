"""A tiny pair, prompts in a file, and what ``draftwood generate --input`` writes for them."""

import json

import pytest
from click.testing import CliRunner

from draftwood import LoadOptions, Method
from draftwood.cli import main
from draftwood.ray.spec import ReplicaSpec
from draftwood.ray.writer import WriteSettings

OPTIONS = ["--backend", "torch", "--dtype", "float32", "--profile", "none", "--method", "shared-noise", "--shape", "2-2"]
OPTIONS += ["--max-new-tokens", "12", "--temperature", "0.9", "--seed", "11"]
SETTINGS = WriteSettings(id="index", seed=11, sampling={"temperature": 0.9}, limits={"max_new_tokens": 12}, rows=4)


def draftwood(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="draftwood")


@pytest.fixture(scope="session")
def spec(folders):
    """A spec of the tiny pair, with further fields."""

    def make(**more):
        loading = LoadOptions(backend="torch", dtype="float32", profile="none", threads=1)
        method = Method(method="shared-noise", shape="2-2")
        return ReplicaSpec(
            **{"target": str(folders[0]), "draft": str(folders[1]), "loading": loading, "method": method} | more
        )

    return make


@pytest.fixture(scope="session")
def prompts(tmp_path_factory):
    """Thirty prompts; one has a seed, and one line is none."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    lines = [{"prompt": f"the fox {i}", "id": f"row {i}"} for i in range(30)]
    lines[3]["seed"] = 70
    lines[5] = {"text": "no prompt"}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def generated(folders, prompts, tmp_path_factory):
    """What one process writes, by line."""
    out = tmp_path_factory.mktemp("generated") / "out.jsonl"
    models = ["--target", folders[0], "--draft", folders[1], "--threads", 1]
    result = draftwood("generate", *models, *OPTIONS, "--input", prompts, "--output", out)
    assert result.exit_code == 1, result.output  # one line is none
    return records(out)


def records(path):
    """The records of a file by line, without times; none is there twice."""
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len({one["index"] for one in found}) == len(found)
    return {one["index"]: timeless(one) for one in found}


def timeless(record):
    """A record without what a second run has otherwise: times, and how many threads were given."""
    settings = {name: value for name, value in record["settings"].items() if name != "given"}
    return {name: value for name, value in record.items() if name != "stats"} | {"settings": settings}
