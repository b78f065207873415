"""Writes the page: records and figures are compressed and unpacked by the browser when they are needed."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

from draftwood.core.errors import ConfigError
from draftwood.core.files import replace_file
from draftwood.trace.figures import draw_race, draw_round, draw_specdec
from draftwood.trace.figures.canvas import style
from draftwood.trace.figures.race import example_of
from draftwood.trace.figures.write import is_plain, is_translation, race_of
from draftwood.trace.labels import token_text, visible
from draftwood.trace.page.pieces import pieces_of, shown
from draftwood.trace.records import Trace, TracedRound
from draftwood.trace.text import describe_round, describe_specdec

LAYOUTS: Final = {0: 348, 740: 760, 1250: 1360}  # the least width of the page: the width that figures are drawn for
_RACES: Final = {0: 348, 740: 740, 1250: 1250}
_CHUNK: Final = 10  # rounds that are unpacked at once
_POLICY: Final = "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_SCRIPTS: Final = ("source.js", "parts.js", "page.js")


def write_page(path: Path | str, traces: Sequence[Trace]) -> None:
    """Write one HTML file that plays the recorded texts.

    Args:
        path: the file.
        traces: recorded texts: any number with drafting, at most one without, and at most one translation. The run without
            drafting and the first other one of the same prompt become the race.

    Raises:
        ConfigError: there is nothing to show, or more than one run without drafting or one translation.
        OSError: the file cannot be written.
    """
    made = page(traces)
    replace_file(Path(path), made)


def page(traces: Sequence[Trace]) -> str:
    """The page as text; see :func:`write_page`."""
    _check(traces)
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; {_POLICY}"
    data = "\n".join(f'<script type="text/plain" id="dw-{name}">{packed}</script>' for name, packed in _blocks(traces))
    return Template(_asset("page.html")).substitute(
        policy=escape(policy), style=_asset("page.css") + style(), data=data, script=script
    )


def _asset(name: str) -> str:
    return files("draftwood.trace.page").joinpath(name).read_text(encoding="utf-8")


def _check(traces: Sequence[Trace]) -> None:
    if not any(trace.rounds for trace in traces):
        raise ConfigError("there are no recorded rounds to show: record a text with at least one token")
    plain = sum(is_plain(trace) and not is_translation(trace) for trace in traces)
    translated = sum(map(is_translation, traces))
    if plain > 1 or translated > 1:
        raise ConfigError(
            f"a page shows at most one text without drafting and one translation, and got {plain} and {translated}: "
            "write several pages"
        )


def _blocks(traces: Sequence[Trace]) -> Iterator[tuple[str, str]]:
    """Name and compressed JSON of everything that the page may open."""
    pair = race_of(traces)
    yield "record", _packed({
        "layouts": list(LAYOUTS), "chunk": _CHUNK, "race": pair is not None, "texts": [_text(trace) for trace in traces],
    })  # fmt: skip
    if pair is not None:
        yield "race", _packed([_unstyled(draw_race(*pair, width=width)) for width in _RACES.values()])
    for number, trace in enumerate(traces):
        draw, describe = (draw_specdec, describe_specdec) if is_translation(trace) else (draw_round, describe_round)
        for start in range(0, len(trace.rounds), _CHUNK):
            chunk = range(start, min(start + _CHUNK, len(trace.rounds)))
            for layout, width in enumerate(LAYOUTS.values()):
                name = f"figures-{number}-{layout}-{start // _CHUNK}"
                yield name, _packed([_unstyled(draw(trace, i, width=width)) for i in chunk])
            yield f"words-{number}-{start // _CHUNK}", _packed([describe(trace, i) for i in chunk])


def _unstyled(svg: str) -> str:
    """A figure without its style sheet, which the page has once."""
    before, rest = svg.split("<style>", 1)
    return before + rest.split("</style>", 1)[1]


def _packed(value: Any) -> str:
    """JSON, compressed, as text. The bytes depend on the value alone."""
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode("ascii")


def _text(trace: Trace) -> dict[str, Any]:
    method = f"{trace.method} {trace.shape}" if trace.shape else trace.method
    title = "plain decoding" if is_plain(trace) else f"{method}, {trace.verifier} verifier"
    first = trace.rounds.index(example_of(trace)) if trace.rounds else 0
    return {
        "title": visible(title, spaces=False), "plain": is_plain(trace),
        "translation": is_translation(trace), "prompt": shown(trace.prompt_text), "source": shown(trace.source_text),
        "text": shown(trace.text), "first": first, "dropped": trace.dropped,
        "rounds": [_round(trace, made) for made in trace.rounds],
    }  # fmt: skip


def _round(trace: Trace, made: TracedRound) -> dict[str, Any]:
    nodes = [
        {"parent": node.parent, "depth": node.depth, "verdict": node.verdict, "text": token_text(trace, node.token)}
        for node in made.nodes
    ]
    return {
        "number": made.number, "end": made.end, "tokens": len(made.tokens), "accepted": made.path, "nodes": nodes,
        "pieces": [(shown(text), drafted) for text, drafted in pieces_of(trace, made)],
        "own": token_text(trace, made.next_token),
    }  # fmt: skip
