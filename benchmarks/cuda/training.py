"""Training by the project's own commands, and whether a new drafter is better than the bundled one."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks import acceptance
from benchmarks.cuda.correct import prompts_for
from benchmarks.cuda.models import bundled
from benchmarks.cuda.plan import Deadline, Plan
from benchmarks.settings import Setting
from draftwood.api import Pair, load
from draftwood.core.settings import LoadOptions
from draftwood.sampling.settings import Sampling

SETTING: Final = Setting(method="rsd-s+traversal", shape="3x4", nodes=12)
TEMPERATURES: Final = (0.0, 1.0)
_ROOT: Final = Path(__file__).parents[2]
_LINES: Final = 20  # of what a run says last


def run(plan: Plan, deadline: Deadline) -> dict[str, Any]:
    """Every run of ``draftwood train``, each with an equal share of the time that is left; a stopped one can be resumed."""
    runs = []
    for number, arguments in enumerate(plan.train):
        folder = (plan.out / f"train-{number + 1}").absolute()
        found = _train(shlex.split(arguments), folder, deadline.share(len(plan.train) - number))
        if found["status"] == 0 and arguments.split()[0] == "draft":
            found["tokens_per_pass"] = _compared(plan, folder)
        runs.append({"arguments": arguments, "folder": str(folder), **found})
    return {"runs": runs}


def _train(arguments: list[str], folder: Path, deadline: Deadline) -> dict[str, Any]:
    command = [sys.executable, "-m", "draftwood.cli", "train", *arguments, "--out", str(folder)]
    paths = os.pathsep.join([str(_ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            command,
            env=os.environ | {"PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=deadline.left,
        )
    except subprocess.TimeoutExpired:
        return {"status": None, "output": ["its time was up: the same arguments go on with it"]}
    return {"status": done.returncode, "output": done.stdout.splitlines()[-_LINES:]}


def _compared(plan: Plan, folder: Path) -> dict[str, dict[str, float]]:
    """Expected tokens per pass with the bundled drafter and with the new one, on the same texts of the bundled target."""
    pair = bundled(plan.device, "float32")
    new = load(_target(), folder, options=LoadOptions(device=plan.device, dtype="float32", backend="torch", profile="none"))
    prompts, found = prompts_for(pair, plan.batches[-1]), {}
    for temperature in TEMPERATURES:
        sampling = Sampling(temperature=temperature)
        texts = acceptance.write(pair, prompts, sampling, plan.max_new_tokens, 0)
        found[f"{temperature:g}"] = {name: _mean(one, texts, sampling) for name, one in (("bundled", pair), ("new", new))}
    return found


def _mean(pair: Pair, texts: list[acceptance.Written], sampling: Sampling) -> float:
    means = acceptance.measure(pair, texts, SETTING, sampling)
    return sum(means) / len(means)


def _target() -> Path:
    from draftwood.loading.names import named_or_bundled

    return Path(str(named_or_bundled("language", None, None)[0]))
