"""Arguments of a call that stand in tags, each as a text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, final

_WORDS: Final = {"True": True, "False": False, "None": None}


@final
@dataclass(frozen=True)
class Tags:
    """How arguments are written.

    Attributes:
        argument: a regular expression of one: its name and its value.
        end: comes after the last one.
    """

    argument: re.Pattern[str]
    end: str

    def arguments_of(self, text: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
        """The arguments in a text, of the types of a function's schema; None if there is anything else in it."""
        if self.argument.sub("", text).strip():
            return None
        known = schema.get("properties") or {}
        return {name: _value(written, known.get(name, {})) for name, written in self.argument.findall(text)}


QWEN: Final = Tags(re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL), "</function>")
"""As Qwen3-Coder and Qwen3.5 write them."""
GLM: Final = Tags(re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL), "</tool_call>")
"""As GLM 4.5 and later ones write them."""


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
    """The types that a schema names."""
    if not isinstance(schema, Mapping):
        return set()
    kind = schema.get("type", ())
    parts = [part for name in ("anyOf", "oneOf") for part in schema.get(name) or ()]
    return {*([kind] if isinstance(kind, str) else kind), *(kind for part in parts for kind in _kinds(part))}
