"""A file that two writers of a cluster write, of which one is killed; the job is stopped and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any, Final

from benchmarks.ray.cluster import WRITER, raylets, workers
from benchmarks.ray.config import RayConfig
from benchmarks.serving.bodies import mixed
from benchmarks.serving.config import Served
from benchmarks.serving.outcome import Check
from benchmarks.serving.servers import model_options

SECONDS: Final = 900.0  # of one command


def measure(served: Served, config: RayConfig, on_step: Callable[[], object]) -> dict[str, Any]:
    """Lines of both files, and how many are equal and there twice."""
    with TemporaryDirectory(prefix="draftwood-bench-") as name, raylets() as cluster:
        folder = Path(name)
        lines = (mixed(number, served.seed, "", 8)["prompt"] for number in range(config.prompts))
        (folder / "in.jsonl").write_text("".join(json.dumps({"prompt": line}) + "\n" for line in lines), encoding="utf-8")
        given = [*_options(served, config), "--input", str(folder / "in.jsonl"), "--output"]
        _whole("generate", *given, str(folder / "alone.jsonl"))
        on_step()
        job = ["ray", "write", *given, str(folder / "out.jsonl"), "--address", cluster.address, "--replicas", "2"]
        stopped_at = _stopped(job, folder / "out.jsonl", config.prompts)
        _whole(*job)
        on_step()
        return compared(folder / "out.jsonl", folder / "alone.jsonl") | {"stopped_at": stopped_at}


def _options(served: Served, config: RayConfig) -> list[str]:
    length = ["--max-new-tokens", str(config.max_new_tokens // 4), "--ignore-eos"]
    return [*model_options(served), *length, "--threads", "1", "--temperature", "1", "--seed", str(served.seed),
            "--batch-size", "8"]  # fmt: skip


@contextmanager
def _begun(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    line = [sys.executable, "-m", "draftwood", *arguments]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()


def _whole(*arguments: str) -> None:
    with _begun(*arguments) as process:
        said = process.communicate(timeout=SECONDS)[1]
    if process.returncode:
        raise RuntimeError(f"the command ended with status {process.returncode}: {said[-500:]}")


def _stopped(job: Sequence[str], out: Path, lines: int) -> int:
    """Kill a writer after a tenth of the lines, and stop the job after a half; returns the lines that are there then."""
    with _begun(*job) as process:
        _until(process, lambda: _lines(out) >= lines // 10 and bool(workers(WRITER)))
        os.kill(workers(WRITER)[0], signal.SIGKILL)
        _until(process, lambda: _lines(out) >= lines // 2)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
    return _lines(out)


def _until(process: subprocess.Popen[str], there: Callable[[], bool]) -> None:
    end = monotonic() + SECONDS
    while not there():
        if process.poll() is not None or monotonic() > end:
            raise RuntimeError(f"the job wrote too little: {process.communicate()[1][-500:]}")
        sleep(0.1)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def compared(path: Path, alone: Path) -> dict[str, Any]:
    """How many lines the first file has, how many of them twice, and how many as the other one."""
    ours, theirs = ([json.loads(line) for line in one.read_text("utf-8").splitlines()] for one in (path, alone))
    wanted = {one["index"]: one["token_ids"] for one in theirs}
    equal = sum(wanted.get(one["index"]) == one.get("token_ids") for one in ours)
    return {"lines": len(ours), "twice": len(ours) - len({one["index"] for one in ours}), "equal": equal}


def checks(found: Mapping[str, Any], config: RayConfig) -> list[Check]:
    """The file against the one of a single process."""
    lines, twice, equal, stopped_at = (found[name] for name in ("lines", "twice", "equal", "stopped_at"))
    return [
        Check(what="every prompt is continued, and none twice", found=f"{lines} of {config.prompts}, {twice} twice",
              holds=lines == config.prompts and not twice),
        Check(what="texts are those of generate --input", found=f"{equal} of {lines}", holds=equal == lines),
        Check(what="the job was stopped and resumed", found=f"after {stopped_at} lines",
              holds=0 < stopped_at < config.prompts),
    ]  # fmt: skip
