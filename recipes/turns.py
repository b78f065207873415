"""User turns made from training text: tasks on passages, questions, sentences to translate."""

from __future__ import annotations

import lzma
import random
import re
from pathlib import Path

_WORDS = (30, 450)  # words of a passage, all magnitudes equally likely
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
    """User turns from a folder of ``NAME.train.txt``, in which a line ``<|endoftext|>`` separates documents, and of
    ``NAME.train.de`` with a German sentence a line; each also as ``.xz``."""
    rng, turns = random.Random(seed), list[str]()
    files = sorted(path for kind in ("txt", "de") for path in folder.rglob(f"*.train.{kind}*"))
    if not files:
        raise FileNotFoundError(f"data folder {folder} holds no NAME.train.txt or NAME.train.de, with or without .xz")
    for path in files:
        german, raw = ".train.de" in path.name, path.read_bytes()
        text = (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode("utf-8").replace("\r\n", "\n")
        parts = text.split("\n") if german else re.split(r"(?m)^<\|endoftext\|>$", text)
        texts = [part.strip() for part in parts if part.strip()]
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
    words = round(_WORDS[0] * (_WORDS[1] / _WORDS[0]) ** rng.random())
    passage = " ".join(" ".join(sentences[start : start + words]).split()[:words])
    return rng.choice(_TASKS).format(passage)
