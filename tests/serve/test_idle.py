"""A server without texts gives the memory that they took back."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from pathlib import Path
from threading import Thread
from time import sleep

import pytest

from draftwood import Pair
from draftwood.hardware.machine import release_free_memory
from draftwood.serve import scheduler
from tests.serve.client import written
from tests.serve.conftest import make_service, serving, until

ROOT = Path(__file__).parents[2]
BLOCKS, SIZE = 1000, 1 << 16  # 64 KiB: smaller than what glibc maps on its own


def test_memory_is_released_once_after_the_last_text(served: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    releases = list[int]()
    service = make_service(served)
    monkeypatch.setattr(scheduler, "release_free_memory", lambda: releases.append(service.scheduler.texts))
    monkeypatch.setattr(scheduler, "IDLE_SECONDS", 0.05)
    with serving(service) as client:
        until(lambda: len(releases) == 1)
        assert written(client, max_tokens=64)
        until(lambda: len(releases) == 2)
        sleep(0.2)
        assert releases == [0, 0]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed memory, and has a call to release it")
def test_freed_memory_before_a_block_in_use_is_released() -> None:
    code = "from tests.serve.test_idle import measured; print(*measured())"  # a process whose heap has no free memory yet
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    kept, released = map(int, run.stdout.split())
    assert kept > 0.9 * BLOCKS * SIZE
    assert released > 0.9 * BLOCKS * SIZE


def measured() -> tuple[int, int]:
    """Bytes that a thread's freed memory keeps resident, and those that a release gives back."""
    last = list[int]()
    thread = Thread(target=lambda: last.append(with_free_memory()))  # in the heap of a thread
    before = resident()
    thread.start()
    thread.join()
    kept = resident() - before
    release_free_memory()
    released = kept - (resident() - before)
    ctypes.CDLL(None).free(ctypes.c_void_p(*last))
    return kept, released


def with_free_memory() -> int:
    """Allocate blocks, and free all but the last one, whose address is returned."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    *blocks, last = [libc.malloc(SIZE) for _ in range(BLOCKS)]
    for block in blocks:
        ctypes.memset(block, 1, SIZE)
    for block in blocks:
        libc.free(block)
    return int(last)


def resident() -> int:
    """Bytes of the resident memory of this process."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
