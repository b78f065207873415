"""Two processes never write the same output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftwood.cli.job.lock import locked
from draftwood.core.errors import ConfigError
from tests.cli.conftest import Run

SHORT = ["--max-new-tokens", "4", "--ignore-eos"]
HOLD = """
import sys, time
from pathlib import Path
from draftwood.cli.job.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


class Other:
    """Another process that holds an output until it has to end."""

    def __init__(self, output: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(output)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"held\n"

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.communicate()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


@pytest.fixture
def other(out: Path, environment: dict[str, str]) -> Iterator[Other]:
    holder = Other(out, environment)
    yield holder
    holder.end()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_second_run_says_who_holds_the_output(run: Run, pair: list[str], prompts: Path, out: Path, other: Other) -> None:
    command = ["generate", *pair, *SHORT, "--input", prompts, "--output", out]
    second = run(*command)
    assert second.exit_code == 2, second.output
    assert f"output {out} is being written by another run (draftwood, process {other.process.pid} on " in second.stderr
    assert second.stderr.count("\n") == 1
    assert not out.exists()
    other.end()
    assert run(*command).exit_code == 0
    indices = [json.loads(line)["index"] for line in out.read_text(encoding="utf-8").splitlines()]
    assert sorted(indices) == sorted(set(indices))


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL there")
def test_a_second_run_while_the_first_one_writes_adds_nothing(
    run: Run, pair: list[str], out: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text('{"prompt": "the fox"}\n' * 200, encoding="utf-8")
    command = ["generate", *pair, "--input", str(path), "--output", str(out), "--batch-size", "1", "--seed", "5"]
    with subprocess.Popen([sys.executable, "-m", "draftwood", *command], env=environment) as first:
        try:
            while not (out.exists() and out.stat().st_size) and first.poll() is None:
                time.sleep(0.05)
            first.send_signal(signal.SIGSTOP)
            before = out.read_bytes()
            second = run(*command)
            assert second.exit_code == 2, second.output
            assert f"process {first.pid} on " in second.stderr
            assert out.read_bytes() == before
        finally:
            first.kill()


def test_translations_are_locked_too(run: Run, translation: Path, tmp_path: Path, out: Path, other: Other) -> None:
    path = tmp_path / "german.txt"
    path.write_text("ein Haus\n", encoding="utf-8")
    command = ["translate", "--target", translation / "target", "--input", path, "--output", out]
    second = run(*command)
    assert (second.exit_code, f"process {other.process.pid} on" in second.stderr) == (2, True), second.output
    assert names(tmp_path) == {"german.txt", "out.jsonl.lock"}
    other.end()
    assert run(*command).exit_code == 0
    assert names(tmp_path) == {"german.txt", "out.jsonl"}


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
@pytest.mark.usefixtures("other")
def test_another_name_of_the_same_output_is_no_way_round(
    run: Run, pair: list[str], prompts: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    link, way = folder / "link.jsonl", tmp_path / "way"
    link.symlink_to(out)
    way.symlink_to(tmp_path)
    monkeypatch.chdir(folder)
    for name in (link, way / out.name, Path("..") / out.name, Path("link.jsonl")):
        second = run("generate", *pair, *SHORT, "--input", prompts, "--output", name)
        assert (second.exit_code, "is being written by another run" in second.stderr) == (2, True), second.output


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL there")
def test_a_killed_process_leaves_nothing_that_blocks(
    run: Run, pair: list[str], prompts: Path, out: Path, other: Other, tmp_path: Path
) -> None:
    other.process.send_signal(signal.SIGKILL)
    other.process.wait(60)
    assert (tmp_path / "out.jsonl.lock").exists()
    result = run("generate", *pair, *SHORT, "--input", prompts, "--output", out)
    assert result.exit_code == 0, result.output
    assert names(tmp_path) == {prompts.name, out.name}


def test_nothing_of_the_lock_is_left_behind_by_an_error(out: Path, tmp_path: Path) -> None:
    def interrupted() -> None:
        with locked(out):
            assert names(tmp_path) == {"out.jsonl.lock"}
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not names(tmp_path)


def test_a_file_that_is_no_lock_is_left_alone(out: Path, tmp_path: Path) -> None:
    mine = tmp_path / "out.jsonl.lock"
    mine.write_text("my diary\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"out\.jsonl\.lock is not a lock file"), locked(out):
        pass
    assert mine.read_text(encoding="utf-8") == "my diary\n"


CONTEND = """
import os, sys, time
from pathlib import Path
from draftwood.cli.job.lock import locked
from draftwood.core.errors import ConfigError
out, alone, end = Path(sys.argv[1]), Path(sys.argv[2]), time.monotonic() + 2
held = 0
while time.monotonic() < end:
    try:
        with locked(out):
            os.close(os.open(alone, os.O_CREAT | os.O_EXCL))
            alone.unlink()
            held += 1
    except ConfigError:
        pass
print(held)
"""


def test_the_lock_file_is_removed_without_a_gap(out: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    """Three processes take the lock again and again; inside, a file is made that must not be there."""
    command = [sys.executable, "-c", CONTEND, str(out), str(tmp_path / "alone")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) for _ in range(3)]
    outputs = [process.communicate() for process in running]
    assert [(process.returncode, err) for process, (_, err) in zip(running, outputs, strict=True)] == [(0, b"")] * 3
    assert all(int(number) > 0 for number, _ in outputs)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root is not refused")
def test_a_folder_that_takes_no_lock_is_named(out: Path, tmp_path: Path) -> None:
    out.write_text("", encoding="utf-8")
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(ConfigError, match="cannot be locked"), locked(out):
            pass
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_links_in_a_circle_are_named(run: Run, pair: list[str], prompts: Path, out: Path) -> None:
    out.symlink_to(out)
    result = run("generate", *pair, *SHORT, "--input", prompts, "--output", out)
    assert result.exit_code == 1
    assert result.stderr == f"Error: {out}: Too many levels of symbolic links\n"


def test_control_two_outputs_do_not_wait_for_each_other(out: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    with locked(out), locked(tmp_path / "another.jsonl"), locked(None):
        assert names(tmp_path) == {"out.jsonl.lock", "another.jsonl.lock"}
    assert time.monotonic() - began < 5


@pytest.mark.skipif(os.name == "nt", reason="there is no flock there")
def test_a_filesystem_without_locks_is_named(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno
    import fcntl

    def missing(*args: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", missing)
    for _ in range(2):  # what the first one leaves behind changes nothing
        with pytest.raises(ConfigError, match=rf"cannot be locked, with .*: {os.strerror(errno.ENOSYS)}"), locked(out):
            pass
