"""Threads wait for one another: on a core that another process takes, one of them makes all others late."""

import subprocess
import sys
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from draftwood import api
from draftwood.api import load
from draftwood.core.limits import Limits
from draftwood.core.settings import LoadOptions
from draftwood.hardware import cores
from draftwood.hardware import threads as chosen
from draftwood.hardware.cores import CoreMeter, FreeCores, usable_cores
from draftwood.hardware.threads import ThreadRule, set_threads
from draftwood.translation import load_translator
from tests.cli.conftest import models, pair, run  # noqa: F401  # fixtures
from tests.engine.test_decode import VOCAB
from tests.helpers import Words, tiny_gpt

TAKEN = CoreMeter.taken  # which the fixture ``run`` replaces


class Machine:
    """What the kernel tells of a machine of four cores, of which this process may use two."""

    def __init__(self, monkeypatch, folder):
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

    def write(self):
        lines = ["cpu 0 0 0 0 0 0 0 0 0 0"]
        lines += [f"cpu{n} {round(100 * b)} {round(100 * self.nice)} 0 9 9 0 0 0 0 0" for n, b in self.busy.items()]
        self.stat.write_text("\n".join([*lines, "intr 1 2 3"]))

    def passes(self, seconds, *, own=0.0, others=0.0, elsewhere=0.0, nice=0.0):
        """Time passes; each kind of process takes so many cores."""
        self.now += seconds
        self.own += own * seconds
        self.busy[0] += (own + others) * seconds / 2
        self.busy[1] += (own + others) * seconds / 2
        self.busy[3] += elsewhere * seconds
        self.nice += nice * seconds
        self.write()


@pytest.fixture
def box(monkeypatch, tmp_path):
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
def test_a_core_that_others_take_is_not_free(box, load, taken, free):
    meter, cores_left = CoreMeter(), FreeCores()
    box.passes(2.0, **load)
    assert meter.taken() == pytest.approx(taken, abs=0.02)
    assert cores_left.count() == free


def test_nothing_is_concluded_from_a_moment(box):
    cores_left = FreeCores()
    box.passes(0.05, others=2.0)
    assert cores_left.count() == 2


OLD = {"cpu/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("files", "usable"),
    [
        *(({"cpu.max": text}, 2) for text in ("max 100000", "800000 100000", "nonsense")),
        *(({"cpu.max": text}, 1) for text in ("150000 100000", "50000 100000")),
        *(({**OLD, "cpu/cpu.cfs_quota_us": text}, usable) for text, usable in (("100000", 1), ("-1", 2))),
    ],
)
def test_a_containers_limit_counts(box, tmp_path, files, usable):
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert usable_cores() == FreeCores().count() == usable


def test_without_the_kernels_figures_all_cores_are_free(box):
    box.stat.unlink()
    cores_left = FreeCores()
    box.now += 5
    assert (cores_left.count(), cores_left.taken) == (2, 0.0)


@contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def rule(box, monkeypatch):
    """The rule on a machine of two cores, where nothing is known yet and the user has said nothing."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    found = ThreadRule(FreeCores())
    monkeypatch.setattr(chosen, "RULE", found)
    return found


def counts(box, rule, others):
    """The number of threads, second by second, next to processes that take so many cores."""
    found = []
    with threads(2):
        for taken in others:
            box.passes(1.0, own=1.0, others=taken)
            found.append(rule.count())
    return found


def test_the_number_follows_a_neighbour_that_comes_and_goes(box, rule):
    assert counts(box, rule, [0.0] * 2 + [1.0] * 2 + [0.0] * 5) == [2, 2, 1, 1, 1, 1, 2, 2, 2]


def test_a_neighbour_that_comes_and_goes_fast_leaves_the_number_low(box, rule):
    assert set(counts(box, rule, [1.0, 0.0] * 10)) == {1}


def test_a_core_that_is_lost_soon_after_it_counted_is_waited_for_longer(box, rule):
    # Two minutes of a neighbour that works for one second in five.
    found = counts(box, rule, [0.0, *[1.0, *[0.0] * 4] * 24])
    assert 2 in found[2:12]
    assert 2 not in found[-60:]


@pytest.mark.parametrize("count", [2, 4, 8])
def test_two_processes_that_choose_by_this_rule_find_their_parts(box, monkeypatch, count):
    monkeypatch.setattr(cores, "_cpus", lambda: list(range(max(4, count)))[:count])
    used, both, history = [0.0, 0.0], [FreeCores()], []
    box.passes(0.4)
    both.append(FreeCores())
    for _ in range(6000):  # ten minutes
        wanted = []
        for free, box.own in zip(both, used, strict=True):
            wanted.append(free.count())
        history.append(wanted)
        each = 0.1 * min(1.0, count / sum(wanted))  # seconds of a thread in a tenth of a second
        used = [seconds + each * number for seconds, number in zip(used, wanted, strict=True)]
        box.passes(0.1, others=10 * each * sum(wanted))
    assert all(min(wanted) >= 1 for wanted in history)
    assert sum(sum(wanted) > count for wanted in history) < 0.05 * len(history)  # threads that wait for a core
    assert sum(old != new for old, new in pairwise(history[3000:])) <= 40


@pytest.mark.usefixtures("rule")
def test_rounds_follow_a_neighbour_and_the_users_number_stays(box, monkeypatch):
    watched, found = api.Pair(tiny_gpt(VOCAB, 1), None, Words()), []
    extend = watched.target.extend
    monkeypatch.setattr(watched.target, "extend", lambda *given: found.append(torch.get_num_threads()) or extend(*given))
    with threads(2):
        for _ in watched.stream([1, 2], method="ar", limits=Limits(max_new_tokens=8, ignore_eos=True), seed=1):
            assert torch.get_num_threads() == 2
            box.passes(1.0, own=1.0, others=float(len(found) >= 3))
        assert torch.get_num_threads() == 2
    assert found[:3] == [2, 2, 2]
    assert set(found[4:]) == {1}


def test_what_the_user_says_counts(box, rule, monkeypatch):
    box.passes(2.0, others=2.0)
    with threads(2):
        assert rule.count() == 1
    with threads(3):
        assert rule.count() == 3  # torch.set_num_threads: it is not PyTorch's own number here
    with threads(2):
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            with monkeypatch.context() as patch:
                patch.setenv(name, "2")
                assert (rule.count(), rule.said) == (2, name)
        set_threads(2)
        assert rule.count() == 2
        torch.set_num_threads(1)  # later and by the user
        assert rule.count() == 1


@pytest.mark.parametrize(("others", "kept"), [(0.0, 2), (2.0, 1)])
def test_a_measurement_keeps_the_number_that_it_began_with(box, rule, others, kept):
    with threads(2):
        box.passes(5.0, others=others)
        set_threads(None)
        box.passes(5.0, others=2.0 - others)
        assert (rule.count(), torch.get_num_threads()) == (kept, kept)


@pytest.mark.parametrize("others", [0.0, 1.0])
def test_loading_takes_the_free_cores_and_leaves_the_users_number(
    box,
    rule,
    models,  # noqa: F811
    others,
    monkeypatch,
):
    seen = []
    real = api.runners_by
    monkeypatch.setattr(
        api, "runners_by", lambda *given, **rest: (seen.append(torch.get_num_threads()), real(*given, **rest))[1]
    )
    box.passes(2.0, others=others)
    with threads(2):
        load(models / "target", options=LoadOptions(backend="torch"))
        assert torch.get_num_threads() == 2
        load(models / "target", options=LoadOptions(backend="torch", threads=2))
        box.passes(2.0, others=2.0)
        assert (torch.get_num_threads(), rule.count()) == (2, 2)
        load(models / "target", options=LoadOptions(backend="torch", threads=1))
        assert torch.get_num_threads() == 1
    assert seen == [1 if others else 2, 2, 1]


def test_translation_reads_sources_with_the_chosen_threads(box, rule, translation, monkeypatch):
    with threads(2):
        translator = load_translator(translation / "target", options=LoadOptions(backend="torch"))
        seen = []
        encoder = translator.model.get_encoder()
        encoder.register_forward_pre_hook(lambda *_: seen.append(torch.get_num_threads()))
        set_rows = translator.target.set_rows
        noted = lambda rows: (seen.append(torch.get_num_threads()), set_rows(rows))[1]  # noqa: E731
        monkeypatch.setattr(translator.target, "set_rows", noted)
        box.passes(2.0, others=2.0)
        translator.translate([4, 5], max_new_tokens=2)
    assert seen
    assert set(seen) == {1}


def test_generate_and_info_use_and_tell_the_free_cores(
    box,
    monkeypatch,
    run,  # noqa: F811
    pair,  # noqa: F811
):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(CoreMeter, "taken", TAKEN)
    free = FreeCores()
    for module in ("hardware.threads", "cli.facts"):
        monkeypatch.setattr(f"draftwood.{module}.RULE", ThreadRule(free))
    monkeypatch.setattr("draftwood.cli.facts.FREE", free)
    box.passes(2.0, others=1.0)
    seen = []
    real = api._load

    def watched(*args, **more):
        seen.append(torch.get_num_threads())
        return real(*args, **more)

    monkeypatch.setattr(api, "_load", watched)
    command = ["generate", *pair, "the fox", "--max-new-tokens", "2", "--backend", "torch"]
    with threads(2):
        shown = run("info").stdout
        assert "  usable: 2\n  taken_by_others: 1.0\nthreads: 1\n" in shown
        assert run(*command).exit_code == 0
        assert run(*command, "--threads", "2").exit_code == 0
    assert seen == [1, 2]


@pytest.mark.skipif(not Path("/proc/stat").is_file(), reason="other processes are seen on Linux only")
def test_a_real_process_that_computes_is_seen():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            time.sleep(0.3)  # it starts
            meter = CoreMeter()
            time.sleep(0.6)
            assert meter.taken() > 0.3
        finally:
            other.kill()
