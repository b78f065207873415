"""Two processes never write the same output."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from draftwood.core.errors import ConfigError
from draftwood.core.lock import locked

SHORT = ["--max-new-tokens", "4", "--ignore-eos"]
HOLD = """
import sys, time
from pathlib import Path
from draftwood.core.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.jsonl"


@pytest.fixture
def other(out, environment):
    """Another process, which holds the output until it may end."""
    command = [sys.executable, "-c", HOLD, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        if process.poll() is None:
            process.communicate()


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_the_second_run_says_who_holds_the_output(job, other):
    said = job.fails()
    assert f"{job.out} is being written by another run, which holds {job.out}.lock: wait for it" in said
    assert said.count("\n") == 1
    assert not job.out.exists()
    other.communicate()
    job.succeeds()
    assert len(job.answers) == len(job.texts)


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
@pytest.mark.usefixtures("other")
def test_another_name_of_the_same_output_is_no_way_round(job, out, tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    link, way = folder / "link.jsonl", tmp_path / "way"
    link.symlink_to(out)
    way.symlink_to(tmp_path)
    monkeypatch.chdir(folder)
    for name in (link, way / out.name, Path("..") / out.name, Path("link.jsonl")):
        assert "is being written by another run" in job.fails("--output", name)


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL there")
def test_a_killed_process_leaves_nothing_that_blocks(job, other, tmp_path):
    other.send_signal(signal.SIGKILL)
    other.wait(60)
    assert (tmp_path / "out.jsonl.lock").exists()
    job.succeeds()
    assert names(tmp_path) == {job.input.name, job.out.name}


def test_nothing_of_the_lock_is_left_behind_by_an_error(out, tmp_path):
    def interrupted():
        with locked(out):
            assert names(tmp_path) == {"out.jsonl.lock"}
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not names(tmp_path)


def test_a_file_that_is_no_lock_is_left_alone(out, tmp_path):
    mine = tmp_path / "out.jsonl.lock"
    mine.write_text("my diary\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"out\.jsonl\.lock is not a lock file"), locked(out):
        pass
    assert mine.read_text(encoding="utf-8") == "my diary\n"


CONTEND = """
import os, sys, time
from pathlib import Path
from draftwood.core.lock import locked
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


def test_the_lock_file_is_removed_without_a_gap(out, tmp_path, environment):
    """Three processes take the lock again and again; inside, a file is made that must not be there."""
    command = [sys.executable, "-c", CONTEND, str(out), str(tmp_path / "alone")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) for _ in range(3)]
    outputs = [process.communicate() for process in running]
    assert [(process.returncode, err) for process, (_, err) in zip(running, outputs, strict=True)] == [(0, b"")] * 3
    assert all(int(number) > 0 for number, _ in outputs)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root is not refused")
def test_a_folder_that_takes_no_lock_is_named(out, tmp_path):
    out.write_text("", encoding="utf-8")
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(ConfigError, match="cannot be locked"), locked(out):
            pass
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_links_in_a_circle_are_named(job):
    job.out.symlink_to(job.out)
    assert job.fails(code=1) == f"Error: {job.out}: Too many levels of symbolic links\n"


def test_control_two_outputs_do_not_wait_for_each_other(out, tmp_path):
    with locked(out), locked(tmp_path / "another.jsonl"), locked(None):  # one that waits is refused
        assert names(tmp_path) == {"out.jsonl.lock", "another.jsonl.lock"}


def test_a_filesystem_without_locks_is_named(out, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def missing(*args):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", missing)
    for _ in range(2):  # what the first one leaves behind changes nothing
        with pytest.raises(ConfigError, match=rf"cannot be locked, with .*: {os.strerror(errno.ENOSYS)}"), locked(out):
            pass
