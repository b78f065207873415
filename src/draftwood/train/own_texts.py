"""A user's own texts as training data: files of plain text, and chats and texts as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from draftwood.core.errors import ConfigError
from draftwood.train.chat_files import Chat

LONGEST: Final = 384
"""Tokens of an example, at most."""
_WANTED = 'a JSON object with "messages", or with "text", in each line'
Text: TypeAlias = str | list[dict[str, Any]]
"""A plain text, or the messages of a chat."""


def read_texts(paths: Sequence[Path]) -> list[Text]:
    """The texts of files, and of all files of folders: of ``.jsonl`` one a line, of ``.json`` one, else the file as it is.

    Files and folders in a folder whose names begin with a dot, and files that hold no UTF-8 text, are left out.

    Raises:
        ConfigError: no such file, a named one that is no text, JSON of another form, or no text at all.
    """
    texts: list[Text] = []
    for path in paths:
        for file in files_of(path):
            try:
                content = file.read_bytes().decode("utf-8-sig")
            except OSError as error:
                raise ConfigError(f"texts {file} cannot be read: {error.strerror}") from error
            except UnicodeDecodeError:
                if path.is_dir():
                    continue
                raise ConfigError(f"texts {file} is no text in UTF-8: give plain text, or {_WANTED}") from None
            texts += _texts_of(file, content)
    texts = [text for text in texts if text]
    if not texts:
        raise ConfigError(f"no text in {', '.join(map(str, paths)) or 'nothing'}: give files or folders of texts")
    return texts


def files_of(path: Path) -> list[Path]:
    """The files that are read of a folder; of another path itself. Raises a ConfigError if there is none."""
    if not path.exists():
        raise ConfigError(f"texts {path} does not exist: give files or folders of texts")
    if not path.is_dir():
        return [path]
    shown = (one for one in path.rglob("*") if not any(part[0] == "." for part in one.relative_to(path).parts))
    return sorted(one for one in shown if one.is_file())


def state_of(paths: Sequence[Path]) -> str:
    """A digest of the names, sizes and times of the files. Raises a ConfigError if there are none."""
    stats = {file.absolute(): file.stat() for path in paths for file in files_of(path)}
    if not stats:
        raise ConfigError(f"no text in {', '.join(map(str, paths))}: give files or folders of texts")
    found = [(bytes(file), one.st_size, one.st_mtime_ns) for file, one in stats.items()]
    return hashlib.sha256(repr(found).encode()).hexdigest()


def state_file(kept: Path) -> Path:
    """Where the state of the texts is that were last learnt, whether the drafter was kept or not."""
    return kept.with_name(f"{kept.name}.texts")


def _texts_of(file: Path, content: str) -> Iterator[Text]:
    lines = {".jsonl": content.split("\n"), ".json": [content]}.get(file.suffix.lower())
    if lines is None:
        yield content.strip()
        return
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            json.dumps(found, ensure_ascii=False).encode()  # raises for halves of characters
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"line {number} of {file} is not JSON ({error}): give {_WANTED}") from error
        messages = found.get("messages") if isinstance(found, Mapping) else None
        if isinstance(messages, list) and all(isinstance(one, dict) and "role" in one for one in messages):
            yield messages
        elif isinstance(found, Mapping) and isinstance(found.get("text"), str):
            yield found["text"].strip()
        else:
            raise ConfigError(f"line {number} of {file} holds neither messages nor a text: give {_WANTED}")


def examples(text: Text, tokenizer: Any) -> Iterator[Chat]:
    """Pieces of a text of at most 384 tokens; of a chat one for each answer, with what comes before it."""
    if isinstance(text, str):
        ids = tokenizer(text)["input_ids"]
        for begin in range(0, len(ids), LONGEST):
            piece = ids[begin : begin + LONGEST]
            yield Chat(piece, [True] * len(piece))
        return
    for at, message in enumerate(text):
        if at and message["role"] == "assistant":
            prompt = _rendered(tokenizer, text[:at], True)
            whole = _rendered(tokenizer, text[: at + 1], False)
            answered = [False] * len(prompt) + [True] * (len(whole) - len(prompt))
            if whole[: len(prompt)] == prompt:  # else the template rewrites what came before
                yield Chat(whole[-LONGEST:], answered[-LONGEST:])


def _rendered(tokenizer: Any, messages: list[dict[str, Any]], generation: bool) -> list[int]:
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation)
    except Exception as error:  # of any template
        raise ConfigError(
            f"the target's chat template cannot write a chat of the texts ({error}): give each message a text as content"
        ) from error
    found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return found
