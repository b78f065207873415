"""Arguments of a call: where JSON ends, texts in tags or in quotes of a model's own, and calls in Python."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, final

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


_WORDS: Final = {"True": True, "False": False, "None": None}


@final
@dataclass(frozen=True)
class Tags:
    """How arguments are written.

    Attributes:
        arguments_of: the arguments in a text, of the types of a function's schema; None if there is anything else in it.
        end: comes after the last one.
        quote: is around texts, within which an end is none.
        within: matches arguments up to their end, where texts have quotes of several kinds.
    """

    arguments_of: Callable[[str, Mapping[str, Any]], dict[str, Any] | None]
    end: str
    quote: str = ""
    within: re.Pattern[str] | None = None

    def end_in(self, text: str, at: int) -> int:
        """The place of the end of the arguments that begin at a place; negative if there is none yet."""
        if self.within is not None:
            inner = self.within.match(text, at)
            return inner.end() if inner is not None and text.startswith(self.end, inner.end()) else -1
        end = text.find(self.end, at)
        while self.quote and end >= 0 and text.count(self.quote, at, end) % 2:
            end = text.find(self.end, end + 1)
        return end


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


_PYTHON: Final = re.compile(r"""\((?:[^)"']|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')*""", re.DOTALL)
_WORD: Final = re.compile(r'<\|"\|>(.*?)<\|"\|>|"(?:[^"\\]|\\.)*"|[^{}\[\],:"<]+', re.DOTALL)
_QWEN: Final = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_GLM: Final = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
QWEN: Final = Tags(partial(_of_tags, _QWEN), "</function>")
"""As Qwen3-Coder and Qwen3.5 write them."""
GLM: Final = Tags(partial(_of_tags, _GLM), "</tool_call>")
"""As GLM 4.5 and later ones write them."""
GEMMA: Final = Tags(_of_quotes, "<tool_call|>", '<|"|>')
"""As Gemma 4 writes them."""
PYTHON: Final = Tags(_of_python, ")", within=_PYTHON)
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
