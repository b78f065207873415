"""A tiny language to train on: sentences drawn from a small grammar."""

from __future__ import annotations

import lzma
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftwood.train.config import DraftConfig, LMConfig, SpecDrafterConfig, TranslatorConfig

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
    "mix": "woods=4,farm=1.5", "context": 64, "batch": 4, "warmup": 5, "learning_rate": 1e-2, "save_every": 25,
    "report_every": 40, "report_blocks": 4, "hidden": 32, "heads": 2, "intermediate": 48,
}  # fmt: skip


@pytest.fixture(scope="session")
def lm_config(corpus: Path) -> Callable[..., LMConfig]:
    """Settings of a tiny language model, with changes."""
    tiny = {**TINY, "data": corpus, "vocab": 320, "layers": 1, "steps": 80}
    return lambda out, **changes: LMConfig(**{**tiny, "out": out, **changes})


@pytest.fixture(scope="session")
def trained(lm_config: Callable[..., LMConfig], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder and the metrics of a tiny language model trained without a stop."""
    from draftwood.train.lm import train_lm

    out = tmp_path_factory.mktemp("lm")
    return out, train_lm(lm_config(out))


@pytest.fixture(scope="session")
def draft_config(corpus: Path, trained: tuple[Path, dict[str, Any]]) -> Callable[..., DraftConfig]:
    """Settings of a tiny drafter for the tiny language model, with changes."""
    tiny = {**TINY, "layers": 1, "hidden": 16, "intermediate": 32, "steps": 50, "tokens": 2_500}
    tiny |= {"data": corpus, "target": trained[0]}
    return lambda out, **changes: DraftConfig(**{**tiny, "out": out, **changes})


WORDS = {"ein": "a", "rotes": "red", "altes": "old", "Haus": "house", "Boot": "boat", "steht": "stands", "fährt": "sails"}
WORDS |= {"hier": "here", "dort": "there", "heute": "today", "nie": "never", "und": "and", "Buch": "book", "liegt": "lies"}


def sentence(rng: random.Random) -> str:
    """A German sentence of a tiny language whose English is word by word the same."""
    noun = f"ein {rng.choice(['rotes', 'altes'])} {rng.choice(['Haus', 'Boot', 'Buch'])}"
    more = f" und {noun}" if rng.random() < 0.3 else ""
    return f"{noun}{more} {rng.choice(['steht', 'fährt', 'liegt'])} {rng.choice(['hier', 'dort', 'heute', 'nie'])}"


@pytest.fixture(scope="session")
def pairs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with sentence pairs."""
    folder = tmp_path_factory.mktemp("pairs")
    for part, count in (("train", 300), ("val", 24)):
        rng = random.Random(part)
        german = [sentence(rng) for _ in range(count)]
        english = [" ".join(WORDS[word] for word in line.split()) for line in german]
        for language, lines in (("de", german), ("en", english)):
            (folder / f"tiny.{part}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


TINY_PAIRS: dict[str, Any] = {
    **{"batch": 400, "warmup": 10, "learning_rate": 5e-3, "optimizer": "adamw", "dropout": 0.0},
    **{"save_every": 75, "report_every": 100, "report_pairs": 12},
}


@pytest.fixture(scope="session")
def translator_config(pairs_folder: Path) -> Callable[..., TranslatorConfig]:
    """Settings of a tiny translation model, with changes."""
    sizes = {"vocab": 320, "context": 32, "hidden": 48, "heads": 4, "intermediate": 64}
    sizes |= {"encoder_layers": 1, "decoder_layers": 1, "data": pairs_folder, "steps": 300}
    return lambda out, **changes: TranslatorConfig(**{**TINY_PAIRS, **sizes, "out": out, **changes})


@pytest.fixture(scope="session")
def translator(
    translator_config: Callable[..., TranslatorConfig], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """The folder and the metrics of a tiny translation model trained without a stop."""
    from draftwood.train.translator import train_translator

    out = tmp_path_factory.mktemp("translator")
    return out, train_translator(translator_config(out))


@pytest.fixture(scope="session")
def spec_config(pairs_folder: Path, translator: tuple[Path, dict[str, Any]]) -> Callable[..., SpecDrafterConfig]:
    """Settings of a tiny drafter of blocks for the tiny translation model, with changes."""
    sizes = {
        "block": 6,
        "decoder_layers": 1,
        "intermediate": 64,
        "data": pairs_folder,
        "target": translator[0],
        "steps": 200,
    }
    return lambda out, **changes: SpecDrafterConfig(**{**TINY_PAIRS, **sizes, "out": out, **changes})
