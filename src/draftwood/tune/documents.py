"""Result files: their JSON text, and the check that they can be written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from draftwood.core.errors import ConfigError


def text_of(document: dict[str, Any]) -> str:
    """JSON with one line per result: one line per number would be unreadable."""
    parts = []
    for name, value in document.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in value) + "\n]"
        parts.append(f"{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def check_writable(path: Path, option: str) -> None:
    """Refuse a file that cannot be written, before minutes of work.

    Raises:
        ConfigError: no such folder, or no permission.
    """
    if not path.parent.is_dir():
        raise ConfigError(f"output folder {path.parent} does not exist: create it first, or name another {option}")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"output {path} cannot be written: name another {option}")
