"""Texts of tokens and numbers as figures and pages show them: visible, never interpreted, of known width."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

from rich.cells import cell_len, set_cell_size

from draftwood.trace.records import Trace

MONO: Final = 0.605  # advance of a cell of a fixed-width font, in font sizes; DejaVu Sans Mono is the widest common one
_MARKS: Final = {" ": "␣", "\n": "↵", "\t": "⇥"}
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
# Advances of DejaVu Sans Bold from U+0020 to U+007E, in hundredths of the font size: other sans-serif fonts are narrower.
_BOLD: Final = (
    35, 46, 52, 84, 70, 100, 87, 31, 46, 46, 52, 84, 38, 42, 38, 37, 70, 70, 70, 70, 70, 70, 70, 70, 70, 70, 40, 40, 84,
    84, 84, 58, 100, 77, 76, 73, 83, 68, 68, 82, 84, 37, 37, 77, 64, 100, 84, 85, 73, 85, 77, 72, 68, 81, 77, 110, 77, 72,
    73, 46, 37, 46, 84, 50, 50, 67, 72, 59, 72, 68, 44, 72, 71, 34, 34, 67, 34, 104, 71, 69, 72, 72, 49, 60, 48, 71, 65,
    92, 65, 65, 58, 71, 37, 71, 84,
)  # fmt: skip
_known = lru_cache(maxsize=4096)  # figures repeat their texts at three widths and in every round
_SIGNS: Final = "␣↵⇥…\u2032\u2033\u2034✓✗⟨⟩\u2039\u203a→·≥≤"
_SEEN: Final = re.compile(f"[ -~¡-¬®-ɏ{_SIGNS}]*").fullmatch  # without controls, the blank U+00A0 and the soft hyphen U+00AD
_PARTS: Final = re.compile("<[0-9A-F]{2}(␣[0-9A-F]{2})+>")  # of characters: bytes, as in <F0 9F>
_MAX_MARKS: Final = 2  # combining marks in a row that are drawn as such: more would reach into other lines


@_known
def visible(text: str, *, spaces: bool = True) -> str:
    """``text`` in one line, with a sign for every character that would not be seen or would move others.

    Args:
        text: any text: HTML, control characters, bidi controls and lone surrogates included.
        spaces: show blanks as ``␣``; else they stay as they are.
    """
    if _SEEN(text):
        return text.replace(" ", "␣") if spaces else text
    out, marks = [], 0
    for char in text:
        category = unicodedata.category(char)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if char in _MARKS:
            out.append(char if char == " " and not spaces else _MARKS[char])
        elif category in _HIDDEN or marks > _MAX_MARKS or (marks and not out):
            out.append(f"⟨U+{ord(char):04X}⟩")
        else:
            out.append(char)
    return "".join(out)


def title_of(trace: Trace) -> str:
    """The method and the verifier of a run."""
    method = f"{trace.method} {trace.shape}" if trace.shape else trace.method
    return visible(f"{method}, {trace.verifier} verifier", spaces=False)


def run_of(name: str, trace: Trace) -> list[str]:
    """The forwards and the tokens of a run, and its time: the two parts of a line."""
    tokens, last = sum(len(made.tokens) for made in trace.rounds), trace.rounds[-1].end
    return [f"{name}: {len(trace.rounds)} forwards, {tokens} tokens,", f"{last * 1000:.0f} ms, {tokens / last:.0f} tokens/s"]


def token_text(trace: Trace, token: int) -> str:
    """The visible text of a token; its id in angle quotes where it has none. Blanks between bytes stay."""
    text = visible(trace.texts.get(token, ""))
    return _PARTS.sub(lambda part: part[0].replace("␣", " "), text) or f"\u2039{token}\u203a"


@_known
def is_plain(text: str) -> bool:
    """Whether the width of the text is known in all fonts; else figures force it."""
    return _SEEN(text) is not None


@_known
def mono_width(text: str, size: float) -> float:
    """The width of a text in a fixed-width font, in the unit of ``size``; wide characters have two cells."""
    return cell_len(text) * MONO * size


@_known
def sans_width(text: str, size: float) -> float:
    """An upper bound of the width of a text in a sans-serif font, bold or not."""
    return sum(_BOLD[ord(char) - 32] if " " <= char <= "~" else 100 for char in text) * size / 100


def shorten(text: str, width: float, size: float) -> str:
    """The text, cut with ``…`` where it is wider than ``width`` in a fixed-width font."""
    return cut(text, int(width / (MONO * size) + 1e-6))


@_known
def cut(text: str, cells: int) -> str:
    """The text, cut with ``…`` where it needs more cells."""
    return text if cell_len(text) <= cells else set_cell_size(text, max(0, cells - 1)).rstrip() + "…"


def number(value: float) -> str:
    """A probability or chance in at most five characters."""
    if value >= 0.0995:
        return f"{value:.2f}"
    if value >= 0.00095:
        return f"{value:.3f}"
    return "0" if value == 0 else "<.001"
