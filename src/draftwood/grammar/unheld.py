"""What of a JSON schema no grammar holds, and may be left out: unknown formats, and patterns that look around."""

from __future__ import annotations

import re
from typing import Any, Final

from draftwood.core.checks import short_repr

FORMATS: Final = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
"""Those that a grammar holds. Other formats are annotations, as JSON Schema has it."""
_ONE: Final = frozenset(  # keywords whose value is a schema
    {"items", "additionalItems", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
_MANY: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_PARTS: Final = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<around>\(\?<?[=!]|\\[bBk1-9])|\\.|.", re.DOTALL)


def without_unheld(schema: Any, left: list[str], *, patterns: bool = True, at: str = "") -> Any:
    """A schema without what no grammar holds.

    Args:
        schema: decoded JSON.
        left: takes a line for each keyword that was left out.
        patterns: leave out patterns with look-around or back-references too, not only unknown formats.
        at: where the schema stands in a larger one.
    """
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for name, value in schema.items():
        path = f"{at}.{name}".lstrip(".")
        if name == "format" and _unknown(value, schema.get("type", "string")):
            left.append(f"{path} is {short_repr(value)}, a format that no grammar holds")
        elif patterns and name == "pattern" and _looks_around(value):
            left.append(f"{path} is {short_repr(value)}, and no grammar holds look-around and back-references")
        elif name in _NAMED and isinstance(value, dict):
            found[name] = {}
            for key, inner in value.items():
                if patterns and name == "patternProperties" and _looks_around(key):
                    left.append(f"{path} has {short_repr(key)}, and no grammar holds look-around and back-references")
                else:
                    found[name][key] = without_unheld(inner, left, patterns=patterns, at=f"{path}.{key}")
        elif name in _MANY and isinstance(value, list):
            found[name] = [without_unheld(inner, left, patterns=patterns, at=f"{path}.{i}") for i, inner in enumerate(value)]
        else:
            found[name] = without_unheld(value, left, patterns=patterns, at=path) if name in _ONE else value
    return found


def _unknown(value: Any, types: Any) -> bool:
    """Whether a format is unknown and stands where texts may be; that of a number says nothing to a grammar."""
    texts = "string" in (types if isinstance(types, list) else [types])
    return isinstance(value, str) and value not in FORMATS and texts


def _looks_around(pattern: Any) -> bool:
    return isinstance(pattern, str) and any(part["around"] for part in _PARTS.finditer(pattern))
