"""``draftwood trace``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, fields
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Final, final

import click

from draftwood.cli.console import check_unicode, write_line
from draftwood.cli.options import Sectioned, Sections, pick
from draftwood.cli.settings import Models, Opened, Seed, Settings, check_display
from draftwood.core.checks import setting
from draftwood.core.errors import ConfigError
from draftwood.core.files import check_readable, check_writable
from draftwood.core.limits import Limits
from draftwood.core.settings import LoadOptions, Method
from draftwood.sampling.settings import Sampling
from draftwood.trace.settings import TraceSettings

if TYPE_CHECKING:
    from draftwood.engine.session import Session
    from draftwood.trace.records import Trace

_LEAST: Final = 40  # columns of a figure


@final
@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """What is traced and where it goes."""

    translate: str | None = setting(None, "trace the translation of this sentence; with a PROMPT too, by the bundled pair")
    input: Path | None = setting(None, "show a file that --json wrote, without any model")
    json: Path | None = setting(None, "write the traces to this file")
    html: Path | None = setting(None, "write a page that plays the texts, one file that reads nothing from a network")
    compare: bool = setting(False, "trace plain decoding of the PROMPT too")
    explain: bool = setting(False, "say what depths and ranks brought, and what a better draft would bring")


SECTIONS: Sections = {
    "Models": (Models, LoadOptions),
    "Drafting": (Method,),
    "Sampling": (Sampling, Seed),
    "Length": (Limits,),
    "Trace": (TraceSettings, TraceOptions),
}


@click.command(name="trace", cls=Sectioned, sections=SECTIONS)
@click.argument("prompt", required=False)
def command(prompt: str | None, **options: Any) -> None:
    """Continue PROMPT and show every round: the tree, the probabilities, the verdicts and the seconds.

    In a tree, p is the draft's probability and q the target's. With --json, --html or --explain the rounds are not
    printed.
    """
    wanted, kept = pick(TraceOptions, options), pick(TraceSettings, options)
    _check_together(prompt, wanted, options.keys())
    if wanted.input is not None:
        from draftwood.trace.files import read_traces

        traces = read_traces(wanted.input)
    else:
        own = {name: value for name, value in options.items() if name != "json"}  # which is no file elsewhere
        traces = _record(prompt, wanted, kept, own)
    _show(traces, wanted)


def _check_together(prompt: str | None, wanted: TraceOptions, given: Set[str]) -> None:
    """Refuse options that would have no effect, and files that cannot be read or written."""
    for name in ("json", "html"):
        if (path := getattr(wanted, name)) is not None:
            check_writable(path, f"--{name}")
    if wanted.input is not None:
        others = sorted(given - {"input", "explain", "html"})
        if prompt is not None or others:
            other = "a prompt" if prompt is not None else f"--{others[0].replace('_', '-')}"
            raise ConfigError(f"--input shows a file, but {other} was given too: leave one of them out")
        check_readable(wanted.input)
        return
    if prompt is None and wanted.translate is None:
        raise ConfigError('there is nothing to trace: give a prompt, --translate "SENTENCE", or --input FILE')
    if wanted.translate is not None and not wanted.translate.strip():
        raise ConfigError("the sentence is empty: give a sentence to translate")
    check_unicode("the prompt", prompt or "")
    if prompt is None:
        if wanted.compare:
            raise ConfigError("--compare is for a prompt, but only a sentence was given: leave it out")
        idle = {f.name for cls in (Sampling, Seed, Limits) for f in fields(cls)} - {"max_new_tokens"}
        if refused := sorted(idle & given):
            raise ConfigError(f"--{refused[0].replace('_', '-')} is for a prompt; translations are greedy: leave it out")


def _record(prompt: str | None, wanted: TraceOptions, kept: TraceSettings, options: Mapping[str, Any]) -> list[Trace]:
    traces: list[Trace] = []
    if prompt is not None:
        settings = Settings.of(options)
        check_display(settings.display, settings.method)
        traces += _traced(settings, prompt, kept)
    if wanted.translate is not None:
        traces += _traced(Settings.of(options if prompt is None else {}, "translation"), wanted.translate, kept)
    return traces


def _traced(settings: Settings, text: str, kept: TraceSettings) -> list[Trace]:
    """The traces of a text, and of plain decoding for a comparison."""
    from draftwood.core.seeds import seed_or_random

    opened: Opened[Session] = settings.open()
    session = opened.session
    [request] = session.requests([text], settings.limits_from(session.limits), [seed_or_random(settings.seed)])
    methods = [settings.method, *([Method(method="ar")] if settings.display.compare else [])]
    return [session.traced([request], opened.sampling, method, trace=kept)[0] for method in methods]


def _show(traces: list[Trace], wanted: TraceOptions) -> None:
    """Write and print what the options name."""
    if wanted.json is not None:
        from draftwood.trace.files import write_traces

        write_traces(wanted.json, traces)
        click.echo(f"{sum(len(trace.rounds) for trace in traces)} rounds are in {wanted.json}.", err=True)
    if wanted.html is not None:
        from draftwood.trace.page.write import write_page

        write_page(wanted.html, traces)
        click.echo(f"The page is in {wanted.html}: open it in a browser.", err=True)
    if wanted.explain:
        from draftwood.trace.explain import explain

        text = "\n\n".join("\n".join(explain(trace)) for trace in traces)
    elif wanted.json is None and wanted.html is None:
        text = traces_text(traces)
    else:
        return
    write_line(text)


def traces_text(traces: Sequence[Trace]) -> str:
    """Every text with its rounds, as wide as the terminal, and plain decoding with the first text where both are there."""
    from draftwood.trace.figures.race import race_of
    from draftwood.trace.labels import visible
    from draftwood.trace.text import describe_race, describe_round

    width, parts = max(_LEAST, get_terminal_size((100, 24)).columns), []
    for trace in traces:
        names = f"target {trace.target}, draft {trace.draft or '-'}, seed {trace.seed}"
        head = (f"{trace.source_text or trace.prompt_text} -> {trace.text}", names)
        parts.append("\n".join(visible(line, spaces=False) for line in head))
        parts += [describe_round(trace, number, width=width) for number in range(len(trace.rounds))]
        if trace.dropped:
            parts.append(f"{trace.dropped} more rounds were not kept (--rounds).")
    if (pair := race_of(traces)) is not None:
        parts.append(describe_race(*pair, width=width))
    return "\n\n".join(parts)
