"""Is ``auto`` as fast as the best fixed setting? And does a useless draft cost much?

Every setting continues every prompt in turn and in shuffled order, as in the other benchmarks. The best of many fixed
settings looks faster than it is, as it was chosen by the very times that it is judged by. So ``auto`` is also compared, in
every repeat, with the setting that was best in the *other* repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Final, final

import torch

from draftwood.api import Pair
from draftwood.bench.config import BenchConfig
from draftwood.bench.document import Writer, replace_file, text_of
from draftwood.bench.prompts import Prompt
from draftwood.bench.report import Result, speed_of
from draftwood.bench.run import Bench, Case, Log
from draftwood.bench.settings import BLOCKS, Setting, depth, node_count
from draftwood.bench.summary import Columns, ratio, speed, spread
from draftwood.bench.sweep_report import markdown
from draftwood.errors import ConfigError
from draftwood.machine import load_average
from draftwood.models import BlockRunner
from draftwood.models.backend import runners_like

AUTO: Final = Setting(method="auto")
PLAIN: Final = Setting(method="ar")
FREE: Final = (Setting(method="adaptive"), Setting(method="shared-noise"))  # the first is ``auto`` without a profile
SHAPES: Final = {
    "chain": ("2", "3", "4", "6"),
    "block": ("2", "3", "5", "8"),
    "rsd-s": ("2x2", "2x3", "2x4", "3x3", "3x4", "4x4"),
    "ngram": ("3", "5", "8"),
}
NODES: Final = (4, 6, 8, 10, 14, 18, 24)  # of shared-noise trees
BLIND: Final = (PLAIN, AUTO, Setting(method="chain", shape="4", nodes=4))  # measured with the untrained draft


def fixed(pair: Pair) -> Iterator[Setting]:
    """The settings of which the best is looked for, plain decoding among them; none that the draft cannot grow."""
    yield PLAIN
    for method, shapes in SHAPES.items():
        found = (Setting(method=method, shape=shape, nodes=node_count(shape)) for shape in shapes)
        yield from (setting for setting in found if _grows(pair, setting))
    yield from (Setting(method="shared-noise", nodes=nodes) for nodes in NODES)


def _grows(pair: Pair, setting: Setting) -> bool:
    """Whether the draft can: one that fills blocks grows nothing deeper than they are, and only such a one fills any."""
    if isinstance(pair.draft, BlockRunner):
        return depth(setting) <= pair.draft.block
    return setting.method not in BLOCKS


def untrained(pair: Pair, seed: int) -> Pair:
    """The same target with a draft of the same configuration and fresh weights.

    Raises:
        ConfigError: a pair without a draft model.
    """
    if pair.draft is None:
        raise ConfigError("a sweep compares what draft models bring, but there is none: give --draft")
    model = pair.draft.model
    with torch.random.fork_rng(devices=[]):  # weights are made with the global generator of the CPU
        torch.default_generator.manual_seed(seed)
        fresh = type(model)(deepcopy(model.config))
    fresh = fresh.to(model.device, model.dtype).eval()
    runners = runners_like(pair.target, pair.target.model, fresh)
    return Pair(pair.target.model, fresh, pair.tokenizer, runners=runners)


@final
@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Two runs: all settings with the pair's own draft, then a few with an untrained one.

    Attributes:
        config: scale, seed and output folder.
        pair: the models, and the profile that ``auto`` takes, if there is one.
        blind: the pair with the untrained draft.
        prompts: continued by every setting.
    """

    config: BenchConfig
    pair: Pair
    blind: Pair
    prompts: Sequence[Prompt]

    def benches(self) -> tuple[Bench, Bench]:
        """Both runs."""
        own = _bench(self.config, self.pair, self.prompts, [AUTO, *FREE, *fixed(self.pair)])
        blind = [setting for setting in BLIND if _grows(self.blind, setting)]
        return own, _bench(self.config, self.blind, self.prompts, blind)

    def run(self, on_step: Callable[[], object]) -> dict[str, Any]:
        """Measure everything; ``sweep.json`` and ``sweep.md`` are written after every repeat. Returns the document."""
        benches = self.benches()
        logs = [Log(cases=list(bench.cases)) for bench in benches]
        write = Record(sweep=self, logs=logs, load_before=load_average()).write
        partial = True
        try:
            for bench, log in zip(benches, logs, strict=True):
                bench.run(log, on_step, lambda: write(partial=True))
            partial = False
        finally:
            if any(logs[0].samples):  # a run that ended while warming up leaves an older result alone
                document = write(partial=partial)
        return document


def _bench(config: BenchConfig, pair: Pair, prompts: Sequence[Prompt], settings: Sequence[Setting]) -> Bench:
    scale = config.scale()
    cases: list[Case] = [(setting, temperature) for temperature in scale.temperatures for setting in settings]
    return Bench(
        pair=pair,
        cases=cases,
        prompts=prompts,
        repeats=scale.repeats,
        max_new_tokens=scale.max_new_tokens,
        seed=config.seed,
    )


@final
@dataclass(frozen=True, kw_only=True)
class Record:
    """Makes the document of what the logs hold by then, and its files."""

    sweep: Sweep
    logs: Sequence[Log]
    load_before: float | None

    def write(self, *, partial: bool) -> dict[str, Any]:
        """Both files; returns the document."""
        document = self.document(partial=partial)
        folder = self.sweep.config.output
        replace_file(folder / "sweep.json", text_of(document))
        replace_file(folder / "sweep.md", markdown(document))
        return document

    def document(self, *, partial: bool) -> dict[str, Any]:
        """All that is known, as plain values."""
        sweep = self.sweep
        own, blind = (
            Writer(config=sweep.config, pair=pair, prompts=sweep.prompts, log=log, load_before=self.load_before)
            for pair, log in zip((sweep.pair, sweep.blind), self.logs, strict=True)
        )
        document = own.document(partial=partial)
        del document["greedy"]  # no text is compared here
        judged = chain.from_iterable(self._judged(document["results"], t) for t in sweep.config.scale().temperatures)
        return document | {"auto": list(judged), "untrained": blind.document(partial=partial)["results"]}

    def _judged(self, results: Sequence[Result], temperature: float) -> Iterator[dict[str, Any]]:
        here = [r for r in results if r["temperature"] == temperature]
        auto = next((r for r in here if r["method"] == AUTO.method), None)
        names = {setting.name for setting in fixed(self.sweep.pair)}
        rivals = [r for r in here if r["setting"] in names]
        if auto is not None and rivals:
            best = max(rivals, key=speed_of)
            yield {
                "temperature": temperature,
                "method": asdict(self.sweep.pair.method(temperature=temperature)),
                "profile": self.sweep.pair.profile is not None,
                "best": best["setting"],
                "over_best": ratio(auto["repeats"], best["repeats"]),
                "over_others_best": over_others_best(auto["repeats"], [r["repeats"] for r in rivals]),
            }


def over_others_best(auto: Sequence[Columns], rivals: Sequence[Sequence[Columns]]) -> dict[str, float] | None:
    """How many times faster ``auto`` is in each repeat than the setting that was best in the others; median and extremes.

    None where there is one repeat only.
    """
    if len(auto) < 2:
        return None
    found = []
    for at, mine in enumerate(auto):
        best = max(rivals, key=lambda repeats: pooled([r for i, r in enumerate(repeats) if i != at]))
        found.append(speed(mine) / speed(best[at]))
    return spread(found)


def pooled(repeats: Sequence[Columns]) -> float:
    """Tokens per second of several repeats together."""
    return sum(sum(r["new_tokens"]) for r in repeats) / sum(sum(r["seconds"]) for r in repeats)
