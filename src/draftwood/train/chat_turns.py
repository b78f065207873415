"""User turns of chats, made from training text."""

from __future__ import annotations

import random
import re
from pathlib import Path

from draftwood.core.errors import ConfigError
from draftwood.train.corpus import read_documents, read_lines

_WORDS = 90  # most words of a passage
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
    files = sorted(p for kind in ("txt", "de") for p in folder.rglob(f"*.train.{kind}*"))
    if not files:
        raise ConfigError(f"data folder {folder} holds no NAME.train.txt or NAME.train.de, with or without .xz")
    turns = []
    for path in files:
        german = ".train.de" in path.name
        texts = read_lines(path) if german else read_documents(path)
        turns += [_turn(rng, rng.choice(texts), german) for _ in range(count // len(files))]
    rng.shuffle(turns)
    return turns


def _turn(rng: random.Random, text: str, german: bool) -> str:
    if german:
        return f"Translate German to English: {text}"
    if text.startswith("Question:"):
        return text.removeprefix("Question:").split("Answer:")[0].strip()
    sentences = re.split(r"(?<=[.!?])\s+", text)
    start = rng.randrange(len(sentences))
    passage = " ".join(" ".join(sentences[start : start + 12]).split()[:_WORDS])
    return rng.choice(_TASKS).format(passage)
