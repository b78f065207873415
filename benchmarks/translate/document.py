"""The JSON document of a run: settings, machine, raw repeats, translations, and the figures derived from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

from benchmarks.record import facts_of, plain, save, surroundings
from benchmarks.translate.config import TranslateConfig
from benchmarks.translate.figures import columns, quality, speeds, translations
from benchmarks.translate.report import exact_markdown, markdown
from benchmarks.translate.run import Batch, Log
from benchmarks.translate.sentences import Sentence, differences
from draftwood.translation import Translator

FORMAT = 1
BASE = "generate"
"""The system that the ratios are taken to."""


@final
@dataclass(frozen=True, kw_only=True)
class Writer:
    """Writes ``translate.json`` and ``translate.md``, at any time, from the log so far.

    Attributes:
        batches: per batch size, as they were translated.
    """

    config: TranslateConfig
    translator: Translator
    sentences: Sequence[Sentence]
    batches: dict[int, list[Batch]]
    log: Log
    load_before: float | None

    def write(self, *, partial: bool) -> dict[str, Any]:
        """Write both files; returns the document."""
        found = self.document(partial=partial)
        save(self.config.output, self.config.name, found, (exact_markdown if self.config.exact else markdown)(found))
        return found

    def document(self, *, partial: bool) -> dict[str, Any]:
        """All that is known, as plain values; needs one complete repeat."""
        pairs = [{"source": s.source, "reference": s.reference, "greedy_tokens": len(s.greedy)} for s in self.sentences]
        return {
            "format": FORMAT,
            "partial": partial,
            **setting(self.config, self.translator, self.load_before),
            "count": len(self.sentences),
            **({"results": self._differences()} if self.config.exact else {"sentences": pairs, "results": self._results()}),
        }

    def _differences(self) -> list[dict[str, Any]]:
        """The results without speed and quality."""
        results = []
        for (system, size), repeats in zip(self.log.cases, self.log.samples, strict=True):
            apart = differences(self.translator, self.sentences, [translations(repeats[0], self.batches[size])])
            results.append({"system": system.name, "ours": system.ours, "batch_size": size, "differing": apart})
        return results

    def _results(self) -> list[dict[str, Any]]:
        raw = [[columns(repeat) for repeat in repeats[: self.log.repeats]] for repeats in self.log.samples]
        bases = {size: repeats for (system, size), repeats in zip(self.log.cases, raw, strict=True) if system.name == BASE}
        greedy = self._decoded([sentence.greedy for sentence in self.sentences])
        references = [sentence.reference for sentence in self.sentences]
        results = []
        for (system, size), repeats, samples in zip(self.log.cases, raw, self.log.samples, strict=True):
            rows = [translations(repeat, self.batches[size]) for repeat in samples[: self.log.repeats]]
            texts = self._decoded(rows[0])
            apart = differences(self.translator, self.sentences, rows)
            results.append(
                {
                    "system": system.name,
                    "ours": system.ours,
                    "greedy": system.greedy,
                    "batch_size": size,
                    "equal": len(self.sentences) - len(apart),
                    **quality(texts, references, greedy),
                    **speeds(repeats, bases.get(size), len(self.sentences)),
                    "differing": apart if system.greedy else None,
                    "texts": texts,
                    "repeats": repeats,
                }
            )
        return results

    def _decoded(self, rows: Sequence[list[int]]) -> list[str]:
        found: list[str] = self.translator.tokenizer.batch_decode(list(rows), skip_special_tokens=True)
        return found


def setting(config: TranslateConfig, translator: Translator, load_before: float | None) -> dict[str, Any]:
    """The setup: configuration, versions, machine and models."""
    models = {"target": translator.model, "draft": getattr(translator.draft, "model", None)}
    packages = {"sacrebleu": not config.exact, "ctranslate2": "ctranslate2" in config.peer_names()}
    return {
        "config": {**plain(asdict(config)), "repeats": config.times()},
        "left_out": list(config.left_out()) if config.methods is None else [],
        **surroundings(translator.target.device, load_before, [name for name, used in packages.items() if used]),
        "models": {
            name: facts_of(model, getattr(getattr(translator, name), "engine", "torch"))
            for name, model in models.items()
            if model is not None
        },
    }
