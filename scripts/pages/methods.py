"""The tables of docs/methods.md, from the registries. ``python -m scripts.pages`` writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from draftwood import METHODS, VERIFIERS

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
_BLOCK = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_NEEDS = {"nothing": "-", "draft": "any", "block": "one that scores blocks"}


def current() -> str:
    """The page as it should be: the text as it is, the tables from the registries."""
    made = {"methods": _methods, "verifiers": _verifiers}
    page = PAGE.read_text(encoding="utf-8")
    return _BLOCK.sub(lambda found: found[1] + "\n".join(made[found[2]]()) + "\n" + found[3], page)


def _methods() -> Iterator[str]:
    yield from _row("method", "what it drafts", "draft model", "shape", "default", "options", "exact verifiers", "source")
    yield from _row(*["---"] * 8)
    for spec in METHODS.values():
        shapes = ", ".join(f"`{example}` ({kind.wanted})" for kind, example in spec.shapes.items()) or "-"
        options = "`--nodes`" if spec.takes_nodes else "-"
        verifiers = [f"**{name}**" if name == spec.verifier else name for name in spec.verifiers]
        yield from _row(
            f"`{spec.name}`", spec.summary, _NEEDS[spec.needs], shapes, spec.size, options, ", ".join(verifiers), spec.source
        )


def _verifiers() -> Iterator[str]:
    yield from _row("verifier", "what it does", "exact for", "temperature", "same text as plain decoding", "source")
    yield from _row(*["---"] * 6)
    for spec in VERIFIERS.values():
        fitting = [method.name for method in METHODS.values() if spec.name in method.verifiers]
        exact = "all methods" if len(fitting) == len(METHODS) else ", ".join(fitting) or "-"
        same = "yes" if spec.reads == "argmax" else "-"
        yield from _row(f"`{spec.name}`", spec.summary, exact, "0" if spec.greedy_only else "any", same, spec.source)


def _row(*cells: str) -> Sequence[str]:
    return ["| " + " | ".join(cells) + " |"]
