"""The JSON text of result files."""

from __future__ import annotations

import json
from typing import Any


def text_of(document: dict[str, Any]) -> str:
    """JSON with one line per result: one line per number would be unreadable."""
    parts = []
    for name, value in document.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in value) + "\n]"
        parts.append(f"{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
