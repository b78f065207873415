"""The number of cores that this process may use, and that other processes leave free.

Threads of PyTorch and OpenVINO wait for one another after every operation, and PyTorch's threads spin meanwhile. On a core
that another process uses, a thread is always late and all others wait for it. So two threads on two cores, one of them busy,
are slower than one thread.
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
    """The number of cores that this process may run on, 1 or more.

    It is the smaller of the CPU affinity and of a container's CPU limit, rounded down.
    """
    quota = _quota()
    return len(_cpus()) if quota is None else max(1, min(len(_cpus()), int(quota)))


def _cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _quota() -> float | None:
    """Cores that the control group allows (version 2, then version 1); None without a limit."""
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
    """Measures the use of the usable cores by other processes, from the moment it is made.

    Processes of low priority (nice) do not count. Outside Linux other processes cannot be seen, and all cores count as free.
    """

    def __init__(self) -> None:
        self._began = perf_counter()
        self._busy, self._own = _busy_seconds(), _own_seconds()

    def taken(self) -> float:
        """Cores that other processes used on average so far; 0 where that is unknown, or not known yet."""
        seconds, busy = perf_counter() - self._began, _busy_seconds()
        if busy is None or self._busy is None or seconds < _SETTLED:
            return 0.0
        return max(0.0, (busy - self._busy) - (_own_seconds() - self._own)) / seconds

    def free(self) -> int:
        """The number of cores for one thread each: at least 1, at most :func:`usable_cores`."""
        return max(1, min(usable_cores(), int(len(_cpus()) - self.taken() + 1 - _FREE)))


def _busy_seconds() -> float | None:
    """Seconds of computation on this process's cores since the machine started; None outside Linux.

    Processes of low priority (nice) do not count.
    """
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
"""Measures from the import of this module on; the command line imports it before anything heavy."""
