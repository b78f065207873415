"""Starts in turn, each in a new process, with their times and memory."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final

import torch

from benchmarks.record import machine_lines, plain, surroundings
from benchmarks.report import spread_cell, table
from benchmarks.settings import PACKAGES
from benchmarks.start.config import PEERS, StartConfig
from benchmarks.start.peers import files
from benchmarks.summary import spread
from draftwood.core.errors import ConfigError, ModelError
from draftwood.core.settings import LoadOptions
from draftwood.hardware import machine
from draftwood.loading.models import choose_dtype, load_model
from draftwood.loading.names import locate, named_or_bundled
from draftwood.runners.native.stored import weight_sizes
from draftwood.tune.prompts import BUILT_IN

BASE: Final = "transformers"
PROGRAM: Final = Path(__file__).with_name("process.py")
SECONDS: Final = {
    "imported": "packages",
    "loaded": "models ready",
    "first_token": "first token",
    "reading": "first prompt",
    "done": "all tokens",
}
MEMORY: Final = {
    "peak_loaded": "peak while loading",
    "peak": "peak in all",
    "held": "held at the end",
    "own": "without files",
}
NOTES: Final = """\
* Every start is a process of its own, one after another, the systems in shuffled order in every repeat. **Seconds** run from
  the request for the process: until the packages are imported, the models are ready, the first token is there (for
  methods that draft: the first round) and all of them are. **First prompt** is the part from the models to the first token.
  transformers imports parts of itself only with a model.
* **transformers** loads the target alone and calls `generate`; **torch** and **native** load target and draft here and
  take what is the default without a profile. **genai** and **llama.cpp** load the target alone, which was converted before,
  without tokenizer and PyTorch. llama.cpp takes memory for all keys and values of the model's context. All write at
  temperature 0.
* **Memory** is the process's resident memory as the system counts it, files that are mapped into it included. **Without
  files** leaves these out: the system can take their memory back. Packages and models lie in the system's file cache from
  the first repeat on.
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
    job = {"target": target, "draft": draft, "dtype": dtype, "max_new_tokens": config.max_new_tokens}
    job["prompt"] = prompt(config.prompt_words)
    load_before = machine.load_average()
    with TemporaryDirectory(prefix="draftwood-bench-") as folder:
        model = load_model(str(target), LoadOptions(), torch.device("cpu"), getattr(torch, dtype))
        described = {
            "parameters": sum(count for count, _ in weight_sizes(model)),
            "dtype": dtype,
        }
        jobs, skipped = _jobs(config, job, Path(folder), model)
        del model  # its memory is for the starts
        found = _all_starts(config, jobs, skipped, on_step)
    if not found:
        raise ConfigError("nothing could be started: " + "; ".join(f"{name}: {why}" for name, why in skipped.items()))
    packages = [PACKAGES[system] for system in config.system_names() if system in PEERS]
    return {
        "format": 1,
        "kind": "start",
        "config": plain(asdict(config)),
        **surroundings(torch.device("cpu"), load_before, packages),
        "model": described,
        "skipped": [{"system": system, "why": why} for system, why in skipped.items()],
        "results": [
            {"start": name, "repeats": found[name], **figures(found[name], found.get(BASE))}
            for name in config.system_names()
            if name in found
        ],
    }


def prompt(words: int | None) -> str:
    """One sentence, or so many words of the built-in prompts in turn."""
    if words is None:
        return BUILT_IN["stories"][0]
    return " ".join(islice(cycle(word for part in BUILT_IN.values() for text in part for word in text.split()), words))


def _jobs(
    config: StartConfig, job: dict[str, Any], folder: Path, model: Any
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """What the process of each system needs, and the reasons why the others cannot have the target."""
    jobs: dict[str, dict[str, Any]] = {}
    skipped: dict[str, str] = {}
    for system in config.system_names():
        try:
            jobs[system] = job | {"system": system} | files(system, job, folder, model)
        except (ConfigError, ModelError, ImportError) as error:
            skipped[system] = str(error)
    return jobs, skipped


def _all_starts(
    config: StartConfig, jobs: dict[str, dict[str, Any]], skipped: dict[str, str], on_step: Callable[[], object]
) -> dict[str, list[dict[str, Any]]]:
    """The starts of all repeats, by name; a system that fails is added to ``skipped``."""
    found: dict[str, list[dict[str, Any]]] = {}
    for repeat in range(config.repeats):
        order = list(config.system_names())
        random.Random(f"{config.seed}/{repeat}").shuffle(order)
        for system in order:
            if system not in skipped:
                try:
                    with TemporaryDirectory(prefix="draftwood-bench-") as cache:
                        taken = start(jobs[system], Path(cache))
                    found.setdefault(system, []).append(taken)
                except ConfigError as error:
                    skipped[system] = str(error)
            on_step()
    return found


def start(job: dict[str, Any], cache: Path) -> dict[str, Any]:
    """The figures of :func:`benchmarks.start.process.started` from a new process.

    Args:
        job: its argument, without the time.
        cache: the folder of Draftwood's cache.

    Raises:
        ConfigError: the process failed; says why.
    """
    path = os.pathsep.join(filter(None, [str(PROGRAM.parents[2]), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "DRAFTWOOD_CACHE": str(cache), "PYTHONPATH": path}
    command = [sys.executable, "-P", str(PROGRAM), json.dumps(job | {"begun": perf_counter()})]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise ConfigError(f"its process failed ({last})")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def figures(repeats: list[dict[str, Any]], base: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Median and extremes of all figures; None for those that the system does not report."""
    names = [*SECONDS, *MEMORY]
    known = {name: [r[name] for r in repeats if r.get(name) is not None] for name in names}
    over = (
        None if base is None else spread([r["first_token"] / b["first_token"] for r, b in zip(repeats, base, strict=False)])
    )
    return {name: spread(values) if values else None for name, values in known.items()} | {"over_transformers": over}


def markdown(document: dict[str, Any]) -> str:
    """The report, a function of the document alone."""
    config, model = document["config"], document["model"]
    lines = [
        f"* target: {model['parameters'] / 1e6:.3g} M parameters, {model['dtype']}; "
        f"a prompt of {len(prompt(config['prompt_words']).split())} words, {config['max_new_tokens']} new tokens, batch 1; "
        f"{config['repeats']} repeats",
        *machine_lines(document, *(f"**left out**: {one['system']}, {one['why']}" for one in document["skipped"])),
    ]
    results = document["results"]
    seconds = [
        [r["start"], *(_cell(r[name], 1, 2) for name in SECONDS), _cell(r["over_transformers"], 1, 2)] for r in results
    ]
    memory = [[r["start"], *(_cell(r[name], 1e6, 0) for name in MEMORY)] for r in results]
    blocks = [
        "# Starting",
        "\n".join(lines),
        "## Seconds",
        table(["start", *SECONDS.values(), "first token ÷ transformers"], seconds),
        "## Memory, MB",
        table(["start", *MEMORY.values()], memory),
        "## How to read this",
        NOTES,
    ]
    return "\n\n".join(blocks) + "\n"


def _cell(values: dict[str, float] | None, unit: float, digits: int) -> str:
    return "" if values is None else spread_cell({name: value / unit for name, value in values.items()}, digits)
