"""Text files of documents and of sentence pairs, for training and for benchmarks."""

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
        raise ConfigError(f"line {lines.index('') + 1} of {path} is empty; leave it out here and in the other language")
    return lines


def files_of(folder: Path, part: str, kind: str) -> dict[str, Path]:
    """The files ``NAME.PART.KIND`` of a data folder by their NAME, sorted; a plain one comes before a packed ``.xz``."""
    if not folder.is_dir():
        raise ConfigError(f"data folder {folder} does not exist; give one with NAME.{part}.{kind}[.xz]")
    ends = (f".{part}.{kind}.xz", f".{part}.{kind}")
    return dict(sorted({path.name.removesuffix(end): path for end in ends for path in folder.glob(f"*{end}")}.items()))


def read_sentence_pairs(folder: Path, part: str, languages: tuple[str, str]) -> tuple[list[str], list[str]]:
    """Source and target sentences of one part of every NAME in a data folder.

    The folder holds ``NAME.PART.LANGUAGE`` (or ``.xz``) for two languages. One file translates the other, line by line.

    Raises:
        ConfigError: no folder, a missing file, a file that :func:`read_lines` refuses, or files with different numbers of
            lines.
    """
    files = [files_of(folder, part, language) for language in languages]
    if languages[0] == languages[1]:
        raise ConfigError(f"source and target language are both {languages[0]!r}; give two languages")
    sides: tuple[list[str], list[str]] = ([], [])
    for name in sorted({name for found in files for name in found}) or ["NAME"]:
        for language, found in zip(languages, files, strict=True):
            if name not in found:
                raise ConfigError(f"data folder {folder} holds no {name}.{part}.{language} or {name}.{part}.{language}.xz")
        read = [read_lines(found[name]) for found in files]
        if len(read[0]) != len(read[1]):
            counts = " and ".join(f"{len(r)} lines in {lang}" for r, lang in zip(read, languages, strict=True))
            raise ConfigError(f"{name}.{part} has {counts}; give files that translate each other line by line")
        for side, lines in zip(sides, read, strict=True):
            side += lines
    return sides


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
