"""The JSON document of a run: settings, machine, raw repeats and the figures derived from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, final

from benchmarks.config import BenchConfig
from benchmarks.greedy import compare
from benchmarks.prompts import Prompt
from benchmarks.record import facts_of, plain, save, surroundings
from benchmarks.report import markdown
from benchmarks.run import Log, seed_of
from benchmarks.settings import PACKAGES, rank
from benchmarks.summary import columns, figures, ratio
from draftwood.api import Pair

FORMAT = 1
BASES = ("ar", "generate")


@final
@dataclass(frozen=True, kw_only=True)
class Writer:
    """Writes ``bench.json`` and ``bench.md``, at any time, from the log so far.

    Attributes:
        skipped: methods that were left out, and why.
        others: the pair as other backends run it, by their names.
    """

    config: BenchConfig
    pair: Pair
    prompts: Sequence[Prompt]
    log: Log
    load_before: float | None
    skipped: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, Pair] = field(default_factory=dict)

    def write(self, *, partial: bool) -> dict[str, Any]:
        """Write both files; returns the document."""
        found = self.document(partial=partial)
        save(self.config.output, "bench", found, markdown(found))
        return found

    def document(self, *, partial: bool) -> dict[str, Any]:
        """The document of all results so far, as plain values."""
        if partial:
            self.log.level()
        methods = {setting.method for setting, _ in self.log.cases}
        return {
            "format": FORMAT,
            "partial": partial,
            "config": plain(asdict(self.config)) | {"temperatures": list(self.config.temperature_values())},
            **surroundings(self.pair.target.device, self.load_before, {PACKAGES[m] for m in methods & PACKAGES.keys()}),
            "models": _models(self.pair, list(self.others.values())),
            "skipped": [{"method": method, "why": why} for method, why in self.skipped.items()],
            "prompts": [{"source": p.source, "tokens": list(p.tokens)} for p in self.prompts],
            "results": self._results(),
            "greedy": compare(self.pair.model, self.prompts, self.log),
        }

    def _results(self) -> list[dict[str, Any]]:
        raw = [[columns(repeat) for repeat in repeats] for repeats in self.log.samples]
        bases = {
            (setting.method, temperature): repeats
            for (setting, temperature), repeats in reversed(list(zip(self.log.cases, raw, strict=True)))
            if setting.method in BASES and repeats  # of several backends the one that is named first
        }
        results = []
        for (setting, temperature), repeats in zip(self.log.cases, raw, strict=True):
            if not repeats:
                continue
            over = {b: ratio(repeats, bases[b, temperature]) for b in BASES if (b, temperature) in bases}
            results.append(
                {
                    "setting": setting.name,
                    "method": setting.kind,
                    "shape": setting.label,
                    "nodes": setting.nodes,
                    "temperature": temperature,
                    **figures(repeats),
                    "speedup": over,
                    "repeats": [{"first_seed": seed_of(self.config.seed, i, 0), **r} for i, r in enumerate(repeats)],
                }
            )
        return sorted(results, key=lambda r: (r["temperature"], rank(r["method"]), r["nodes"]))


def _models(pair: Pair, others: Collection[Pair]) -> dict[str, Any]:
    """Kind, size and number format of both models."""
    runners: dict[str, tuple[Any, Any]] = {"target": (pair.model, pair.target), "draft": (pair.draft_model, pair.draft)}
    return {
        name: facts_of(model, " and ".join([runner.engine, *(other.target.engine for other in others)]))
        | {"attention": getattr(model.config, "_attn_implementation", None)}
        for name, (model, runner) in runners.items()
        if runner is not None
    }
