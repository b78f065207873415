"""Tokens per second of Draftwood and of ``transformers`` in one run, and where the time of a round goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, final

from benchmarks.batches import ALONE
from benchmarks.config import CostConfig
from benchmarks.cost import bandwidth, bytes_of, measure
from benchmarks.cuda.correct import prompts_for
from benchmarks.cuda.models import free, shaped
from benchmarks.cuda.plan import Deadline, Plan, TimeIsUp
from benchmarks.measure import Maker, Sample
from benchmarks.peers import peer_maker
from benchmarks.run import Bench, Case, Log
from benchmarks.settings import Setting
from benchmarks.summary import columns, figures, ratio
from draftwood.api import Pair

STATIC: Final = "static"
SETTINGS: Final = (
    Setting(method="generate"),
    Setting(method=STATIC),
    Setting(method="assisted", shape="4", nodes=4),
    Setting(method="ar"),
    Setting(method="chain", shape="4", nodes=4),
    Setting(method="rsd-s+traversal", shape="3x4", nodes=12),
    Setting(method="adaptive"),
)
LEFT_OUT: Final = {"CUDA graphs": "the runners have none, so Draftwood is measured without them only"}
_STAGES: Final = ("draft", "target", "verify", "other")


@final
class StaticCache:
    """``model.generate`` with a static cache; on CUDA ``transformers`` then compiles the forward.

    Args:
        pair: whose target generates.
    """

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def maker(self, setting: Setting, temperature: float, max_new_tokens: int) -> Maker:
        """A function that continues prompts."""
        return peer_maker(setting, self._pair, temperature, max_new_tokens, STATIC)


def run(plan: Plan, deadline: Deadline) -> dict[str, Any]:
    """Every shape of the target, each with an equal share of the time that is left."""
    found: dict[str, Any] = {"left_out": LEFT_OUT, "shapes": {}}
    for number, (name, parameters) in enumerate(plan.shapes.items()):
        try:
            share = deadline.share(len(plan.shapes) - number)
            found["shapes"][name] = _shape(shaped(plan.device, parameters), plan, share)
        except Exception as error:  # a shape that does not fit leaves the others alone
            found["shapes"][name] = {"error": f"{type(error).__name__}: {error}"}
        free(plan.device)
    return found


def _shape(pair: Pair, plan: Plan, deadline: Deadline) -> dict[str, Any]:
    model, device = pair.model, pair.target.device
    speed = bandwidth(device)
    limit = bytes_of(model) / speed
    results = []
    for number, size in enumerate(plan.batches):
        share = deadline.share(2 * len(plan.batches) - number)
        results += _batch(pair, plan, size, limit, share)
    costs = CostConfig(tokens=plan.nodes, context=(64,), repeats=min(5, plan.repeats), device=plan.device)
    return {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "bytes": bytes_of(model),
        "bytes_per_second": speed,
        "weights_once_ms": 1e3 * limit,
        "results": results,
        "forward_ms": measure(costs, {"torch": pair}, lambda: None)["milliseconds"],
    }


def _batch(pair: Pair, plan: Plan, size: int, limit: float, deadline: Deadline) -> list[dict[str, Any]]:
    """All settings at one batch size and both temperatures: whole calls first, then one repeat with awaited forwards."""
    chosen = [s for s in SETTINGS if size == 1 or s.method not in ALONE]
    cases = [(replace(s, batch=size), t) for t in (0.0, 1.0) for s in chosen]
    whole = _run(pair, plan, cases, "none", plan.repeats, deadline)
    split = _run(pair, plan, [case for case in cases if case[0].method != STATIC], "awaited", 1, deadline)
    awaited = dict(zip(split.cases, split.samples, strict=True))
    raw = {case: [columns(r) for r in repeats] for case, repeats in zip(whole.cases, whole.samples, strict=True) if repeats}
    generate, results = cases[0][0], []
    for (setting, temperature), repeats in zip(whole.cases, whole.samples, strict=True):
        if not repeats:
            continue
        case, base = (setting, temperature), raw.get((generate, temperature))
        seconds = _seconds_per_round(repeats, awaited.get(case, []))
        results.append(
            {
                "setting": setting.name,
                "batch": size,
                "temperature": temperature,
                "tokens_per_second": figures(raw[case])["tokens_per_second"],
                "over_generate": None if base is None else ratio(raw[case], base),
                "tokens_per_pass": _efficiency(repeats) or _efficiency(awaited.get(case, [])),
                "ms_per_round": 1e3 * seconds,
                "of_bandwidth_limit": limit / seconds,
                "split_ms_per_round": _split(awaited.get(case, [])),
                "repeats": len(repeats),
            }
        )
    return results


def _run(pair: Pair, plan: Plan, cases: list[Case], hooks: Any, repeats: int, deadline: Deadline) -> Log:
    """What was measured in the time, warming up excepted; of a repeat that was cut short only what all settings did."""
    prompts = prompts_for(pair, plan.batches[-1])
    engines = {STATIC: StaticCache(pair)}
    bench = Bench(
        pair=pair,
        cases=cases,
        prompts=prompts,
        repeats=repeats,
        max_new_tokens=plan.max_new_tokens,
        seed=0,
        engines=engines,
        hooks=hooks,
    )
    log = Log(cases=cases)
    try:
        bench.run(log, lambda: deadline.check() if all(log.samples) else None, lambda: None)
    except TimeIsUp:
        log.level()
    return log


def _seconds_per_round(repeats: Sequence[Sequence[Sample]], awaited: Sequence[Sequence[Sample]]) -> float:
    """Of whole calls. What no hook counted there made as many rounds for a token as where every forward was awaited."""
    seconds = sum(sample.seconds for repeat in repeats for sample in repeat)
    if awaited and not any(sample.forwards for repeat in repeats for sample in repeat):
        return seconds / _longest(repeats) * _longest(awaited) / sum(map(_rounds, awaited))
    return seconds / sum(map(_rounds, repeats))


def _longest(repeats: Sequence[Sequence[Sample]]) -> int:
    """Tokens of the longest rows, over all batches."""
    return sum(max(map(len, sample.tokens)) for repeat in repeats for sample in repeat)


def _rounds(samples: Sequence[Sample]) -> int:
    """Forwards of the target; of a static cache, where nothing counts them, the tokens of the longest row."""
    return sum(sample.forwards or max(map(len, sample.tokens)) for sample in samples)


def _efficiency(repeats: Sequence[Sequence[Sample]]) -> float | None:
    samples = [sample for repeat in repeats for sample in repeat]
    forwards = sum(sample.row_forwards for sample in samples)
    return sum(len(row) for sample in samples for row in sample.tokens) / forwards if forwards else None


def _split(repeats: Sequence[Sequence[Sample]]) -> dict[str, float] | None:
    """Milliseconds per round by stage, from the run that waits for every forward."""
    samples = [sample for repeat in repeats for sample in repeat]
    if not samples:
        return None
    rounds, whole = sum(map(_rounds, repeats)), sum(sample.seconds for sample in samples)
    taken = {stage: sum(getattr(sample, f"{stage}_seconds") for sample in samples) for stage in _STAGES[:-1]}
    return {stage: 1e3 * value / rounds for stage, value in {**taken, "other": whole - sum(taken.values())}.items()}
