"""Texts begin while their keys and values fit in memory, and a server without texts gives back what they took."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Literal

import pytest
import torch

import draftwood
from draftwood import LoadOptions, Method, Pair
from draftwood.hardware.machine import release_free_memory
from draftwood.native.library import LIBRARY
from draftwood.serve import scheduler
from draftwood.serve.admission import Admission
from tests.helpers import hidden_pair, published_pair, tiny_gpt
from tests.serve.client import answer, completion, metric, refused, written
from tests.serve.conftest import make_service, serving, until
from tests.tiny_chat import save_chat


def room(pair: Pair, tokens: int) -> float:
    """GiB for the keys and values of so many tokens."""
    return (tokens + 0.5) * Admission(pair, 1, 1.0).token / 2**30


def test_bytes_of_a_token_are_those_of_the_memory_that_the_models_keep(served: Pair) -> None:
    from transformers import DynamicCache

    kept = 0
    for runner in (served.target, served.draft):
        assert runner is not None
        memory = DynamicCache()
        ids = served.target.another().model.dummy_inputs["input_ids"][:1, :4]
        runner.model(ids % 200, past_key_values=memory)  # type: ignore[attr-defined]
        kept += sum(layer.keys.nbytes + layer.values.nbytes for layer in memory.layers) // ids.shape[1]
    assert Admission(served, 1, 1.0).token == kept > 0


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "own"])
def test_the_memory_of_drafters_of_hidden_states_counts_too(kind: str) -> None:
    model = tiny_gpt(12, 1, dtype=torch.float32)
    draft = (hidden_pair(model) if kind == "own" else published_pair(model, kind))[1]
    config = draft.model.config  # type: ignore[attr-defined]
    wanted = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4
    assert draft.token_bytes == wanted > 0  # type: ignore[attr-defined]


def test_texts_wait_for_memory_and_are_the_same(served: Pair) -> None:
    body = completion(n=4)
    with serving(make_service(served)) as client:
        assert 0 <= metric(client, "kv_cache_usage_perc") < 1
        free = answer(client, body)["choices"]
    length = len(served.encode("the fox ran")) + 16
    service = make_service(served, max_memory=room(served, 2 * length))
    most = 0
    rows = service.scheduler._rows
    step = rows.step

    def watched() -> None:
        nonlocal most
        step()
        most = max(most, rows.running)
        assert rows.memory <= 1

    rows.step = watched  # type: ignore[method-assign]
    with serving(service) as client:
        assert answer(client, body)["choices"] == free
        assert metric(client, "kv_cache_usage_perc") == 0
    assert most == 2


def test_a_text_that_never_fits_is_refused_with_numbers(served: Pair) -> None:
    length = len(served.encode("the fox ran")) + 16
    with serving(make_service(served, max_memory=room(served, length))) as client:
        assert answer(client, completion())
        assert "up to 17 more" in refused(client, completion(max_tokens=17))["message"]


def test_texts_that_wait_for_memory_end_with_the_server(served: Pair) -> None:
    service = make_service(served, max_memory=room(served, 420))
    with serving(service) as client:
        rows = service.scheduler._rows
        step = rows.step

        def cut() -> None:
            step()
            rows.step = step  # type: ignore[method-assign]
            service.scheduler.cut()

        rows.step = cut  # type: ignore[method-assign]
        found = answer(client, completion(n=3, max_tokens=400, ignore_eos=True))
    assert [choice["finish_reason"] for choice in found["choices"]] == ["length"] * 3
    assert sum(bool(choice["text"]) for choice in found["choices"]) <= 1


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
    code = "from tests.serve.test_memory import measured; print(*measured())"  # a process whose heap has no free memory yet
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    kept, released = map(int, run.stdout.split())
    assert kept > 0.9 * BLOCKS * SIZE
    assert released > 0.9 * BLOCKS * SIZE


@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident memory from /proc")
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_the_memory_of_a_long_prompt_goes_back(tmp_path: Path, backend: str) -> None:
    if backend == "native" and not LIBRARY.exists():
        pytest.skip("the native engine is not compiled")
    folder = save_chat(
        tmp_path, hidden_size=64, layers=16, num_attention_heads=8, num_key_value_heads=8, head_dim=64,
        max_position_embeddings=4096,
    )  # fmt: skip
    code = f"from tests.serve.test_memory import long_prompts; print(*long_prompts({str(folder)!r}, {backend!r}))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    wanted, most, left = map(int, run.stdout.split())
    assert wanted > 64 << 20
    assert most > 0.9 * wanted  # control: the keys and values were there
    assert left < 0.2 * most


def long_prompts(folder: str, backend: Literal["native", "torch"]) -> tuple[int, int, int]:
    """Bytes of a long prompt's keys and values, what its text takes at most, and what an idle server keeps of that."""
    pair = draftwood.load(folder, options=LoadOptions(dtype="float32", device="cpu", backend=backend, profile="none"))
    service = make_service(pair, method=Method(method="ar"), no_prefix_cache=True)
    seen = list[int]()
    step = service.scheduler._rows.step

    def watched() -> None:
        step()
        seen.append(resident())

    service.scheduler._rows.step = watched  # type: ignore[method-assign]
    with serving(service) as client:
        for prompt in ([270], [270] * 2500):  # the first text takes what stays
            before = resident()
            seen.clear()
            written(client, prompt=prompt, max_tokens=4, ignore_eos=True)
            sleep(2 * scheduler.IDLE_SECONDS)
        return 2500 * pair.target.token_bytes, max(seen) - before, resident() - before


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
