"""``draftwood bench``: about a minute with the bundled pair. Larger benchmarks are in ``benchmarks/`` of a checkout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import click

from draftwood.cli.options import dataclass_options, pick
from draftwood.cli.progress import steps
from draftwood.cli.settings import Models
from draftwood.core.checks import integer
from draftwood.core.errors import ConfigError
from draftwood.core.files import check_writable, replace_file
from draftwood.core.settings import LoadOptions, Method
from draftwood.loading.names import check_models
from draftwood.sampling.settings import Sampling
from draftwood.tune.charts import Bar
from draftwood.tune.documents import text_of
from draftwood.tune.plots import Measured, check_report, recorded, write_report
from draftwood.tune.prompts import built_in

if TYPE_CHECKING:
    from draftwood.api import Pair
    from draftwood.tune.compare import System

_OTHER_SEEDS: Final = 1_000_000  # the tree is chosen on other texts than those of the comparison


@final
@dataclass(frozen=True, kw_only=True)
class Amount:
    """How much is measured.

    Raises:
        ConfigError: a value out of range.
    """

    input: Path | None = field(
        default=None, metadata={"help": "JSON lines with a prompt each, as for generate; default: built-in stories and sums"}
    )
    prompts: int = field(default=6, metadata={"help": "most prompts to continue"})
    temperature: tuple[float, ...] = field(
        default=(0.0, 1.0), metadata={"help": "a temperature to measure at; may be given several times"}
    )
    max_new_tokens: int = field(default=32, metadata={"help": "most new tokens of a prompt"})
    repeats: int = field(default=3, metadata={"help": "repeats of every system on every prompt"})
    transformers: bool = field(default=False, metadata={"help": "measure model.generate of transformers too"})
    seed: int = field(default=0, metadata={"help": "seed of texts and orders"})
    json: Path | None = field(default=None, metadata={"help": "file for every figure"})
    report: Path | None = field(default=None, metadata={"help": "file for plots, .svg or .html (extra plots)"})

    def __post_init__(self) -> None:
        for name in ("prompts", "max_new_tokens", "repeats"):
            if integer(name, getattr(self, name)) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give 1 or more")
        if not self.temperature:
            raise ConfigError("no temperature was given: name at least one")
        for value in self.temperature:
            Sampling(temperature=value)


@click.command(name="bench", short_help="Measure plain decoding, auto and the best fixed tree side by side.")
@dataclass_options(Models)
@dataclass_options(LoadOptions)
@dataclass_options(Amount)
def command(**options: Any) -> None:
    """Measure plain decoding, --method auto, the best of a few fixed trees and, with --transformers, model.generate.

    All systems continue the same prompts in turn, in shuffled order. Figures are medians over repeats, with extremes. Ratios
    are taken inside each repeat. The tree is chosen on other texts. Times are those of whole calls; tokens per pass are new
    tokens per forward of the target.
    """
    models, loading, amount = pick(Models, options), pick(LoadOptions, options), pick(Amount, options)
    if amount.transformers and loading.tensor_parallel:
        raise ConfigError("--transformers calls the whole model: leave it or --tensor-parallel out")
    texts = _texts(amount)
    if amount.json is not None:
        check_writable(amount.json, "--json")
    if amount.report is not None:
        check_report(amount.report)
    check_models("language", models.target, models.draft)

    from draftwood.api import load
    from draftwood.hardware.machine import load_average, machine, versions
    from draftwood.hardware.threads import set_threads
    from draftwood.loading.models import quiet_loading
    from draftwood.tune.compare import check_room

    quiet_loading()
    set_threads(loading.threads)
    pair = load(models.target, models.draft, options=loading)
    prompts = [pair.encode(text) for text in texts]
    check_room(pair, prompts, amount.max_new_tokens)
    before = load_average()
    temperatures = dict.fromkeys(amount.temperature)
    results = [found for temperature in temperatures for found in _at(pair, prompts, temperature, amount)]
    click.echo(_table(results))
    if amount.json is not None:
        host = machine(pair.target.device) | {"load_before": before, "load_after": load_average()}
        options = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(amount).items()}
        document = {"format": 1, "options": options, "versions": versions(), "machine": host, "models": repr(pair)}
        replace_file(amount.json, text_of(document | {"results": results}))
    if amount.report is not None:
        _report(amount.report, pair, prompts, results, amount)


def _report(
    path: Path, pair: Pair, prompts: Sequence[Sequence[int]], results: Sequence[dict[str, Any]], amount: Amount
) -> None:
    """Plots of the figures and of texts of ``auto`` that are recorded for them."""
    speeds: dict[float, list[Bar]] = {}
    for found in results:
        speed, name = found["tokens_per_second"], found["system"]
        bar = Bar(
            label=name, value=speed["median"], shown=f"{speed['median']:.1f}", low=speed["min"], high=speed["max"],
            marked=name == "auto",
        )  # fmt: skip
        speeds.setdefault(found["temperature"], []).append(bar)
    methods = dict.fromkeys(speeds, Method())
    traces, costs = recorded(pair, prompts, methods, amount.max_new_tokens, amount.seed)
    note = "tokens per second: median of the repeats, and their extremes as a line"
    write_report(path, Measured(title="draftwood bench", speeds=speeds, note=note, traces=traces, costs=costs))


def _texts(amount: Amount) -> list[str]:
    if amount.input is None:
        return built_in(amount.prompts)
    from draftwood.cli.prompts import read_texts

    if not (found := read_texts(amount.input)):
        raise ConfigError(f"input {amount.input} holds no prompt: give JSON lines with a prompt each")
    return found[: amount.prompts]


def _at(pair: Pair, prompts: Sequence[Sequence[int]], temperature: float, amount: Amount) -> list[dict[str, Any]]:
    """The figures at one temperature, plain decoding first."""
    from draftwood.tune.compare import PLAIN, fastest, figures, fixed, ours, repeats, transformers_system

    def system(name: str, method: Method) -> System:
        return ours(pair, name, method, temperature, amount.max_new_tokens)

    name = "best fixed tree" if pair.draft is not None else "best lookup"
    tree = fastest([system(str(method), method) for method in fixed(pair)], prompts, amount.seed + _OTHER_SEEDS)
    systems = [system("plain decoding", PLAIN), system("auto", Method()), system(name, tree.method or PLAIN)]
    if amount.transformers:
        systems.append(transformers_system(pair, temperature, amount.max_new_tokens))
    for one in systems:
        one.timed(prompts[0], amount.seed)  # warm-up
    with steps(f"temperature {temperature:g}", len(systems) * len(prompts) * amount.repeats) as advance:
        found = repeats(systems, prompts, amount.repeats, amount.seed, advance)
    return [
        {"temperature": temperature, "system": one.name, "method": None if one.method is None else asdict(one.method)}
        | figures(found[one.name], found["plain decoding"])
        for one in systems
    ]


def _table(results: Sequence[dict[str, Any]]) -> str:
    from draftwood.cli.results import name_of

    header = ("temperature", "system", "method", "tokens/s", "per pass", "÷ plain")
    rows = [
        (
            f"{found['temperature']:g}",
            found["system"],
            "generate" if found["method"] is None else name_of(Method(**found["method"])),
            _spread(found["tokens_per_second"], 1),
            f"{found['tokens_per_pass']:.2f}",
            _spread(found["over_plain"], 2),
        )
        for found in results
    ]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows))
    return "\n".join(line.rstrip() for line in lines)


def _spread(values: dict[str, float], digits: int) -> str:
    return f"{values['median']:.{digits}f} ({values['min']:.{digits}f} to {values['max']:.{digits}f})"
