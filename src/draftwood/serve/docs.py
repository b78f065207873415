"""The page at ``/docs``: the OpenAPI document as tables, without scripts and other hosts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Of the page, for the header ``Content-Security-Policy``."""
_STYLE: Final = (
    "body{font:16px/1.5 system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse;width:100%}td{border-top:1px solid #8886;padding:.2rem .5rem;overflow-wrap:anywhere}"
)


def page(document: Mapping[str, Any]) -> str:
    """The page of an OpenAPI document."""
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Draftwood</title><style>{_STYLE}</style>'
    intro = "<h1>Draftwood</h1><p>All routes and their fields, as in <a href='/openapi.json'>openapi.json</a>.</p>"
    return "".join([head, intro, *_routes(document)])


def _routes(document: Mapping[str, Any]) -> Iterator[str]:
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            yield f"<h2>{method.upper()} {escape(path)}</h2><p>{escape(route['summary'])}</p>"
            if (body := route.get("requestBody")) is not None:
                name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
                yield from _fields(document["components"]["schemas"][name])


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    needed = schema.get("required", ())
    yield "<table>"
    for name, field in schema["properties"].items():
        cells = f"<code>{escape(name)}</code>", "needed" if name in needed else "", escape(_kind(field))
        yield "<tr>" + "".join(f"<td>{cell}" for cell in (*cells, escape(field.get("description", ""))))
    yield "</table>"


def _kind(field: Mapping[str, Any]) -> str:
    """A field's values in words."""
    if "anyOf" in field:
        return " or ".join(kind for one in field["anyOf"] if (kind := _kind(one)) != "null")
    if "enum" in field:
        return ", ".join(map(json.dumps, field["enum"]))
    if "$ref" in field:
        return str(field["$ref"].rpartition("/")[2])
    kind = f"list of {_kind(field['items'])}" if field.get("items") else str(field.get("type", "any value"))
    limits = {"minimum": "from", "maximum": "to", "exclusiveMinimum": "above"}
    return " ".join([kind, *(f"{word} {field[name]}" for name, word in limits.items() if name in field)])
