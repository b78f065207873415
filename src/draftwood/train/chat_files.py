"""Files of chats: token ids, and which of them the model wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from draftwood.core.errors import ConfigError
from draftwood.core.files import replacing


class Chat(NamedTuple):
    """Token ids of a chat, and which of them the model wrote as an answer, end-of-turn tokens included."""

    tokens: list[int]
    answered: list[bool]


def save_part(path: Path, chats: Sequence[Chat], vocab: int) -> None:
    """Write chats into one file, whole or not at all; ``vocab`` is the size of the vocabulary."""
    with replacing(path) as part, part.open("wb") as file:
        np.savez_compressed(
            file,
            tokens=np.concatenate([c.tokens for c in chats]).astype(np.uint16 if vocab <= 1 << 16 else np.int32),
            lengths=np.array([len(c.tokens) for c in chats], dtype=np.int32),
            answered=np.packbits(np.concatenate([c.answered for c in chats])),
        )


def read_chats(folder: Path) -> list[Chat]:
    """All chats in a folder written by :func:`draftwood.train.chats.write_chats`, in order."""
    return [chat for path in sorted(folder.glob("[0-9]*.npz")) for chat in read_part(path)]


def read_part(path: Path) -> list[Chat]:
    """The chats of one file."""
    with np.load(path) as part:
        ends = part["lengths"].cumsum()[:-1]
        answered = np.unpackbits(part["answered"], count=len(part["tokens"])).astype(bool)
        rows = zip(np.split(part["tokens"], ends), np.split(answered, ends), strict=True)
        return [Chat(ids.tolist(), flags.tolist()) for ids, flags in rows]


def check_tokens(chats: Sequence[Chat], folder: Path, vocab: int) -> None:
    """Raise a ConfigError if chats of this folder hold a token that a vocabulary of this size does not have."""
    largest = max((max(chat.tokens) for chat in chats), default=0)
    if largest >= vocab:
        raise ConfigError(f"{folder} holds token {largest}, and the target has {vocab} tokens; give chats that it wrote")


def held_out_of(count: int) -> tuple[Sequence[int], Sequence[int]]:
    """Numbers of training examples, and of held-out ones: the first 64, or a tenth of a small folder."""
    held_out = min(count, 64, max(1, count // 10))
    return range(held_out, count), range(held_out)
