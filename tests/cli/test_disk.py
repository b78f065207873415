"""A disk that is full is named by its file; UTF-8 typed under a locale that knows none is read."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftwood.cli.job import output
from draftwood.core.files import replace_file
from tests.cli.jobs import Job

SHORT = ["--max-new-tokens", "4", "--ignore-eos", "--seed", "5"]


def full(number):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_named_by_the_partial_translation(run, translation, tmp_path, monkeypatch):
    job = Job(run, ["--target", translation / "target"], tmp_path, command="translate")
    job.write("ein Haus")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert job.fails(code=1) == f"Error: {job.out}.partial: No space left on device\n"
    with monkeypatch.context() as patch:
        patch.setattr(output, "replace_file", lambda path, text: full(0))
        job.fails(code=1)
    job.succeeds()


LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
from pathlib import Path
from draftwood.core.files import replace_file
try:
    replace_file(Path(sys.argv[1]), "x" * 5000)
except OSError as error:
    print(error.filename)
"""


@pytest.mark.skipif(os.name == "nt", reason="there are no such limits")
def test_a_file_that_may_not_grow_is_named_and_not_left_half_written(tmp_path, environment):
    path = tmp_path / "report.json"
    replace_file(path, "before")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout == f"{path}.part\n", done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]
    assert path.read_text(encoding="utf-8") == "before"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize(("options", "unbuffered"), [(["--input", "prompts.jsonl"], ""), (["the fox"], "1"), (["info"], "")])
def test_a_full_standard_output_is_named(pair, prompts, environment, options, unbuffered):
    words = options if "info" in options else ["generate", *pair, *SHORT, *options]
    with open("/dev/full", "wb") as out:
        done = subprocess.run(
            [sys.executable, "-m", "draftwood", *words],
            cwd=prompts.parent, stdout=out, stderr=subprocess.PIPE, text=True, check=False,
            env={**environment, "PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stderr == "Error: standard output: No space left on device\n"


@pytest.mark.skipif(os.name == "nt", reason="there is no such shell")
@pytest.mark.parametrize("options", [["the fox"], ["the fox", "--json"], ["--input", "prompts.jsonl"]])
def test_a_standard_output_that_is_closed_is_named(pair, prompts, environment, options):
    words = [sys.executable, "-m", "draftwood", "generate", *pair, *SHORT, *options]
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *words], cwd=prompts.parent, stderr=subprocess.PIPE, text=True, check=False,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("Error: standard output is closed")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_help_on_a_full_standard_output_fails_in_a_sentence(environment):
    with open("/dev/full", "wb") as out:
        command = [sys.executable, "-m", "draftwood", "--help"]
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (1, "Error: No space left on device\n")
