"""What is continued: a file of prompts, or the built-in ones; and pieces of held-out texts."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import final

from benchmarks.config import BenchConfig
from draftwood.core.errors import ConfigError
from draftwood.tune.prompts import BUILT_IN

Encode = Callable[[str], list[int]]
_CHARACTERS_PER_TOKEN = 40  # more than any token has on average: only the beginning of a document is encoded


@final
@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Token ids to continue, and where they come from."""

    source: str
    tokens: tuple[int, ...]


def read_prompts(config: BenchConfig, encode: Encode, longest: int | None) -> list[Prompt]:
    """The prompts of a run, the sources in turn, so that an interrupted run has seen all of them.

    Args:
        encode: token ids of a text.
        longest: the models' context in tokens; prompt and continuation have to fit.

    Raises:
        ConfigError: a file that cannot be read, or a prompt that leaves no room for the continuation.
    """
    texts = _first_messages(config.prompts) if config.prompts is not None else BUILT_IN
    chosen = [
        [Prompt(source=source, tokens=tuple(encode(text))) for text in some[: config.prompts_per_source]]
        for source, some in texts.items()
    ]
    prompts = [p for p in chain.from_iterable(zip_longest(*chosen)) if p is not None]
    for prompt in prompts:
        _check_room(prompt, config.max_new_tokens, longest)
    return prompts


def pieces_of_length(folder: Path, count: int, length: int, encode: Encode) -> list[Prompt]:
    """Pieces of exactly so many tokens, ``count`` of each source.

    Raises:
        ConfigError: a source that is too short.
    """
    prompts = []
    for path in _files(folder):
        name, whole = path.name.split(".val.txt")[0], _text(path)
        for part in range(count):
            start = whole.find("\n", part * len(whole) // count) + 1 if part else 0
            tokens = encode(whole[start : start + length * _CHARACTERS_PER_TOKEN])[:length]
            if len(tokens) < length:
                raise ConfigError(
                    f"{path} holds no {count} pieces of {length} tokens (piece {part + 1} has {len(tokens)}): lower "
                    "--tokens or --pieces, or give longer texts"
                )
            prompts.append(Prompt(source=name, tokens=tuple(tokens)))
    return prompts


def _check_room(prompt: Prompt, new: int, longest: int | None) -> None:
    length = len(prompt.tokens)
    if longest is not None and length + new > longest:
        raise ConfigError(
            f"a prompt of {prompt.source!r} has {length} tokens and {new} new ones do not fit the models' context of "
            f"{longest}: lower --max-new-tokens, or shorten the prompt"
        )


def _files(folder: Path) -> list[Path]:
    paths = sorted([*folder.glob("*.val.txt"), *folder.glob("*.val.txt.xz")])
    if not paths:
        raise ConfigError(f"data folder {folder} holds no NAME.val.txt or NAME.val.txt.xz: give one that does")
    return paths


def _text(path: Path) -> str:
    """The documents of a file, which are separated by lines ``<|endoftext|>``."""
    raw = path.read_bytes()
    text = (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode("utf-8")
    return text.replace("\n<|endoftext|>\n", "\n\n")


def _first_messages(path: Path) -> Mapping[str, Sequence[str]]:
    """The first message of every entry of a file, or of all ``.jsonl`` files in a folder, by source. Entries may also have
    the fields of Spec-Bench or GSM8K.

    Raises:
        ConfigError: a file that cannot be read, or a folder without files.
    """
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise ConfigError(f"prompts folder {path} holds no .jsonl file: give a folder that does, or a file of prompts")
    found: dict[str, list[str]] = {}
    for file in files:
        for source, message in _entries(file):
            found.setdefault(source, []).append(message)
    return found


def _entries(path: Path) -> list[tuple[str, str]]:
    """Source and first message of every line of a file."""
    if not path.is_file():
        raise ConfigError(f"prompts file {path} does not exist: give JSON lines with 'prompt' and, if wanted, 'source'")
    found: list[tuple[str, str]] = []
    for number, line in _lines(path.read_text(encoding="utf-8").splitlines()):
        try:
            entry = json.loads(line)
            message = entry["turns"][0] if "turns" in entry else entry.get("question", entry.get("prompt"))
            source = str(entry.get("source", entry.get("category", path.stem)))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            message, source = None, ""
        if not isinstance(message, str) or not message:
            raise ConfigError(f'line {number} of {path} should read {{"prompt": "some text", "source": "a name"}}')
        found.append((source, message))
    if not found:
        raise ConfigError(f"prompts file {path} holds no prompt")
    return found


def _lines(lines: Iterable[str]) -> Iterable[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
