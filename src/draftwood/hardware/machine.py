"""The machine and the versions that measurements belong to, and its memory."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood import __version__
from draftwood.hardware import cores

if TYPE_CHECKING:
    import torch

_LIMITS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)


def versions() -> dict[str, str]:
    """Versions of Draftwood, Python and the packages that run models."""
    return {
        "draftwood": __version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def version_of(package: str) -> str | None:
    """The installed version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def machine(device: torch.device) -> dict[str, Any]:
    """Processor, cores, threads, accelerator."""
    import torch

    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "device": str(device),
        "accelerator": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    }


def cache_folder() -> Path:
    """The cache folder: ``DRAFTWOOD_CACHE``, or ``draftwood`` in ``XDG_CACHE_HOME`` or in ``~/.cache``."""
    if own := os.environ.get("DRAFTWOOD_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftwood"


def available_memory() -> int | None:
    """Bytes that this process can still allocate without swapping; None outside Linux.

    It is the smaller of the system's available memory and of what a container's limit leaves.
    """
    info = Path("/proc/meminfo")
    if not info.is_file():
        return None
    lines = info.read_text(encoding="utf-8").splitlines()
    free = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return min(free + [room for names in _LIMITS if (room := _room_of_group(*names)) is not None], default=None)


def _room_of_group(limit: str, used: str, reclaimable: str) -> int | None:
    """Bytes that a control group's limit leaves, its file cache counted as free; None without a limit."""
    try:
        most, taken = (int((cores.CONTROL_GROUP / name).read_text(encoding="utf-8")) for name in (limit, used))
        stat = (cores.CONTROL_GROUP / limit).with_name("memory.stat").read_text(encoding="utf-8").split()
        return max(0, most - taken + int(stat[stat.index(reclaimable) + 1]))
    except (OSError, ValueError):  # no such file, or its text is "max"
        return None


def release_free_memory() -> None:
    """Give freed memory back to the system, where the C library is glibc; elsewhere nothing is done.

    glibc keeps the memory that a thread has freed, unless it is the end of the thread's heap.
    """
    if sys.platform == "linux":
        with suppress(AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


def load_average() -> float | None:
    """The mean number of runnable processes in the last minute; more than this run's threads means a busy machine."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def cpu_name() -> str:
    """The processor's model name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.is_file() else []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or "unknown"
