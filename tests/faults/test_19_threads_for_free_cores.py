"""Threads wait for one another: on a core that another process takes, one of them makes all others late."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftwood.api import load
from draftwood.core import cores
from draftwood.core.cores import CoreMeter, usable_cores
from draftwood.core.errors import ConfigError
from draftwood.core.settings import LoadOptions
from draftwood.core.threads import set_threads
from tests.cli.conftest import Run, models, pair, run  # noqa: F401  # fixtures


class Machine:
    """What the kernel tells of a machine of four cores, of which this process may use two."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.stat, self.now, self.own = folder / "stat", 100.0, 0.0
        self.busy = {number: 0.0 for number in range(4)}
        self.nice = 0.0
        monkeypatch.setattr(cores, "_STAT", self.stat)
        monkeypatch.setattr(cores, "CONTROL_GROUP", folder)
        monkeypatch.setattr(cores, "_cpus", lambda: [0, 1])
        monkeypatch.setattr(cores, "perf_counter", lambda: self.now)
        times = lambda: SimpleNamespace(user=self.own, system=0.0, children_user=0.0, children_system=0.0)  # noqa: E731
        monkeypatch.setattr(cores.os, "times", times)
        self.write()

    def write(self) -> None:
        lines = ["cpu 0 0 0 0 0 0 0 0 0 0"]
        lines += [f"cpu{n} {round(100 * b)} {round(100 * self.nice)} 0 9 9 0 0 0 0 0" for n, b in self.busy.items()]
        self.stat.write_text("\n".join([*lines, "intr 1 2 3"]))

    def passes(
        self, seconds: float, *, own: float = 0.0, others: float = 0.0, elsewhere: float = 0.0, nice: float = 0.0
    ) -> None:
        """Time passes; each kind of process takes so many cores."""
        self.now += seconds
        self.own += own * seconds
        self.busy[0] += (own + others) * seconds / 2
        self.busy[1] += (own + others) * seconds / 2
        self.busy[3] += elsewhere * seconds
        self.nice += nice * seconds
        self.write()


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    ("load", "taken", "free"),
    [
        ({}, 0.0, 2),
        ({"own": 2.0}, 0.0, 2),
        ({"others": 1.0}, 1.0, 1),
        ({"own": 1.0, "others": 1.0}, 1.0, 1),
        ({"others": 2.0}, 2.0, 1),
        ({"others": 0.2}, 0.2, 2),
        ({"others": 0.5}, 0.5, 1),
        ({"elsewhere": 1.0}, 0.0, 2),
        ({"nice": 2.0}, 0.0, 2),
    ],
    ids=lambda value: str(value),
)
def test_a_core_that_others_take_is_not_free(box: Machine, load: dict[str, float], taken: float, free: int) -> None:
    meter = CoreMeter()
    box.passes(2.0, **load)
    assert meter.taken() == pytest.approx(taken, abs=0.02)
    assert meter.free() == free


def test_nothing_is_concluded_from_a_moment(box: Machine) -> None:
    meter = CoreMeter()
    box.passes(0.05, others=2.0)
    assert meter.free() == 2


@pytest.mark.parametrize(
    ("name", "text", "usable"),
    [
        ("cpu.max", "max 100000", 2),
        ("cpu.max", "150000 100000", 1),
        ("cpu.max", "50000 100000", 1),
        ("cpu.max", "800000 100000", 2),
        ("cpu.max", "nonsense", 2),
    ],
)
def test_a_containers_limit_counts(box: Machine, tmp_path: Path, name: str, text: str, usable: int) -> None:
    (tmp_path / name).write_text(text)
    assert usable_cores() == usable
    assert CoreMeter().free() == usable


def test_an_older_containers_limit_counts(box: Machine, tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("100000")
    assert usable_cores() == 1
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    assert usable_cores() == 2


def test_without_the_kernels_figures_all_cores_are_free(box: Machine) -> None:
    box.stat.unlink()
    meter = CoreMeter()
    box.now += 5
    assert (meter.taken(), meter.free()) == (0.0, 2)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def test_pytorch_gets_a_thread_for_every_free_core_and_never_more_than_it_had(
    box: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(cores, "SINCE_START", CoreMeter())
    box.passes(2.0, others=1.0)
    with threads(2):
        set_threads(None)
        assert torch.get_num_threads() == 1
        monkeypatch.setattr(cores, "SINCE_START", CoreMeter())
        set_threads(None)
        assert torch.get_num_threads() == 1


def test_what_the_user_says_counts(box: Machine, monkeypatch: pytest.MonkeyPatch, models: Path) -> None:  # noqa: F811
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(cores, "SINCE_START", CoreMeter())
    box.passes(2.0, others=2.0)
    with threads(2):
        set_threads(None)
        assert torch.get_num_threads() == 2
        load(models / "target", options=LoadOptions(backend="torch"))
        assert torch.get_num_threads() == 2  # a library leaves the threads of the process alone
        load(models / "target", options=LoadOptions(backend="torch", threads=1))
        assert torch.get_num_threads() == 1
    with pytest.raises(ConfigError, match="threads is 0: give 1 or more"):
        LoadOptions(threads=0)
    with pytest.raises(ConfigError, match="threads is 3000000000: give at most 1024"):
        LoadOptions(threads=3_000_000_000)


def test_generate_and_info_use_and_tell_the_free_cores(
    box: Machine,
    monkeypatch: pytest.MonkeyPatch,
    run: Run,  # noqa: F811
    pair: list[str],  # noqa: F811
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(cores, "SINCE_START", CoreMeter())
    monkeypatch.setattr("draftwood.cli.facts.SINCE_START", cores.SINCE_START)
    box.passes(2.0, others=1.0)
    seen: list[int] = []
    real: Any = load

    def watched(*args: Any, **rest: Any) -> Any:
        seen.append(torch.get_num_threads())
        return real(*args, **rest)

    monkeypatch.setattr("draftwood.api.load", watched)
    command = ["generate", *pair, "the fox", "--max-new-tokens", "2", "--backend", "torch"]
    with threads(2):
        assert "1 thread of 2 cores, of which other processes take 1)" in run("info").stdout
        assert run(*command).exit_code == 0
        torch.set_num_threads(2)
        assert run(*command, "--threads", "2").exit_code == 0
    assert seen == [1, 2]


@pytest.mark.skipif(not Path("/proc/stat").is_file(), reason="other processes are seen on Linux only")
def test_a_real_process_that_computes_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            time.sleep(0.3)  # it starts
            meter = CoreMeter()
            time.sleep(0.6)
            assert meter.taken() > 0.3
        finally:
            other.kill()
