"""Writes the page: records and figures are compressed and unpacked by the browser when they are needed."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from draftwood.core.errors import ConfigError
from draftwood.core.files import replace_file
from draftwood.trace.figures import draw_race, draw_round, draw_specdec
from draftwood.trace.figures.race import is_plain, is_translation, race_of
from draftwood.trace.page.pieces import text_data, unstyled
from draftwood.trace.page.shell import PARTS, Shell, scripts, style_of_pages
from draftwood.trace.records import Trace
from draftwood.trace.text import describe_round

LAYOUTS: Final = {0: 348, 740: 760, 1250: 1360}  # the least width of the page: the width that figures are drawn for
RACES: Final = {0: 348, 740: 740, 1250: 1250}
_CHUNK: Final = 10  # rounds that are unpacked at once
_SHELL: Final = Shell(
    title="Draftwood: every round of a text",
    heading="Every round of a text",
    without="This page plays a recorded text. It needs JavaScript; nothing is loaded from a network.",
    element="dw-page",
    script=scripts("draftwood.trace.page", PARTS),
    style=style_of_pages(),
    allowed="",
)


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
    data = "\n".join(f'<script type="text/plain" id="dw-{name}">{packed}</script>' for name, packed in _blocks(traces))
    return _SHELL.html(data)


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
        "layouts": list(LAYOUTS), "chunk": _CHUNK, "race": pair is not None, "texts": [text_data(trace) for trace in traces],
    })  # fmt: skip
    if pair is not None:
        yield "race", _packed([unstyled(draw_race(*pair, width=width)) for width in RACES.values()])
    for number, trace in enumerate(traces):
        draw = draw_specdec if is_translation(trace) else draw_round
        for start in range(0, len(trace.rounds), _CHUNK):
            chunk = range(start, min(start + _CHUNK, len(trace.rounds)))
            for layout, width in enumerate(LAYOUTS.values()):
                name = f"figures-{number}-{layout}-{start // _CHUNK}"
                yield name, _packed([unstyled(draw(trace, i, width=width)) for i in chunk])
            yield f"words-{number}-{start // _CHUNK}", _packed([describe_round(trace, i) for i in chunk])


def _packed(value: Any) -> str:
    """JSON, compressed, as text. The bytes depend on the value alone."""
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode("ascii")
