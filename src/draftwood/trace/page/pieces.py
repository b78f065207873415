"""Which parts of a round's text were drafted."""

from __future__ import annotations

from typing import TypeAlias

from draftwood.trace.labels import visible
from draftwood.trace.records import Trace, TracedRound

Piece: TypeAlias = tuple[str, bool | None]  # text; whether it was drafted, None where that cannot be said


def pieces_of(trace: Trace, made: TracedRound) -> list[Piece]:
    """The text of a round in parts, in order; joined they are the round's text.

    The text of a token alone may differ from its part of the streamed text: tokenizers drop blanks, and a character may
    need several tokens. Where tokens cannot be found in the text, the text is one part.
    """
    found: list[Piece] = []
    start = 0
    for place, token in enumerate(made.tokens):
        word = trace.texts.get(token, "")
        at = made.text.find(word, start) if word else start
        if at < 0 or made.text[start:at].strip():
            return [(made.text, None)]
        found.append((made.text[start : at + len(word)], place < len(made.path)))
        start = at + len(word)
    return found if start == len(made.text) else [(made.text, None)]


def shown(text: str) -> str:
    """A text in which line breaks stay, and controls and bidi controls are visible."""
    lines = [visible(line, spaces=False) for line in text.replace("\r\n", "\n").split("\n")]
    return "↵\n".join(lines)
