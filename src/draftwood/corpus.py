"""Text files of documents, for training and for benchmarks."""

from __future__ import annotations

import lzma
import re
from pathlib import Path

from draftwood.errors import ConfigError

SEPARATOR = "<|endoftext|>"


def read_documents(path: Path) -> list[str]:
    """Documents of one text file, plain or xz-compressed, separated by lines ``<|endoftext|>``.

    Raises:
        ConfigError: a file without text.
    """
    text = _text(path)
    found = [d.strip("\n") for d in re.split(rf"(?m)^{re.escape(SEPARATOR)}$", text) if d.strip()]
    if not found:
        raise ConfigError(f"{path} holds no text")
    return found


def read_lines(path: Path) -> list[str]:
    """Lines of one text file, plain or xz-compressed, without their ends and without surrounding blanks.

    Raises:
        ConfigError: a file without text, or an empty line, by its number.
    """
    lines = [line.strip() for line in _text(path).removesuffix("\n").split("\n")]
    if not any(lines):
        raise ConfigError(f"{path} holds no text")
    if "" in lines:
        raise ConfigError(f"line {lines.index('') + 1} of {path} is empty; leave it out here and in the other language")
    return lines


def _text(path: Path) -> str:
    raw = path.read_bytes()
    return (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode("utf-8").replace("\r\n", "\n")
