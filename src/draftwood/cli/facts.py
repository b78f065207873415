"""The facts that ``draftwood info`` prints. No model is loaded."""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from draftwood import __version__
from draftwood.cli.results import name_of
from draftwood.core.draft_kind import CAUSAL, DraftKind
from draftwood.core.errors import ConfigError
from draftwood.core.fit import resolve
from draftwood.core.methods import METHODS
from draftwood.core.settings import Method
from draftwood.engine.knowledge import read
from draftwood.hardware.cores import FREE, usable_cores
from draftwood.hardware.machine import cache_folder
from draftwood.hardware.threads import RULE, loading_threads
from draftwood.loading.models import choose_device, choose_dtype
from draftwood.loading.profile import why_not
from draftwood.native.library import instruction_set, instruction_sets, why_missing
from draftwood.runners.backends import BACKENDS, choose_engine


def gather() -> dict[str, Any]:
    """Everything that ``info`` shows, as plain values."""
    device, threads = choose_device("auto"), RULE.count()
    return {
        "version": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "cores": {"usable": usable_cores(), "taken_by_others": round(FREE.taken, 2)},
        "threads": threads,
        "dtype": str(choose_dtype("auto", device)).removeprefix("torch."),
        "backends": {**_auto_backends(device), **_native()},
        "profiles": profiles(),
        "methods": methods(),
        "auto": {
            "with_draft": _chosen(CAUSAL, greedy=False),
            "without_draft": _chosen(None, greedy=False),
            "temperature_0": _chosen(CAUSAL, greedy=True),
        },
    }


def _auto_backends(device: torch.device) -> dict[str, Any]:
    """The backends that ``auto`` tries here, in order, and why it does not try those that are missing."""
    engine = choose_engine(device)
    skipped = [f"{BACKENDS[name].name} is not tried, as {why}" for name, why in engine.passed]
    return {"auto": list(engine.names), "reason": engine.named or "; ".join(skipped) or None}


def _native() -> dict[str, Any]:
    """The instruction sets of the native engine, or why it is missing."""
    missing = why_missing()
    found = None if missing else {"instruction_set": instruction_set(), "available": instruction_sets()}
    return {"native": found, "native_missing": missing}


def profiles() -> list[dict[str, Any]]:
    """The profiles in the user's cache, and whether they apply here."""
    with loading_threads(None):
        found = [_profile(path) for path in sorted((cache_folder() / "known").glob("*.json"))]
        return [one for one in found if one is not None]


def _profile(path: Path) -> dict[str, Any] | None:
    """What a file says of the fastest methods; None if it says nothing of them."""
    try:
        one = read(path)
    except ConfigError as error:
        return {"file": str(path), "applies": False, "reason": str(error)}
    if not one.choices or (key := one.profile_key) is None:
        return None
    reason = why_not(key)
    return {
        "file": str(path),
        "applies": reason is None,
        "reason": reason,
        **{part: key[part] and key[part]["name"] for part in ("target", "draft")},
        **{part: key[part] for part in ("dtype", "device", "engine")},
        "choices": [{"temperature": t, "method": asdict(method)} for t, method in sorted(one.choices.items())],
    }


def methods() -> dict[str, dict[str, Any]]:
    """Per method: its summary, need of a draft model, default shape or node limit, and exact verifiers."""
    return {
        spec.name: {
            "summary": spec.summary,
            "needs_draft": spec.needs != "nothing",
            "shape": spec.shape,
            "nodes": spec.nodes,
            "verifiers": spec.verifiers,
        }
        for spec in METHODS.values()
    }


def _chosen(draft: DraftKind | None, *, greedy: bool) -> dict[str, str]:
    method = resolve(Method(), draft, greedy=greedy)
    return {"method": method.method, "verifier": method.verifier}


def _thread_line(facts: dict[str, Any]) -> str:
    """The number of threads, and why it is not the number of cores."""
    cores, threads = facts["cores"], facts["threads"]
    if RULE.said:
        why = f"as {RULE.said} says"
    else:
        taken = cores["taken_by_others"]
        why = f"of {cores['usable']} cores" + (f", of which other processes take {taken:g}" if taken else "")
    return f"{threads} thread{'' if threads == 1 else 's'} {why}"


def lines(facts: dict[str, Any]) -> list[str]:
    threads = f", {_thread_line(facts)}" if facts["device"] == "cpu" else ""
    lines = [
        ", ".join([f"draftwood {facts['version']}", *(f"{k} {facts[k]}" for k in ("python", "torch", "transformers"))]),
        f"device    {facts['device']} ({facts['device_name']}{threads}), dtype {facts['dtype']}",
        f"backend   {_backend_line(facts)}",
    ]
    lines += ["", "Profiles of 'draftwood tune'", *_profile_lines(facts["profiles"], facts["backends"]["auto"][0])]
    lines += ["", "Methods"]
    lines += [f"  {name:<14}{method['summary']}" for name, method in facts["methods"].items()]
    lines += ["", "Methods         draft model   default    exact verifiers"]
    for spec in METHODS.values():
        needs = "-" if spec.needs == "nothing" else "needed"
        lines.append(f"  {spec.name:<14}{needs:<14}{spec.size:<11}{', '.join(spec.verifiers)}")
    lines += ["", "Method auto is, where no profile applies,"]
    labels = {"with_draft": "with a draft model", "without_draft": "without one", "temperature_0": "at temperature 0"}
    lines += [f"  {labels[k]:<20}{v['method']} + {v['verifier']}" for k, v in facts["auto"].items()]
    return [*lines, "  (greedy is exact at temperature 0 only; a target whose files hold an MTP head has a draft model)"]


def _backend_line(facts: dict[str, Any]) -> str:
    found = facts["backends"]
    auto = f"auto is {', else '.join(found['auto'])}"
    auto += f": {found['reason']}" if found["reason"] else ""
    if found["native"] is not None:
        auto += f"; the native engine uses {found['native']['instruction_set']} of {', '.join(found['native']['available'])}"
    elif found["native_missing"] not in (found["reason"] or ""):
        auto += f"; no native engine, as {found['native_missing']}"
    return auto


def _profile_lines(found: list[dict[str, Any]], auto: str) -> list[str]:
    lines = []
    for one in found:
        lines.append(f"  {one['file']}")
        if "target" in one:
            where = f"{one['dtype']} on {one['device']} by {one['engine']}"
            lines.append(f"    for {one['target']} with {one['draft'] or 'no draft'}, {where}")
        if one["applies"]:
            named = ((choice["temperature"], Method(**choice["method"])) for choice in one["choices"])
            backend = one["engine"].split()[0]
            where = "" if backend == auto else f" with --backend {backend}"
            lines.append(f"    applies{where}: {', '.join(f'{name_of(method)} at {t:g}' for t, method in named)}")
        else:
            lines.append(f"    does not apply: {one['reason']}")
    return lines or ["  none"]
