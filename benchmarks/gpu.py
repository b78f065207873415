"""Correctness and speed on CUDA, in one call of under ten minutes: ``python benchmarks/gpu.py``.

It needs torch, transformers and safetensors, and a checkout: nothing has to be installed, and no network is used. Results
are written after every part, so that a call that is stopped leaves what it has. ``--small`` tries all of it on a CPU.

Parts: ``correct`` (trees, greedy and sampled texts), ``speed`` (against ``transformers``, by target size and batch).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT, ROOT / "src"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

if TYPE_CHECKING:
    from benchmarks.cuda.plan import Plan

PARTS = {"correct": 2, "speed": 6}
"""Name of a part, which is its module -> its share of the time."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status: 1 for a failed part or check, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="benchmarks/gpu.py", description=str(__doc__).split("\n\n")[0])
    parser.add_argument("--device", default="cuda", help="cuda or cuda:1 (default: %(default)s)")
    parser.add_argument("--small", action="store_true", help="a minute on the CPU, to try that everything runs")
    parser.add_argument("--seconds", type=float, default=540.0, help="for everything (default: %(default)s)")
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("draftwood-gpu"), help="folder of results (default: %(default)s)")
    given = parser.parse_args(arguments)
    parts = [name.strip() for name in given.parts.split(",")]
    if unknown := [name for name in parts if name not in PARTS]:
        parser.error(f"--parts holds {', '.join(unknown)}: choose from {', '.join(PARTS)}")
    if given.seconds <= 0:
        parser.error(f"--seconds is {given.seconds}: give a number above 0")
    import torch

    if not given.small and not torch.cuda.is_available():
        parser.error("PyTorch sees no CUDA device: run this where there is one, or try it on the CPU with --small")
    return run(given, [name for name in PARTS if name in parts])


def run(given: argparse.Namespace, parts: Sequence[str]) -> int:
    """Run all parts in turn; a failed one does not stop the others."""
    from benchmarks.cuda.stand_ins import install

    missing = install()
    from benchmarks.cuda.plan import LARGE, SMALL, Deadline, Plan

    device = "cpu" if given.small else given.device
    sizes: dict[str, Any] = SMALL if given.small else LARGE
    plan = Plan(device=device, seconds=given.seconds, parts=tuple(parts), out=given.out, **sizes)
    document = _head(plan, missing)
    whole, left = Deadline(plan.seconds), sum(PARTS[name] for name in parts)
    for name in parts:
        start, share = perf_counter(), Deadline(whole.left * PARTS[name] / left)
        try:
            found = import_module(f"benchmarks.cuda.{name}").run(plan, share)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        left -= PARTS[name]
        document["parts"][name] = {"seconds": round(perf_counter() - start, 1), **found}
        _save(plan.out / "gpu.json", document)
    print(report(document))
    return int(failed(document))


def _head(plan: Plan, missing: Sequence[str]) -> dict[str, Any]:
    import torch

    from draftwood.hardware import machine

    return {
        "format": 1,
        "kind": "gpu",
        "versions": machine.versions(),
        "machine": machine.machine(torch.device(plan.device)),
        "stand_ins": list(missing),
        "batches": list(plan.batches),
        "max_new_tokens": plan.max_new_tokens,
        "parts": {},
    }


def _save(path: Path, document: dict[str, Any]) -> None:
    from draftwood.core.files import replace_file

    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(document, indent=1) + "\n")


def failed(document: dict[str, Any]) -> bool:
    """A part or a shape ended with an error, or something was not exact."""
    parts = document["parts"]
    shapes = parts.get("speed", {}).get("shapes", {}).values()
    return any("error" in found for found in [*parts.values(), *shapes]) or not parts.get("correct", {}).get("correct", True)


def report(document: dict[str, Any]) -> str:
    """A short table, a function of the document alone."""
    here, parts = document["machine"], document["parts"]
    lines = [f"{here['accelerator'] or here['cpu']}; " + ", ".join(f"{k} {v}" for k, v in document["versions"].items())]
    for name, found in parts.items():
        lines.append(f"{name}: {found.get('error', 'done')} ({found['seconds']} s)")
    if "correct" in parts.get("correct", {}):
        found = parts["correct"]
        lines.append(
            f"exact: {found['correct']}; tree logits within {found['tree_logits_difference']:.1e}; "
            f"{found['greedy_texts']} greedy texts, {found['greedy_differing']} differ; "
            f"{found['sampled_settings_tested']} settings tested as samplers"
        )
    for name, shape in parts.get("speed", {}).get("shapes", {}).items():
        lines += ["", f"{name}: {shape['error']}"] if "error" in shape else ["", *_speeds(name, shape)]
    return "\n".join(lines)


def _speeds(name: str, shape: dict[str, Any]) -> list[str]:
    once = f"weights once in {shape['weights_once_ms']:.3g} ms"
    lines = [
        f"{name}: {shape['parameters'] / 1e6:.4g} M parameters, {shape['dtype']}, {once}",
        f"{'batch':>5} {'T':>3} {'setting':<22}{'tokens/s':>10}{'÷ generate':>12}{'per pass':>10}{'ms/round':>10}"
        f"{'of limit':>10} {'draft':>8}{'target':>8}{'verify':>8}{'rest':>8}",
    ]
    for r in shape["results"]:
        over, efficiency, split = r["over_generate"], r["tokens_per_pass"], r["split_ms_per_round"]
        stages = "".join(f"{split[stage]:>8.2f}" for stage in ("draft", "target", "verify", "other")) if split else ""
        lines.append(
            f"{r['batch']:>5} {r['temperature']:>3g} {r['setting']:<22}{r['tokens_per_second']['median']:>10.1f}"
            + (f"{over['median']:>12.2f}" if over else f"{'':>12}")
            + (f"{efficiency:>10.2f}" if efficiency else f"{'':>10}")
            + f"{r['ms_per_round']:>10.2f}{r['of_bandwidth_limit']:>10.2f} {stages}"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
