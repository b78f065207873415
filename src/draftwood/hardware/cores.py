"""The number of cores that this process may use, and that other processes leave free.

Threads of PyTorch wait for one another after every operation, and spin meanwhile. On a core that another process uses, a
thread is always late and all others wait for it. So two threads on two cores, one of them busy, are slower than one thread.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Final, final

_STAT = Path("/proc/stat")
_SIBLINGS = Path("/sys/devices/system/cpu")
CONTROL_GROUP = Path("/sys/fs/cgroup")
"""Limits of this process; in a container, the container's own."""
_FREE = 0.75  # the part of a core that must be left for a thread to pay
_SETTLED = 0.1  # seconds of measurement below which nothing is concluded: the kernel counts in hundredths
_EVERY = 1.0  # seconds of a measurement
_CALM, _LONGEST = 3.0, 60.0  # seconds for which more cores must be free: a thread too many costs more than one too few


def default_threads() -> frozenset[int]:
    """The numbers of threads that PyTorch takes by itself: the cores of this process, with or without their second threads.

    It takes the first with OpenMP alone and the second with MKL.
    """
    cpus = _cpus()
    siblings = [_SIBLINGS / f"cpu{number}" / "topology" / "thread_siblings_list" for number in cpus]
    with suppress(OSError):
        return frozenset({len(cpus), len({file.read_text(encoding="utf-8") for file in siblings})})
    return frozenset({len(cpus)})


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

    @property
    def seconds(self) -> float:
        """The length of the measurement so far."""
        return perf_counter() - self._began

    def taken(self) -> float:
        """Cores that other processes used on average so far; 0 where that is unknown, or not known yet."""
        seconds, busy = self.seconds, _busy_seconds()
        if busy is None or self._busy is None or seconds < _SETTLED:
            return 0.0
        return max(0.0, (busy - self._busy) - (_own_seconds() - self._own)) / seconds


@final
class FreeCores:
    """The number of cores that other processes leave free, measured anew about once a second while somebody asks.

    Nothing runs in the background: a measurement lasts from one question to a later one. A core that another process begins
    to use is missing from the next measurement on. It counts again when it was free for three seconds. This time doubles
    whenever the core is soon lost again, up to a minute: so a neighbour that comes and goes, or another process that chooses
    by the same rule, does not make the number swing.

    Attributes:
        taken: cores that other processes used during the last measurement.
    """

    def __init__(self) -> None:
        self._meter, self._needed = CoreMeter(), _SETTLED
        self._count = usable_cores()
        self._more, self._calm = 0, 0.0  # the least that was free lately, if more than the count, and for how many seconds
        self._wait, self._since = _CALM, float("inf")  # seconds until more cores count, and seconds since they last did
        self.taken = 0.0

    def count(self) -> int:
        """The number of cores for one thread each: at least 1, at most :func:`usable_cores`."""
        seconds = self._meter.seconds
        if seconds >= self._needed:
            self.taken = self._meter.taken()
            self._conclude(max(1, min(usable_cores(), int(len(_cpus()) - self.taken + 1 - _FREE))), seconds)
            self._meter, self._needed = CoreMeter(), _EVERY
        return self._count

    def _conclude(self, free: int, seconds: float) -> None:
        self._since += seconds
        if free < self._count:
            self._wait = min(2 * self._wait, _LONGEST) if self._since < self._wait else _CALM
        if free <= self._count:
            self._count, self._calm = free, 0.0
            return
        self._more = min(self._more, free) if self._calm else free
        self._calm += seconds
        if self._calm >= self._wait:
            self._count, self._calm, self._since = self._more, 0.0, 0.0


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


FREE: Final = FreeCores()
"""Measures from the import of Draftwood on, so that something is known when models are loaded."""
