"""Text, mixes and packing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from draftwood.core.errors import ConfigError
from draftwood.train import data

EOS = 0


def letters(documents: list[str]) -> list[list[int]]:
    """An encoder with one token per character; no character has the number of the end of text."""
    return [[ord(c) for c in d] for d in documents]


def test_documents_are_separated_by_a_line_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "a.train.txt"
    path.write_text("one\nline\n<|endoftext|>\n<|endoftext|>\ntwo says <|endoftext|> inside\n<|endoftext|>\r\nthree")
    assert data.read_documents(path) == ["one\nline", "two says <|endoftext|> inside", "three"]


def test_plain_and_compressed_sources_are_found(corpus: Path) -> None:
    assert data.sources(corpus) == ["farm", "woods"]
    assert len(data.read_part(corpus, "farm", "train")) == len(data.read_part(corpus, "woods", "train")) == 60


def test_packing_loses_nothing_but_the_tail() -> None:
    documents = ["abc", "de", "fghij", "abc"]
    stream = data.encode(documents, letters, EOS)
    text = "abc\0de\0fghij\0abc\0"
    assert "".join(map(chr, stream)) == text
    blocks = data.pack(stream, 5)
    assert blocks.shape == (3, 5)
    assert "".join(map(chr, blocks.flatten().tolist())) == text[:15]


def test_every_document_is_closed_by_the_end_of_text(corpus: Path) -> None:
    documents = data.read_part(corpus, "woods", "train")
    stream = data.encode(documents, letters, EOS)
    assert stream[-1] == EOS
    assert int((stream == EOS).sum()) == len(documents)
    pieces = np.split(stream, np.flatnonzero(stream == EOS) + 1)[:-1]
    assert ["".join(map(chr, p[:-1])) for p in pieces] == documents


def test_a_mix_repeats_each_source_as_often_as_asked() -> None:
    documents = {"a": [f"a{i:03d}" for i in range(100)], "b": [f"b{i:03d}" for i in range(100)]}
    counts = Counter(data.mixed(documents, {"a": 2.0, "b": 0.25}, seed=0))
    assert all(counts[d] == 2 for d in documents["a"])
    assert sum(counts[d] for d in documents["b"]) == 25
    assert max(counts[d] for d in documents["b"]) == 1


def test_a_fraction_of_one_long_document_is_cut() -> None:
    assert data.mixed({"book": ["x" * 1000]}, {"book": 0.3}, seed=0) == ["x" * 300]


def test_the_order_depends_on_the_seed_alone() -> None:
    documents = {"a": [str(i) for i in range(50)]}
    first, again, other = (data.mixed(documents, {"a": 1.5}, seed) for seed in (1, 1, 2))
    assert first == again != other


def test_a_mix_is_read_from_text() -> None:
    assert data.parse_mix("a=7, b=0.5,c") == {"a": 7.0, "b": 0.5, "c": 1.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=x", "NAME=EPOCHS"),
        ("a=0", "above 0"),
        ("a=-1", "above 0"),
        ("a=inf", "above 0"),
        ("a,a=2", "twice"),
        ("", "no source"),
    ],
)
def test_a_bad_mix_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        data.parse_mix(text)


def test_bad_data_folders_are_named(tmp_path: Path, corpus: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        data.sources(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"holds no NAME\.train\.txt"):
        data.sources(tmp_path)
    with pytest.raises(ConfigError, match=r"unknown source 'sea'.*farm, woods"):
        data.read_part(corpus, "sea", "train")
    (tmp_path / "void.train.txt").write_text("\n<|endoftext|>\n \n")
    with pytest.raises(ConfigError, match="holds no text"):
        data.read_part(tmp_path, "void", "train")


def test_too_little_text_for_one_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="fewer than 64 tokens"):
        data.train_blocks({"a": ["short"]}, {"a": 1.0}, letters, EOS, 64, seed=0)


def test_a_source_without_held_out_text_has_no_held_out_blocks(tmp_path: Path) -> None:
    (tmp_path / "a.train.txt").write_text("something")
    assert data.held_out_blocks(tmp_path, ["a"], letters, EOS, 4) == {}
