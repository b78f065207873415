"""Text files of documents and of lines, for training and for benchmarks."""

from __future__ import annotations

import lzma
import re
from pathlib import Path

from draftwood.core.errors import ConfigError

SEPARATOR = "<|endoftext|>"


def read_documents(path: Path) -> list[str]:
    """Documents of one text file, plain or xz-compressed, separated by lines ``<|endoftext|>``.

    Raises:
        ConfigError: the file holds no text, is not UTF-8, or is a damaged xz file.
    """
    text = _text(path)
    found = [d.strip("\n") for d in re.split(rf"(?m)^{re.escape(SEPARATOR)}$", text) if d.strip()]
    if not found:
        raise ConfigError(f"{path} holds no text")
    return found


def read_lines(path: Path) -> list[str]:
    """Lines of one text file, plain or xz-compressed, without their ends and without surrounding blanks.

    Raises:
        ConfigError: the file holds no text, is not UTF-8, is a damaged xz file, or has an empty line (named by its number).
    """
    lines = [line.strip() for line in _text(path).removesuffix("\n").split("\n")]
    if not any(lines):
        raise ConfigError(f"{path} holds no text")
    if "" in lines:
        raise ConfigError(f"line {lines.index('') + 1} of {path} is empty; leave it out")
    return lines


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode("utf-8").replace("\r\n", "\n")
    except (lzma.LZMAError, EOFError) as error:
        raise ConfigError(
            f"{path} is not a complete xz file ({error}): copy it again, or unpack it and remove .xz from its name"
        ) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"line {line} of {path} is not UTF-8 text: convert the file, for example with iconv") from error
