"""What chats are made of: the fixed parts of a chat template, and turns and beginnings made from training text."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from draftwood.core.errors import ConfigError
from draftwood.train.corpus import read_documents, read_lines

_MARKS = ("\x01", "\x02", "\x03")
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


@final
@dataclass(frozen=True)
class Template:
    """The fixed parts of a model's chats or texts, as token ids.

    Attributes:
        head: before the first user turn; before a plain text.
        to_answer: between a user turn and the answer.
        to_user: between an answer and the next user turn; empty if there are no turns.
        ends: tokens that end a turn, or a text.
    """

    head: list[int]
    to_answer: list[int]
    to_user: list[int]
    ends: frozenset[int]

    @property
    def has_turns(self) -> bool:
        """Whether the model writes chats; plain texts otherwise."""
        return bool(self.to_user)

    @staticmethod
    def of(tokenizer: Any, eos: Sequence[int]) -> Template:
        """The template of a tokenizer: of chats if it has a chat template, else of plain texts.

        Raises:
            ConfigError: a chat template that does not hold each message exactly once and unchanged, or plain texts that no
                token begins.
        """
        return _of_chats(tokenizer, eos) if getattr(tokenizer, "chat_template", None) else _of_texts(tokenizer, eos)


def _of_chats(tokenizer: Any, eos: Sequence[int]) -> Template:
    """Split from a chat with two user turns."""
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": mark} for role, mark in zip(roles, _MARKS, strict=True)]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    parts = re.split("|".join(_MARKS), text)
    if len(parts) != 4:
        raise ConfigError("the target's chat template does not hold every message once, so chats cannot be sampled")
    head, to_answer, to_user, again = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in parts)
    if not to_user or to_user[0] not in eos or to_answer != again:
        raise ConfigError("the target's chat template does not end an answer with the end-of-text token of its config")
    return Template(head, to_answer, to_user, frozenset(eos) | {to_answer[0]})


def _of_texts(tokenizer: Any, eos: Sequence[int]) -> Template:
    """What the tokenizer puts before a text, else its beginning-of-text token, else the end of the text before."""
    begin = tokenizer("")["input_ids"]
    if not begin:
        bos = tokenizer.bos_token_id
        begin = [bos] if bos is not None else list(eos[:1])
    if not begin:
        raise ConfigError(
            "the target has no chat template, and no beginning-of-text or end-of-text token that could begin its texts: "
            "name bos_token in its tokenizer_config.json"
        )
    return Template(begin, [], [], frozenset(eos))


def text_turns(folder: Path, count: int, seed: int) -> list[str]:
    """User turns from the training text of a data folder: tasks on passages, questions, sentences to translate."""
    rng = random.Random(seed)
    files, turns = _files(folder, "txt", "de"), []
    for path in files:
        german = ".train.de" in path.name
        texts = read_lines(path) if german else read_documents(path)
        turns += [_turn(rng, rng.choice(texts), german) for _ in range(count // len(files))]
    rng.shuffle(turns)
    return turns


def text_starts(folder: Path, tokenizer: Any, seed: int) -> list[list[int]]:
    """The first tokens of documents in the training text of a data folder: a random number of them, from none to 16."""
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
