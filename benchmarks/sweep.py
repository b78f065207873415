"""Is ``auto`` as fast as the best fixed setting?

Every setting continues every prompt in turn and in shuffled order, as in the other benchmarks. The best of many fixed
settings looks faster than it is, because it was chosen by these times. So the best few of a temperature are measured again
together with ``auto``, with other seeds and more repeats. Only that final decides about ``auto``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any, Final, final

from benchmarks.config import BenchConfig
from benchmarks.document import Writer
from benchmarks.prompts import Prompt
from benchmarks.record import save
from benchmarks.report import Result, speed_of
from benchmarks.run import Bench, Case, Log
from benchmarks.settings import Setting, node_count
from benchmarks.summary import columns, ratio, speed
from benchmarks.sweep_report import markdown
from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from draftwood.hardware.machine import load_average

AUTO: Final = Setting(method="auto")
PLAIN: Final = Setting(method="ar")
FREE: Final = (Setting(method="adaptive"), Setting(method="shared-noise"))  # the first is ``auto`` without a profile
SHAPES: Final = {
    "chain": ("2", "3", "4", "6"),
    "rsd-s": ("2x2", "2x3", "2x4", "3x3", "3x4", "4x4"),
    "ngram": ("3", "5", "8"),
}
NODES: Final = (4, 6, 8, 10, 14, 18, 24)  # of shared-noise trees
FINALISTS: Final = 4  # fixed settings of a temperature that are measured again
MORE: Final = 4  # times as many repeats of the final: it decides, and has few settings
_OTHER_SEEDS: Final = 1_000  # of the final, far from those of the first run


def fixed() -> Iterator[Setting]:
    """The settings of which the best is looked for, plain decoding among them."""
    yield PLAIN
    for method, shapes in SHAPES.items():
        yield from (Setting(method=method, shape=shape, nodes=node_count(shape)) for shape in shapes)
    yield from (Setting(method="shared-noise", nodes=nodes) for nodes in NODES)


@final
@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Two runs: all settings, and the fastest of them again.

    Attributes:
        config: scale, seed and output folder.
        pair: the models, and the profile that ``auto`` takes, if there is one.
        prompts: continued by every setting.

    Raises:
        ConfigError: a pair without a draft model.
    """

    config: BenchConfig
    pair: Pair
    prompts: Sequence[Prompt]

    def __post_init__(self) -> None:
        if self.pair.draft is None:
            raise ConfigError("a sweep compares what draft models bring, but there is none: give --draft")

    @property
    def steps(self) -> int:
        """Texts to be written."""
        as_many = list(fixed())[1 : 1 + FINALISTS]  # as those that will be the best
        return self.all().steps + self.final(dict.fromkeys(self._temperatures, as_many)).steps

    @property
    def _temperatures(self) -> tuple[float, ...]:
        return self.config.scale().temperatures

    def all(self) -> Bench:
        """Everything, to find out what is fastest."""
        settings = [AUTO, *FREE, *fixed()]
        return self._bench([(s, t) for t in self._temperatures for s in settings], 1, self.config.seed)

    def final(self, best: Mapping[float, Sequence[Setting]]) -> Bench:
        """The best fixed settings of each temperature, plain decoding and ``auto``."""
        cases = [(s, t) for t, settings in best.items() for s in dict.fromkeys([PLAIN, AUTO, *settings])]
        return self._bench(cases, MORE, self.config.seed + _OTHER_SEEDS)

    def _bench(self, cases: list[Case], more: int, seed: int) -> Bench:
        scale = self.config.scale()
        return Bench(
            pair=self.pair,
            cases=cases,
            prompts=self.prompts,
            repeats=more * scale.repeats,
            max_new_tokens=scale.max_new_tokens,
            seed=seed,
        )

    def run(self, on_step: Callable[[], object]) -> dict[str, Any]:
        """Measure everything; ``sweep.json`` and ``sweep.md`` are written after every repeat. Returns the document."""
        record = Record(sweep=self, load_before=load_average())
        partial = True
        try:
            record.measure(self.all(), on_step)
            record.measure(self.final(record.best()), on_step)
            partial = False
        finally:
            if any(any(log.samples) for log in record.logs):  # one that ended while warming up leaves an older result alone
                document = record.write(partial=partial)
        return document


@final
@dataclass(frozen=True, kw_only=True)
class Record:
    """What the runs measured so far, as a document and its files."""

    sweep: Sweep
    load_before: float | None
    logs: list[Log] = field(default_factory=list)

    def measure(self, bench: Bench, on_step: Callable[[], object]) -> None:
        """One more run."""
        self.logs.append(Log(cases=list(bench.cases)))
        bench.run(self.logs[-1], on_step, lambda: self.write(partial=True))

    def best(self) -> dict[float, list[Setting]]:
        """The fastest fixed settings of every temperature in the first run, the fastest first."""
        log, rivals = self.logs[0], set(fixed())
        found: dict[float, dict[Setting, float]] = {}
        for (setting, temperature), repeats in zip(log.cases, log.samples, strict=True):
            if setting in rivals and repeats:
                found.setdefault(temperature, {})[setting] = median(speed(columns(repeat)) for repeat in repeats)
        return {t: sorted(speeds, key=lambda s: -speeds[s])[:FINALISTS] for t, speeds in found.items()}

    def write(self, *, partial: bool) -> dict[str, Any]:
        """Both files; returns the document."""
        document = self.document(partial=partial)
        save(self.sweep.config.output, "sweep", document, markdown(document))
        return document

    def document(self, *, partial: bool) -> dict[str, Any]:
        """All that is known, as plain values."""
        sweep = self.sweep
        own, *final = (
            Writer(
                config=replace(sweep.config, seed=sweep.config.seed + seed),
                pair=sweep.pair,
                prompts=sweep.prompts,
                log=log,
                load_before=self.load_before,
            ).document(partial=partial)
            for seed, log in zip((0, _OTHER_SEEDS), self.logs, strict=False)
        )
        del own["greedy"]  # no text is compared here
        again = final[0]["results"] if final else []
        return own | {"final": again, "auto": list(self._verdicts(again))}

    def _verdicts(self, final: Sequence[Result]) -> Iterator[dict[str, Any]]:
        """Per temperature, ``auto`` against the fastest setting of the first run, by the times of the final."""
        best = self.best()
        for temperature in self.sweep.config.scale().temperatures:
            here = {r["setting"]: r for r in final if r["temperature"] == temperature}
            names = [setting.name for setting in best.get(temperature, [])]
            if AUTO.name in here and set(names) <= here.keys():
                auto, fastest = here[AUTO.name]["repeats"], max(names, key=lambda name: speed_of(here[name]))
                yield {
                    "temperature": temperature,
                    "method": asdict(self.sweep.pair.method(temperature=temperature)),
                    "profile": self.sweep.pair.profile is not None,
                    "best": names[0],
                    "over_best": ratio(auto, here[names[0]]["repeats"]),
                    "fastest": fastest,
                    "over_fastest": ratio(auto, here[fastest]["repeats"]),
                }
