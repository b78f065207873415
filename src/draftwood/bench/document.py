"""The JSON document of a run: settings, machine, raw repeats and the figures derived from them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from draftwood.api import Pair
from draftwood.bench.batches import batched
from draftwood.bench.config import BenchConfig
from draftwood.bench.greedy import compare
from draftwood.bench.inflate import label_of
from draftwood.bench.judge import Judge
from draftwood.bench.prompts import Prompt
from draftwood.bench.report import markdown
from draftwood.bench.run import Log, seed_of
from draftwood.bench.settings import PACKAGES, rank
from draftwood.bench.summary import columns, figures, ratio
from draftwood.core import machine
from draftwood.core.errors import named

FORMAT = 1
BASES = ("ar", "generate")


@final
@dataclass(frozen=True, kw_only=True)
class Writer:
    """Writes ``bench.json`` and ``bench.md``, as often as wanted, from what the log holds by then.

    Attributes:
        skipped: methods that were left out, and why.
        others: the pair as other backends run it, by their names.
        judge: of sampled texts; they are not judged without one.
    """

    config: BenchConfig
    pair: Pair
    prompts: Sequence[Prompt]
    log: Log
    load_before: float | None
    skipped: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, Pair] = field(default_factory=dict)
    judge: Judge | None = None

    def write(self, *, partial: bool) -> dict[str, Any]:
        """Both files; returns the document."""
        found = self.document(partial=partial)
        folder = self.config.output
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "bench.json", text_of(found))
        replace_file(folder / "bench.md", markdown(found))
        return found

    def document(self, *, partial: bool) -> dict[str, Any]:
        """All that is known, as plain values."""
        if partial:
            self.log.level()
        scale = self.config.scale()
        return {
            "format": FORMAT,
            "partial": partial,
            "config": {**plain(asdict(self.config)), **plain(asdict(scale))},
            "versions": machine.versions() | _versions({setting.method for setting, _ in self.log.cases}),
            "machine": {
                **machine.machine(self.pair.target.device),
                "load_before": self.load_before,
                "load_after": machine.load_average(),
            },
            "models": _models(self.pair, list(self.others.values())),
            "skipped": [{"method": method, "why": why} for method, why in self.skipped.items()],
            "prompts": [{"source": p.source, "tokens": list(p.tokens)} for p in self.prompts],
            "results": self._results(),
            "greedy": compare(self.pair.target.model, self.prompts, self.log),
            "judged": [] if self.judge is None else self.judge.verdicts(self.log),
        }

    def _results(self) -> list[dict[str, Any]]:
        sources = {
            size: [self.prompts[batch[0]].source for batch in batched(self.prompts, size)]
            for size in {setting.batch for setting, _ in self.log.cases}
        }
        raw = [[columns(repeat) for repeat in repeats] for repeats in self.log.samples]
        bases = {
            (setting.method, setting.batch, temperature): repeats
            for (setting, temperature), repeats in reversed(list(zip(self.log.cases, raw, strict=True)))
            if setting.method in BASES and repeats  # of several backends the one that is named first
        }
        results = []
        for (setting, temperature), repeats in zip(self.log.cases, raw, strict=True):
            if not repeats:
                continue
            size = setting.batch
            over = {b: ratio(repeats, bases[b, size, temperature]) for b in BASES if (b, size, temperature) in bases}
            results.append(
                {
                    "setting": setting.name,
                    "method": setting.kind,
                    "shape": setting.label,
                    "nodes": setting.nodes,
                    "batch": size,
                    "places": [list(place) for place in setting.places],
                    "temperature": temperature,
                    **figures(repeats, sources[size]),
                    "speedup": over,
                    "repeats": [{"first_seed": seed_of(self.config.seed, i, 0), **r} for i, r in enumerate(repeats)],
                }
            )
        return sorted(results, key=lambda r: (r["temperature"], r["batch"], rank(r["method"]), r["nodes"]))


def _versions(methods: set[str]) -> dict[str, str]:
    """Of the other programs that were measured."""
    packages = {PACKAGES[method] for method in methods & PACKAGES.keys()}
    return {package: found for package in sorted(packages) if (found := machine.version_of(package)) is not None}


def _models(pair: Pair, others: Collection[Pair]) -> dict[str, Any]:
    """Kind, size and number format of both models."""
    return {
        name: {
            "type": runner.model.config.model_type,
            "parameters": sum(p.numel() for p in runner.model.parameters()),
            "dtype": str(runner.model.dtype).removeprefix("torch."),
            "attention": runner.model.config._attn_implementation,
            "engine": " and ".join([runner.engine, *(other.target.engine for other in others)]),
            "label": label_of(runner.model),
        }
        for name, runner in {"target": pair.target, "draft": pair.draft}.items()
        if runner is not None
    }


def plain(settings: dict[str, Any]) -> dict[str, Any]:
    """JSON has no paths."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}


def text_of(document: dict[str, Any]) -> str:
    """JSON with one line per result: whole, a line per number would be unreadable."""
    parts = []
    for name, value in document.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in value) + "\n]"
        parts.append(f"{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def replace_file(path: Path, text: str) -> None:
    """Write a file so that an interrupt leaves the old one or the new one, not half of either."""
    part = path.with_name(path.name + ".part")
    try:
        with named(part):
            part.write_text(text, encoding="utf-8")
    except OSError:
        part.unlink(missing_ok=True)
        raise
    part.replace(path)
