"""Arguments of a call: where JSON ends, texts in tags or in quotes of a model's own, and calls in Python."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, final

_JSON: Final = re.compile(r'["{}\[\]]|\\.', re.DOTALL)  # what begins or ends a string, what nests, and what is escaped
_CLOSERS: Final = {"{": "}", "[": "]"}


@final
class Nesting:
    """Finds where a JSON value ends in a text that grows, or arguments in tags. What closes nothing is passed over.

    Args:
        within: what closes the place, where it is within values.
    """

    def __init__(self, within: str = "", tags: Tags | None = None) -> None:
        self._closers, self._signs, self._quotes = list(within), _JSON, tuple('"')
        if tags is not None:
            self._closers, self._signs, self._quotes = [tags.end], tags.signs, tags.quotes
        self._longest = max(2, *map(len, self._closers), *map(len, self._quotes))
        self._quote, self._tail = "", ""  # within which the text is, and what may begin a sign

    def end(self, text: str, at: int = 0) -> int | None:
        """Read on from a place; returns where the value ends, or what closes the place, or None at the end of the text."""
        new, place = self._tail + text[at:], 0
        while sign := self._signs.search(new, place):
            place = sign.end()
            if self._quote:
                self._quote = "" if sign[0] == self._quote else self._quote
            elif sign[0][0] == "\\":  # which escapes nothing here
                place = sign.start() + 1
            elif sign[0] in self._quotes:
                self._quote = sign[0]
            elif sign[0] in _CLOSERS:
                self._closers.append(_CLOSERS[sign[0]])
            elif self._closers and sign[0] == self._closers[-1]:
                self._closers.pop()
                if not self._closers:
                    return at + place - len(self._tail)
        self._tail = new[max(place, len(new) - self._longest + 1) :]
        return None


def is_object(arguments: str) -> bool:
    """Whether arguments are a JSON object that can be sent: no NaN, and no half of a surrogate pair."""
    try:
        found = json.loads(arguments)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict)


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

    @cached_property
    def signs(self) -> re.Pattern[str]:
        """What ends arguments, or may hide their end."""
        escapes = [r"\\."] if '"' in self.quotes else []
        return re.compile("|".join([*map(re.escape, (self.end, *self.quotes)), *escapes]), re.DOTALL)


def _of_tags(argument: re.Pattern[str], text: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments whose names and values a regular expression finds."""
    if argument.sub("", text).strip():
        return None
    known = schema.get("properties") or {}
    return {name: _value(written, known.get(name, {})) for name, written in argument.findall(text)}


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


_WORD: Final = re.compile(r'<\|"\|>(.*?)<\|"\|>|"(?:[^"\\]|\\.)*"|[^{}\[\],:"<]+', re.DOTALL)
_QWEN: Final = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_GLM: Final = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
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
