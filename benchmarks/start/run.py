"""Starts in turn, each in a new process, with their times and memory."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final

import torch

from benchmarks.inflate import LABEL
from benchmarks.record import machine_lines, plain, surroundings
from benchmarks.report import spread_cell, table
from benchmarks.start.config import StartConfig
from draftwood.core import machine
from draftwood.core.errors import ConfigError
from draftwood.loading.models import choose_dtype, named_or_bundled
from draftwood.loading.names import locate
from draftwood.tune.compare import spread
from draftwood.tune.prompts import BUILT_IN

PROMPT: Final = BUILT_IN["stories"][0]
BASE: Final = "transformers"
PROGRAM: Final = Path(__file__).with_name("process.py")
FIRST, NEXT = ", first start", ", next start"
SECONDS: Final = {"imported": "packages", "loaded": "models ready", "first_token": "first token", "done": "all tokens"}
MEMORY: Final = {"peak_loaded": "peak while loading", "peak": "peak in all", "held": "held at the end"}
NOTES: Final = """\
* Every start is a process of its own, one after another, the systems in shuffled order in every repeat. **Seconds** run from
  the request for the process: until the packages are imported, the models are ready, the first token is there (for
  methods that draft: the first round) and all of them are. transformers imports parts of itself only with a model.
* **transformers** loads the target alone and calls `generate`; the others load target and draft here and take what is the
  default without a profile. All write at temperature 0.
* **openvino, first start** has an empty store: the models are converted, compared and kept. **Next start** finds them there.
* **Memory** is the process's resident memory as the system counts it, files that are mapped into it included. Packages and
  models lie in the system's file cache from the first repeat on.
* Medians over repeats and extremes; the ratio is taken inside each repeat; above 1 the row is slower."""


def measure(config: StartConfig, on_step: Callable[[], object]) -> dict[str, Any]:
    """Start everything in turn; ``on_step`` is called after each system.

    Returns:
        A document of plain values.

    Raises:
        ConfigError: nothing could be started.
    """
    target, draft = (
        None if name is None else str(locate(name)) for name in named_or_bundled("language", config.target, config.draft)
    )
    dtype = str(choose_dtype(config.dtype, torch.device("cpu"))).removeprefix("torch.")
    job = {"target": target, "draft": draft, "dtype": dtype, "prompt": PROMPT, "max_new_tokens": config.max_new_tokens}
    load_before = machine.load_average()
    found: dict[str, list[dict[str, Any]]] = {}
    skipped: dict[str, str] = {}
    for repeat in range(config.repeats):
        order = list(config.system_names())
        random.Random(f"{config.seed}/{repeat}").shuffle(order)
        for system in order:
            if system not in skipped:
                try:
                    for name, taken in _starts(system, job):
                        found.setdefault(name, []).append(taken)
                except ConfigError as error:
                    skipped[system] = str(error)
            on_step()
    if not found:
        raise ConfigError("nothing could be started: " + "; ".join(f"{name}: {why}" for name, why in skipped.items()))
    order = [name for system in config.system_names() for name in (system, system + FIRST, system + NEXT) if name in found]
    return {
        "format": 1,
        "kind": "start",
        "config": plain(asdict(config)),
        **surroundings(torch.device("cpu"), load_before, ["openvino"]),
        "model": {"parameters": found[order[0]][0]["parameters"], "dtype": dtype, "label": _label(target)},
        "skipped": [{"system": system, "why": why} for system, why in skipped.items()],
        "results": [{"start": name, "repeats": found[name], **figures(found[name], found.get(BASE))} for name in order],
    }


def _label(target: str | None) -> str | None:
    from transformers import AutoConfig

    found = getattr(AutoConfig.from_pretrained(str(target)), LABEL, None)
    return None if found is None else str(found)


def _starts(system: str, job: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """One start, or of OpenVINO the first one and the next, with a store of their own."""
    with TemporaryDirectory(prefix="draftwood-bench-") as store:
        if system != "openvino":
            return [(system, start(job | {"system": system}, Path(store)))]
        first = start(job | {"system": system}, Path(store))
        first["stored"] = sum(path.stat().st_size for path in Path(store).rglob("*") if path.is_file())
        return [(system + FIRST, first), (system + NEXT, start(job | {"system": system}, Path(store)))]


def start(job: dict[str, Any], store: Path) -> dict[str, Any]:
    """The figures of :func:`benchmarks.start.process.started` from a new process.

    Args:
        job: its argument, without the time.
        store: folder for converted models.

    Raises:
        ConfigError: the process failed; says why.
    """
    environment = {**os.environ, "DRAFTWOOD_CACHE": str(store)}
    command = [sys.executable, "-P", str(PROGRAM), json.dumps(job | {"begun": perf_counter()})]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise ConfigError(f"its process failed ({last})")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def figures(repeats: list[dict[str, Any]], base: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Median and extremes of all figures; None for those that the system does not report."""
    names = [*SECONDS, *MEMORY, "stored"]
    known = {name: [r[name] for r in repeats if r.get(name) is not None] for name in names}
    over = (
        None if base is None else spread([r["first_token"] / b["first_token"] for r, b in zip(repeats, base, strict=False)])
    )
    return {name: spread(values) if values else None for name, values in known.items()} | {"over_transformers": over}


def markdown(document: dict[str, Any]) -> str:
    """The report, a function of the document alone."""
    config, model = document["config"], document["model"]
    lines = [
        f"* {model['label'] or 'target'}: {model['parameters'] / 1e6:.3g} M parameters, {model['dtype']}; "
        f"{config['max_new_tokens']} new tokens, batch 1; {config['repeats']} repeats",
        *machine_lines(document, *(f"**left out**: {one['system']}, {one['why']}" for one in document["skipped"])),
    ]
    results = document["results"]
    seconds = [
        [r["start"], *(_cell(r[name], 1, 2) for name in SECONDS), _cell(r["over_transformers"], 1, 2)] for r in results
    ]
    names = [*MEMORY, "stored"]
    memory = [[r["start"], *(_cell(r[name], 1e6, 0) for name in names)] for r in results]
    blocks = [
        "# Starting",
        "\n".join(lines),
        "## Seconds",
        table(["start", *SECONDS.values(), "first token ÷ transformers"], seconds),
        "## Memory, MB",
        table(["start", *MEMORY.values(), "converted models on disk"], memory),
        "## How to read this",
        NOTES,
    ]
    return "\n\n".join(blocks) + "\n"


def _cell(values: dict[str, float] | None, unit: float, digits: int) -> str:
    return "" if values is None else spread_cell({name: value / unit for name, value in values.items()}, digits)
