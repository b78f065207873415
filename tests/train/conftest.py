"""A tiny language to train on: sentences drawn from a small grammar."""

from __future__ import annotations

import lzma
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftwood.train.config import DraftConfig, LMConfig

SEPARATOR = "<|endoftext|>"


def tale(rng: random.Random) -> str:
    """One document of a few sentences."""
    who = rng.choice(["The fox", "A hen", "The old owl", "My dog"])
    acts = ["saw a red ball", "ran to the hill", "ate 12 plums", "sang a song", "slept in the sun"]
    return "\n".join(f"{who} {rng.choice(acts)}. Then it was {rng.choice(['glad', 'sad'])}." for _ in range(4))


def write_source(folder: Path, name: str, part: str, count: int, packed: bool = False) -> list[str]:
    """Write ``count`` documents as one part of a source and return them."""
    rng = random.Random(f"{name}/{part}")
    documents = [tale(rng) for _ in range(count)]
    text = "".join(f"{d}\n{SEPARATOR}\n" for d in documents)
    path = folder / f"{name}.{part}.txt"
    if packed:
        path.with_name(path.name + ".xz").write_bytes(lzma.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return documents


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with two sources, one of them compressed."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, packed in (("woods", False), ("farm", True)):
        write_source(folder, name, "train", 60, packed)
        write_source(folder, name, "val", 12, packed)
    return folder


TINY: dict[str, Any] = {
    "mix": "woods=4,farm=1.5",
    "context": 64,
    "batch": 4,
    "warmup": 5,
    "learning_rate": 1e-2,
    "save_every": 25,
    "report_every": 40,
    "report_blocks": 4,
    "hidden": 32,
    "heads": 2,
    "intermediate": 48,
}


@pytest.fixture(scope="session")
def lm_config(corpus: Path) -> Callable[..., LMConfig]:
    """Settings of a tiny language model, with changes."""

    def make(out: Path, **changes: Any) -> LMConfig:
        return LMConfig(**{**TINY, "data": corpus, "vocab": 320, "layers": 1, "steps": 80, "out": out, **changes})

    return make


@pytest.fixture(scope="session")
def trained(lm_config: Callable[..., LMConfig], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder and the metrics of a tiny language model trained without a stop."""
    from draftwood.train.lm import train_lm

    out = tmp_path_factory.mktemp("lm")
    return out, train_lm(lm_config(out))


@pytest.fixture
def draft_config(corpus: Path, trained: tuple[Path, dict[str, Any]]) -> Callable[..., DraftConfig]:
    """Settings of a tiny drafter for the tiny language model, with changes."""
    tiny = {**TINY, "layers": 1, "hidden": 16, "intermediate": 32, "steps": 50}
    sampling = {"sampled": 8, "sample_rows": 4, "prefix": 4}

    def make(out: Path, **changes: Any) -> DraftConfig:
        return DraftConfig(**{**tiny, **sampling, "data": corpus, "target": trained[0], "out": out, **changes})

    return make
