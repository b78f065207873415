"""Blocks of tokens from text on disk.

A data folder holds ``NAME.train.txt`` and ``NAME.val.txt`` (or ``.txt.xz``), one pair per source. The documents of a file
are separated by a line ``<|endoftext|>``. A mix such as ``tinystories=7,fairy_tales=1.5`` gives the epochs of each source.
Blocks are packed: documents, each closed by the end-of-text token, are joined and cut to equal lengths without padding.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.core.errors import ConfigError
from draftwood.train.corpus import files_of, read_documents


def parse_mix(text: str) -> dict[str, float]:
    """From ``"a=7,b=0.5"`` to ``{"a": 7.0, "b": 0.5}``; a name without a number means one epoch."""
    mix: dict[str, float] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, times = part.partition("=")
        try:
            epochs = float(times) if times else 1.0
        except ValueError:
            raise ConfigError(f"mix: {part!r} should read NAME=EPOCHS, for example tinystories=2.5") from None
        if not 0 < epochs < float("inf"):
            raise ConfigError(f"mix: {part!r} gives {epochs} epochs; give a number above 0, or leave the source out")
        if name in mix:
            raise ConfigError(f"mix: {name!r} is named twice; add its epochs up")
        mix[name] = epochs
    if not mix:
        raise ConfigError("mix: no source named; write for example tinystories=2,fairy_tales=1")
    return mix


def sources(folder: Path) -> list[str]:
    """Names of the sources in a data folder that have a training part."""
    names = list(files_of(folder, "train", "txt"))
    if not names:
        raise ConfigError(f"data folder {folder} holds no NAME.train.txt or NAME.train.txt.xz")
    return names


def read_part(folder: Path, name: str, part: str) -> list[str]:
    """Documents of one source's ``train`` or ``val`` part; a missing ``val`` part is an empty list."""
    known = sources(folder)
    if name not in known:
        raise ConfigError(f"unknown source {name!r}; {folder} holds {', '.join(known)}")
    path = files_of(folder, part, "txt").get(name)
    return [] if path is None else read_documents(path)


def mixed(documents: dict[str, list[str]], mix: dict[str, float], seed: int) -> list[str]:
    """Documents repeated by the mix, shuffled. A fraction is counted in characters, and its last document is cut."""
    rng = random.Random(seed)
    chosen: list[str] = []
    for name, epochs in mix.items():
        whole, fraction = int(epochs), epochs - int(epochs)
        chosen += documents[name] * whole
        order = list(documents[name])
        rng.shuffle(order)
        left = round(fraction * sum(map(len, order)))
        for document in order:
            if left <= 0:
                break
            chosen.append(document[:left])
            left -= len(document)
    rng.shuffle(chosen)
    return chosen


def encode(documents: Iterable[str], tokenizer: Any) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """One stream of token ids in which the end of text closes each document; a repeated document is encoded once."""
    documents = list(documents)
    unique = list(dict.fromkeys(documents))
    encoded = tokenizer.backend_tokenizer.encode_batch_fast(unique, add_special_tokens=False)
    ids = {d: np.array([*e.ids, tokenizer.eos_token_id], dtype=np.int32) for d, e in zip(unique, encoded, strict=True)}
    if not documents:
        return np.zeros(0, dtype=np.int32)
    return np.concatenate([ids[d] for d in documents])


def pack(stream: np.ndarray[tuple[int], np.dtype[np.int32]], length: int) -> Tensor:
    """int64 [block, length]; the tail that does not fill a block is dropped."""
    count = len(stream) // length
    return torch.from_numpy(stream[: count * length].astype(np.int64).reshape(count, length))


def train_blocks(documents: dict[str, list[str]], mix: dict[str, float], tokenizer: Any, length: int, seed: int) -> Tensor:
    """Training blocks int64 [block, length] of a mix of documents."""
    blocks = pack(encode(mixed(documents, mix, seed), tokenizer), length)
    if not len(blocks):
        raise ConfigError(f"the mix {mix} gives fewer than {length} tokens; give more text or a shorter context")
    return blocks


def held_out_blocks(folder: Path, names: Iterable[str], tokenizer: Any, length: int) -> dict[str, Tensor]:
    """Blocks int64 [block, length] of the ``val`` part of each source with enough held-out text for one block."""
    packed = {name: pack(encode(read_part(folder, name, "val"), tokenizer), length) for name in names}
    return {name: blocks for name, blocks in packed.items() if len(blocks)}


def items(*parts: Tensor) -> list[dict[str, Tensor]]:
    """Blocks int64 [block, length] as training items of a causal language model."""
    return [{"input_ids": block, "labels": block} for part in parts for block in part]
