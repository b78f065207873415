"""What a round does outside the forwards: host syncs, launches and the operations that take most time."""

from __future__ import annotations

from typing import Any, Final

from torch.profiler import ProfilerActivity, profile

from benchmarks.cuda.models import shaped
from benchmarks.cuda.plan import Deadline, Plan
from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import build
from draftwood.engine.requests import Request
from draftwood.sampling.settings import Sampling
from draftwood.tune.prompts import built_in

MOST: Final = 15
COUNTED: Final = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpyAsync", "cudaLaunchKernel", "aten::item")


def run(plan: Plan, deadline: Deadline) -> dict[str, Any]:
    """One text by the adaptive tree, of the first inflated target: counts per round, and operations by time."""
    parameters = next((count for count in plan.shapes.values() if count is not None), None)
    pair = shaped(plan.device, parameters)
    decoder = Decoder(pair.target, *build(Method(method="adaptive"), pair.draft, greedy=True), eos=pair.eos)
    limits = Limits(max_new_tokens=plan.max_new_tokens, ignore_eos=True)
    request = Request(prompt=pair.encode(built_in(1)[0]), seed=0, limits=limits)
    decoder.generate([request], Sampling(temperature=0.0))
    deadline.check()
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if plan.device != "cpu" else [])
    with profile(activities=activities) as recorded:
        [result] = decoder.generate([request], Sampling(temperature=0.0))
    rows = recorded.key_averages()
    rounds, counts = result.stats.rounds, {row.key: row.count for row in rows}
    return {
        "parameters": sum(weight.numel() for weight in pair.model.parameters()),
        "rounds": rounds,
        "per_round": {name: counts.get(name, 0) / rounds for name in COUNTED},
        "host": _top(rows, "self_cpu_time_total", rounds),
        "device": _top(rows, "self_device_time_total", rounds) if plan.device != "cpu" else [],
    }


def _top(rows: Any, time: str, rounds: int) -> list[dict[str, Any]]:
    """The operations that take most time, with milliseconds and calls per round."""
    order = sorted(rows, key=lambda row: -getattr(row, time))[:MOST]
    return [
        {"name": row.key[:80], "ms_per_round": getattr(row, time) / 1e3 / rounds, "calls_per_round": row.count / rounds}
        for row in order
    ]
