"""Arguments of a call: where JSON ends, texts in tags or in quotes of a model's own, and calls in Python."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, final

from draftwood.core.detokenizer import overlap

HELD: Final = 512
"""Characters that may be held back before the arguments of a call: more blanks, or a longer head, are content."""
_JSON: Final = r'["{}\[\]]|\\.'  # what begins or ends a string, what nests, and what is escaped
_CLOSERS: Final = {"{": "}", "[": "]"}


def blanks(text: str, end: int) -> int:
    """Number of blanks before a place, as far as they may be held back."""
    before = text[max(0, end - HELD) : end]
    return len(before) - len(before.rstrip())


def begun(text: str, mark: str) -> int:
    """The length of the end of a text that may be the beginning of a mark, and of the blanks before it."""
    size = overlap(text, mark)
    return size + blanks(text, len(text) - size)


@final
@dataclass
class Input:
    """A text that is read from a place on, and the pieces that come after it."""

    text: str = ""
    place: int = 0
    last: bool = False
    pieces: list[str] = field(default_factory=list)


@final
class Nesting:
    """Finds where a JSON value ends in a text that grows, or arguments in tags. What closes nothing is passed over.

    Args:
        within: what closes the place, where it is within values.
        never: no value has this outside of its strings, nor an escape; empty for values that are read in any case. Where a
            second value begins in a string of the first one, the next such sign ends one of them: two are read at most.

    Attributes:
        size: characters that are read, up to the end.
        ends: whether the end is found; None before, and False if there is none.
    """

    def __init__(self, within: str = "", tags: Tags | None = None, never: str = "") -> None:
        self._closers, self._quotes, signs = list(within), tuple('"'), _JSON
        if tags is not None:
            self._closers, self._quotes, signs = [tags.end], tags.quotes, tags.signs
        self._never = never if self._quotes else ""
        self._signs = re.compile(f"{re.escape(self._never)}|{signs}" if self._never else signs, re.DOTALL)
        self._longest = max(2, *map(len, (*self._closers, *self._quotes, self._never)))
        self._quote, self._tail = "", ""  # within which the text is, and what may begin a sign
        self.size = 0
        self.ends: bool | None = None

    def read(self, text: str, at: int = 0) -> bool:
        """Read on from a place, as far as the end; returns whether it is known."""
        if self.ends is not None:
            return True
        new, place = self._tail + text[at:], 0
        self.size -= len(self._tail)
        while self.ends is None and (sign := self._signs.search(new, place)):
            place = self._take(sign)
        self._tail = "" if self.ends else new[max(place, len(new) - self._longest + 1) :]
        self.size += place if self.ends else len(new)
        return self.ends is not None

    def _take(self, sign: re.Match[str]) -> int:
        """Take a sign; returns where it ends."""
        text = sign[0]
        if self._quote:
            self._quote = "" if text == self._quote else self._quote
        elif self._never and (text == self._never or text[0] == "\\"):
            self.ends = False
        elif text[0] == "\\":  # which escapes nothing here
            return sign.start() + 1
        elif text in self._quotes:
            self._quote = text
        elif text in _CLOSERS:
            self._closers.append(_CLOSERS[text])
        elif self._closers and text == self._closers[-1]:
            self._closers.pop()
            self.ends = True if not self._closers else None
        return sign.end()


def is_object(arguments: str) -> bool:
    """Whether arguments are a JSON object that can be sent: no NaN, and no half of a surrogate pair."""
    try:
        found = json.loads(arguments)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict)


def calls_of(text: str, schemas: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Names and arguments of the calls in a JSON text; none if it is something else. Functions that need arguments are not
    called without any."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return []
    found = []
    for one in given if isinstance(given, list) else [given]:
        one = one["function"] if isinstance(one, dict) and one.get("type") == "function" and "function" in one else one
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            return []
        if (arguments := one.get("arguments", one.get("parameters"))) is None:
            if schemas.get(one["name"], {}).get("required"):
                return []
            arguments = {}
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        found.append((one["name"], written))
    return found


_WORDS: Final = {"True": True, "False": False, "None": None}


@final
@dataclass(frozen=True)
class Tags:
    """How arguments are written.

    Attributes:
        arguments_of: the arguments in a text, of the types of a function's schema; None if there is anything else in it.
        end: comes after the last one.
        quotes: are around texts, within which an end is none; with one of JSON a backslash escapes the next character.
    """

    arguments_of: Callable[[str, Mapping[str, Any]], dict[str, Any] | None]
    end: str
    quotes: tuple[str, ...] = ()

    @property
    def signs(self) -> str:
        """A regular expression of what ends arguments, or may hide their end."""
        escapes = [r"\\."] if '"' in self.quotes else []
        return "|".join([*map(re.escape, (self.end, *self.quotes)), *escapes])


def _of_tags(argument: re.Pattern[str], text: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments whose names and values a regular expression finds one after the other."""
    known, found, place = schema.get("properties") or {}, {}, 0
    while one := argument.match(text, place):
        found[one[1]], place = _value(one[2], known.get(one[1], {})), one.end()
    return None if text[place:].strip() else found


def _of_quotes(text: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """An object whose names have no quotes, and whose texts have those of Gemma 4; JSON is one too."""

    def as_json(found: re.Match[str]) -> str:
        word = found[0].strip()
        if found[1] is not None or not word or word[0] == '"':
            return word if found[1] is None else json.dumps(found[1])
        return json.dumps(word if text.startswith(":", found.end()) else _value(word, {"type": "number"}))

    try:
        given = json.loads(_WORD.sub(as_json, text))
    except (ValueError, RecursionError):
        return None
    return given if isinstance(given, dict) else None


def _of_python(text: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments by name of a call in Python, of which the last parenthesis is left out; JSON's words are values too."""
    try:
        call = ast.parse(f"f{text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(one.arg is None for one in call.keywords):
            return None
        found = {str(one.arg): ast.literal_eval(_Constants().visit(one.value)) for one in call.keywords}
        json.dumps(found)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return found


class _Constants(ast.NodeTransformer):
    """Makes the words of JSON those of Python."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(json.loads(node.id)) if node.id in ("true", "false", "null") else node


_WORD: Final = re.compile(r'<\|"\|>(.*?)<\|"\|>|"(?:[^"\\]|\\.)*+"?|[^{}\[\],:"<]+', re.DOTALL)
_QWEN: Final = re.compile(r"\s*+<parameter=([^>\s]++)>\n?(.*?)\n?</parameter>", re.DOTALL)
_GLM: Final = re.compile(r"\s*+<arg_key>((?>.*?(?=</arg_key>)))</arg_key>\s*+<arg_value>(.*?)</arg_value>", re.DOTALL)
QWEN: Final = Tags(partial(_of_tags, _QWEN), "</function>")
"""As Qwen3-Coder and Qwen3.5 write them."""
GLM: Final = Tags(partial(_of_tags, _GLM), "</tool_call>")
"""As GLM 4.5 and later ones write them."""
GEMMA: Final = Tags(_of_quotes, "<tool_call|>", ('<|"|>',))
"""As Gemma 4 writes them."""
PYTHON: Final = Tags(_of_python, ")", ('"', "'"))
"""As LFM2 writes them."""


def _value(text: str, schema: Any) -> Any:
    """A text where the schema allows one, else the JSON that it is; what is none stays a text."""
    kinds = _kinds(schema)
    if "string" in kinds:
        return None if text == "null" and "null" in kinds else text
    try:
        found = _WORDS[text] if text in _WORDS else json.loads(text)
    except (ValueError, RecursionError):
        return text
    return found if kinds or isinstance(found, dict | list) else text


def _kinds(schema: Any) -> set[str]:
    if not isinstance(schema, Mapping):
        return set()
    kind = schema.get("type", ())
    parts = [part for name in ("anyOf", "oneOf") for part in schema.get(name) or ()]
    return {*([kind] if isinstance(kind, str) else kind), *(kind for part in parts for kind in _kinds(part))}
