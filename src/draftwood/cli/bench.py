"""``draftwood bench``: about a minute with the bundled pair. Larger benchmarks are in ``benchmarks/`` of a checkout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import click

from draftwood.cli.measuring import PromptFile, load_fixed
from draftwood.cli.options import Changes, dataclass_options, pick
from draftwood.cli.progress import steps
from draftwood.cli.settings import Models
from draftwood.core.checks import setting
from draftwood.core.errors import ConfigError
from draftwood.core.files import check_writable, replace_file
from draftwood.core.settings import LoadOptions, Method
from draftwood.tune.documents import text_of
from draftwood.tune.sizes import Sizes

if TYPE_CHECKING:
    from draftwood.api import Pair
    from draftwood.tune.compare import System

_CHANGES: Final[Changes] = {"temperature": {"default": (0.0, 1.0)}, "max_new_tokens": {"default": 32}}
_OTHER_SEEDS: Final = 1_000_000  # the tree is chosen on other texts than those of the comparison


@final
@dataclass(frozen=True, kw_only=True)
class Amount:
    """How much is measured."""

    repeats: int = setting(3, "repeats of every system on every prompt")
    transformers: bool = setting(False, "measure model.generate of transformers too")
    json: Path | None = setting(None, "file for every figure")

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise ConfigError(f"repeats is {self.repeats}: give 1 or more")


@click.command(name="bench")
@dataclass_options(Models, LoadOptions, PromptFile, Sizes, Amount, leave_out=("minutes",), changes=_CHANGES)
def command(**options: Any) -> None:
    """Measure plain decoding, --method auto, the best of a few fixed trees and, with --transformers, model.generate.

    All systems continue the same prompts in turn, in shuffled order. Figures are medians over repeats, with extremes. Ratios
    are taken inside each repeat. The tree is chosen on other texts. Times are those of whole calls; tokens per pass are new
    tokens per forward of the target.
    """
    models, loading = pick(Models, options), pick(LoadOptions, options)
    sizes, amount = pick(Sizes, options), pick(Amount, options)
    texts = pick(PromptFile, options).prompts(sizes.prompts)
    if amount.json is not None:
        check_writable(amount.json, "--json")
    pair = load_fixed(models, loading)

    from draftwood.hardware.machine import load_average, machine, versions
    from draftwood.tune.compare import check_room

    prompts = [pair.encode(text) for text in texts]
    check_room(pair, prompts, sizes.max_new_tokens)
    before = load_average()
    temperatures = dict.fromkeys(sizes.temperature)
    results = [found for temperature in temperatures for found in _at(pair, prompts, temperature, sizes, amount)]
    click.echo(_table(results))
    if amount.json is not None:
        host = machine(pair.target.device) | {"load_before": before, "load_after": load_average()}
        given = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
        document = {"format": 1, "options": given, "versions": versions(), "machine": host, "models": repr(pair)}
        replace_file(amount.json, text_of(document | {"results": results}))


def _at(
    pair: Pair, prompts: Sequence[Sequence[int]], temperature: float, sizes: Sizes, amount: Amount
) -> list[dict[str, Any]]:
    """The figures at one temperature, plain decoding first."""
    from draftwood.tune.compare import PLAIN, fastest, figures, fixed, ours, repeats, transformers_system

    def system(name: str, method: Method) -> System:
        return ours(pair, name, method, temperature, sizes.max_new_tokens)

    name = "best fixed tree" if pair.draft is not None else "best lookup"
    tree = fastest([system(str(method), method) for method in fixed(pair)], prompts, sizes.seed + _OTHER_SEEDS)
    systems = [system("plain decoding", PLAIN), system("auto", Method()), system(name, tree.method or PLAIN)]
    if amount.transformers:
        systems.append(transformers_system(pair, temperature, sizes.max_new_tokens))
    for one in systems:
        one.timed(prompts[0], sizes.seed)  # warm-up
    with steps(f"temperature {temperature:g}", len(systems) * len(prompts) * amount.repeats) as advance:
        found = repeats(systems, prompts, amount.repeats, sizes.seed, advance)
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
