"""Where a JSON value ends."""

from __future__ import annotations

import re
from typing import Final, final

_QUOTE: Final = re.compile(r'["{}\[\]]')  # what begins a string, and what nests
_STRING: Final = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)


@final
class Nesting:
    """Finds where a JSON value ends in a text that grows. What closes nothing is passed over."""

    def __init__(self, within: str = "") -> None:
        self._closers, self._quoted, self._escaped = list(within), False, False

    def end(self, text: str, at: int = 0) -> int | None:
        """Read on from a place; returns where the value ends, or what closes the place, or None at the end of the text."""
        while at < len(text):
            if self._escaped:
                self._escaped, at = False, at + 1
            elif self._quoted:
                at = _STRING.match(text, at).end() + 1  # type: ignore[union-attr]  # it matches nothing too
                self._escaped = text[at - 1 : at] == "\\"
                self._quoted = text[at - 1 : at] != '"'
            elif (sign := _QUOTE.search(text, at)) is None:
                return None
            else:
                at = sign.end()
                self._quoted = sign[0] == '"'
                if sign[0] in "{[":
                    self._closers.append("}" if sign[0] == "{" else "]")
                elif self._closers and sign[0] == self._closers[-1]:
                    self._closers.pop()
                    if not self._closers:
                        return at
        return None
