"""What every benchmark writes: a JSON document with its surroundings, and a report made of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from draftwood.api import Pair
from draftwood.core.files import replace_file
from draftwood.hardware import machine
from draftwood.runners.native.stored import weight_sizes


def save(folder: Path, name: str, document: dict[str, Any], report: str) -> None:
    """Write ``name.json`` and ``name.md``; the folder is made where there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / f"{name}.json", text_of(document))
    replace_file(folder / f"{name}.md", report)


def text_of(document: dict[str, Any]) -> str:
    """JSON with one line per result: one line per number would be unreadable."""
    parts = []
    for name, value in document.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in value) + "\n]"
        parts.append(f"{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def surroundings(device: torch.device, load_before: float | None, packages: Iterable[str] = ()) -> dict[str, Any]:
    """The entries ``versions`` and ``machine`` of a document.

    Args:
        device: of the target.
        load_before: load average before the run.
        packages: whose versions are of interest too, where they are installed.
    """
    more = {name: found for name in sorted(packages) if (found := machine.version_of(name)) is not None}
    load = {"load_before": load_before, "load_after": machine.load_average()}
    return {"versions": machine.versions() | more, "machine": machine.machine(device) | load}


def head_of(kind: str, config: Any, pair: Pair, load_before: float | None) -> dict[str, Any]:
    """The first entries of the document of a run with one pair."""
    head = {"format": 1, "kind": kind, "config": plain(vars(config))}
    return head | surroundings(pair.target.device, load_before) | {"model": facts_of(pair.model, pair.target.engine)}


def facts_of(model: Any, engine: str) -> dict[str, Any]:
    """Kind, size and number format of a model, and what runs it."""
    return {
        "type": model.config.model_type,
        "parameters": sum(count for count, _ in weight_sizes(model)),
        "dtype": str(model.dtype).removeprefix("torch."),
        "engine": engine,
    }


def plain(settings: dict[str, Any]) -> dict[str, Any]:
    """JSON has no paths."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}


def machine_lines(document: dict[str, Any], *remarks: str) -> list[str]:
    """Machine, load, remarks and versions, as lines of a report's head."""
    here = document["machine"]
    return [
        f"* {here['accelerator'] or here['cpu']}, cores: {here['cores']}, threads: {here['torch_threads']}",
        f"* load average {here['load_before']} before and {here['load_after']} after",
        *(f"* {remark}" for remark in remarks),
        "* " + ", ".join(f"{name} {number}" for name, number in document["versions"].items()),
    ]
