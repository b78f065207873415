"""How many cores this process may use, and how many of them other processes leave free.

Threads of PyTorch and of OpenVINO wait for one another after every operation, and PyTorch's spin while they wait. On a core
that another process uses, one thread is late every time and all the others wait for it: two threads on two cores, one of
them taken, are slower than one thread.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter
from typing import Final, final

_STAT = Path("/proc/stat")
CONTROL_GROUP = Path("/sys/fs/cgroup")
"""Limits of this process; in a container, the container's own."""
_FREE = 0.75  # the part of a core that must be left for a thread to pay
_SETTLED = 0.1  # seconds of measurement below which nothing is concluded: the kernel counts in hundredths


def usable_cores() -> int:
    """Cores that this process may run on: its CPU affinity, and a container's CPU limit rounded down; 1 or more."""
    quota = _quota()
    return len(_cpus()) if quota is None else max(1, min(len(_cpus()), int(quota)))


def _cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _quota() -> float | None:
    """Cores that a control group allows (version 2, then 1); None without a limit."""
    try:
        most, period = (CONTROL_GROUP / "cpu.max").read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        try:
            files = (CONTROL_GROUP / "cpu" / f"cpu.cfs_{name}_us" for name in ("quota", "period"))
            most, period = (file.read_text(encoding="utf-8") for file in files)
        except OSError:
            return None
    try:
        return int(most) / int(period) if int(most) > 0 else None
    except (ValueError, ZeroDivisionError):  # "max"
        return None


@final
class CoreMeter:
    """What other processes take of the usable cores, from the moment this is made.

    Processes that give way (nice) do not count. Outside Linux others cannot be seen, and all cores count as free.
    """

    def __init__(self) -> None:
        self._began = perf_counter()
        self._busy, self._own = _busy_seconds(), _own_seconds()

    def taken(self) -> float:
        """Cores that other processes took on average so far; 0 where that is unknown, or not yet known."""
        seconds, busy = perf_counter() - self._began, _busy_seconds()
        if busy is None or self._busy is None or seconds < _SETTLED:
            return 0.0
        return max(0.0, (busy - self._busy) - (_own_seconds() - self._own)) / seconds

    def free(self) -> int:
        """Cores that a thread each can have: at least one, at most :func:`usable_cores`."""
        return max(1, min(usable_cores(), int(len(_cpus()) - self.taken() + 1 - _FREE)))


def _busy_seconds() -> float | None:
    """Seconds that this process's cores have computed since the machine started, for processes that do not give way; None
    outside Linux."""
    try:
        lines = _STAT.read_text(encoding="utf-8").splitlines()
        ticks = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    names = {f"cpu{number}" for number in _cpus()}
    fields = [line.split() for line in lines]
    # user, system, irq, softirq and steal; nice, idle and iowait leave the core to others
    return sum(int(line[i]) for line in fields if line[0] in names for i in (1, 3, 6, 7, 8)) / ticks


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


SINCE_START: Final = CoreMeter()
"""Measures from the moment that this module is imported, which the command line does before anything heavy."""
