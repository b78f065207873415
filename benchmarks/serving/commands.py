"""The commands; nothing heavy is imported before one runs."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import click

from benchmarks.serving.config import FuzzConfig, LoadConfig, PrefixConfig, Served, SoakConfig
from draftwood.cli.options import dataclass_options, pick
from draftwood.cli.progress import steps
from draftwood.core.errors import ConfigError


@click.command(name="serve-load")
@dataclass_options(LoadConfig, Served)
def load(**options: Any) -> None:
    """Measure tokens per second and latencies of the server, with drafts and without.

    Asked by docs/speed.md.
    """
    config = pick(LoadConfig, options)
    _measure("load", config, options, lambda bench: bench.steps_of(config))


@click.command(name="serve-soak")
@dataclass_options(SoakConfig, Served)
def soak(**options: Any) -> None:
    """Send many short requests, leave a part of them, and account for every one; look at the server's memory.

    Asked by docs/serve.md.
    """
    config = pick(SoakConfig, options)
    _measure("soak", config, options, lambda bench: bench.TENTHS)


@click.command(name="serve-fuzz")
@dataclass_options(FuzzConfig, Served)
def fuzz(**options: Any) -> None:
    """Send bodies that are nearly right, and those of schemathesis: no server error, no hang.

    Asked by benchmarks/README.md.
    """
    config = pick(FuzzConfig, options)
    _measure("fuzz", config, options, lambda bench: bench.STEPS)


@click.command(name="serve-prefix")
@dataclass_options(PrefixConfig, Served)
def prefix(**options: Any) -> None:
    """Measure what the prefix cache saves a chat's second turn, and compare its texts with those of the cache off.

    Asked by docs/speed.md.
    """
    config = pick(PrefixConfig, options)
    _measure("prefix", config, options, lambda _: 3 * config.repeats + 1)


def _require() -> None:
    try:
        import httpx2  # noqa: F401
        import jsonschema  # noqa: F401
        import prometheus_client  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'this benchmark needs the package {error.name}; install it with: pip install ".[serve,bench]"'
        ) from error


def _measure(name: str, config: Any, options: dict[str, Any], total: Callable[[Any], int]) -> None:
    """Run a module of this folder, write both files, print the report; the exit status is 1 if something does not hold."""
    _require()
    from benchmarks.record import save
    from benchmarks.serving.outcome import holds

    served, bench = pick(Served, options), import_module(f"benchmarks.serving.{name}")
    with steps(f"serve-{name}", total(bench)) as advance:
        found = bench.run(served, config, advance)
    report = bench.markdown(found)
    save(served.output, f"serve-{name}", found, report)
    click.echo(report)
    if not holds(found):
        raise click.exceptions.Exit(1)
