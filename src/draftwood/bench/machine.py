"""Where the numbers were measured: without it they mean nothing."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch
import transformers

from draftwood._version import __version__
from draftwood.api import Pair


def versions() -> dict[str, str]:
    """Of everything that takes part."""
    return {
        "draftwood": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def machine(device: torch.device) -> dict[str, Any]:
    """Processor, cores, threads, accelerator."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "device": str(device),
        "accelerator": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    }


def load_average() -> float | None:
    """Processes that wanted a core in the last minute; more than this run's threads means a busy machine."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def cpu_name() -> str:
    """The processor's own name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.is_file() else []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or "unknown"


def models(pair: Pair) -> dict[str, Any]:
    """Kind, size and number format of both models."""
    found = {"target": pair.target.model, "draft": pair.draft.model if pair.draft else None}
    return {
        name: {
            "type": model.config.model_type,
            "parameters": sum(p.numel() for p in model.parameters()),
            "dtype": str(model.dtype).removeprefix("torch."),
            "attention": model.config._attn_implementation,
        }
        for name, model in found.items()
        if model is not None
    }
