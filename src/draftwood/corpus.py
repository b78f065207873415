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
    raw = path.read_bytes()
    text = (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode("utf-8").replace("\r\n", "\n")
    found = [d.strip("\n") for d in re.split(rf"(?m)^{re.escape(SEPARATOR)}$", text) if d.strip()]
    if not found:
        raise ConfigError(f"{path} holds no text")
    return found
