"""User turns of chats, and beginnings of texts, made from training text."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

from draftwood.core.errors import ConfigError
from draftwood.train.corpus import read_documents, read_lines

_WORDS = (30, 450)  # words of a passage, all magnitudes equally likely
_STARTS = 20_000  # most documents that are begun
_START = 16  # most tokens of a beginning
_TASKS = (
    "Summarize the following text in two sentences.\n\n{}",
    "Continue this story.\n\n{}",
    "What is the main idea of this passage?\n\n{}",
    "Write a question about the following text and answer it.\n\n{}",
    "Rewrite the following text in simpler words.\n\n{}",
    "Who are the characters in this text, and what do they do?\n\n{}",
    "{}\n\nWhat happens next?",
    "List the key facts in the text below.\n\n{}",
)


def text_turns(folder: Path, count: int, seed: int) -> list[str]:
    """User turns from the training text of a data folder: tasks on passages, questions, sentences to translate.

    Raises:
        ConfigError: the folder holds no ``NAME.train.txt`` or ``NAME.train.de``, with or without ``.xz``.
    """
    rng = random.Random(seed)
    files, turns = _files(folder, "txt", "de"), []
    for path in files:
        german = ".train.de" in path.name
        texts = read_lines(path) if german else read_documents(path)
        turns += [_turn(rng, rng.choice(texts), german) for _ in range(count // len(files))]
    rng.shuffle(turns)
    return turns


def text_starts(folder: Path, tokenizer: Any, seed: int) -> list[list[int]]:
    """The first tokens of documents in the training text of a data folder: a random number of them, from none to 16.

    Raises:
        ConfigError: the folder holds no ``NAME.train.txt``, with or without ``.xz``.
    """
    rng = random.Random(seed)
    documents = [text for path in _files(folder, "txt") for text in read_documents(path)]
    chosen = rng.sample(documents, min(len(documents), _STARTS))
    begun = [text[: 16 * _START] for text in chosen]  # 16 characters per token are more than enough
    return [ids[: rng.randint(0, _START)] for ids in tokenizer(begun, add_special_tokens=False)["input_ids"]]


def _files(folder: Path, *kinds: str) -> list[Path]:
    files = sorted(path for kind in kinds for path in folder.rglob(f"*.train.{kind}*"))
    if not files:
        wanted = " or ".join(f"NAME.train.{kind}" for kind in kinds)
        raise ConfigError(f"data folder {folder} holds no {wanted}, with or without .xz")
    return files


def _turn(rng: random.Random, text: str, german: bool) -> str:
    if german:
        return f"Translate German to English: {text}"
    if text.startswith("Question:"):
        return text.removeprefix("Question:").split("Answer:")[0].strip()
    sentences = re.split(r"(?<=[.!?])\s+", text)
    start = rng.randrange(len(sentences))
    words = round(_WORDS[0] * (_WORDS[1] / _WORDS[0]) ** rng.random())
    passage = " ".join(" ".join(sentences[start : start + words]).split()[:words])
    return rng.choice(_TASKS).format(passage)
