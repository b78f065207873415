"""Arguments of a call that stand in tags, each as a text, as Qwen3-Coder and Qwen3.5 write them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

END: Final = "</function>"
"""Comes after the last argument."""
_ARGUMENT: Final = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_WORDS: Final = {"True": True, "False": False, "None": None}


def arguments_of(text: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments in a text, of the types of a function's schema; None if there is anything else in it."""
    if _ARGUMENT.sub("", text).strip():
        return None
    known = schema.get("properties") or {}
    return {name: _value(written, known.get(name, {})) for name, written in _ARGUMENT.findall(text)}


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
