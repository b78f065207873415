"""The facts that ``draftwood info`` prints. No model is loaded."""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from draftwood import __version__
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
        "threads_set_by": RULE.said or None,
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
