"""Text, mixes and packing; the tokenizer survives saving and puts the end of text in front of prompts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer

from draftwood.core.errors import ConfigError
from draftwood.train import data
from draftwood.train.tokenizer import train_tokenizer

LETTERS: Any = SimpleNamespace()  # a tokenizer with one token per character; none has the number of the end of text
LETTERS.eos_token_id, LETTERS.backend_tokenizer = 0, LETTERS
LETTERS.encode_batch_fast = lambda texts, **_: [SimpleNamespace(ids=[*map(ord, text)]) for text in texts]


def test_documents_are_separated_by_a_line_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "a.train.txt"
    path.write_text("one\nline\n<|endoftext|>\n<|endoftext|>\ntwo says <|endoftext|> inside\n<|endoftext|>\r\nthree")
    assert data.read_documents(path) == ["one\nline", "two says <|endoftext|> inside", "three"]


def test_plain_and_compressed_sources_are_found(corpus: Path) -> None:
    assert data.sources(corpus) == ["farm", "woods"]
    assert len(data.read_part(corpus, "farm", "train")) == len(data.read_part(corpus, "woods", "train")) == 60


def test_packing_loses_nothing_but_the_tail() -> None:
    documents = ["abc", "de", "fghij", "abc"]
    stream = data.encode(documents, LETTERS)
    text = "abc\0de\0fghij\0abc\0"
    assert "".join(map(chr, stream)) == text
    blocks = data.pack(stream, 5)
    assert blocks.shape == (3, 5)
    assert "".join(map(chr, blocks.flatten().tolist())) == text[:15]


def test_a_mix_repeats_each_source_as_often_as_asked_in_an_order_of_its_seed() -> None:
    documents = {"a": [f"a{i:03d}" for i in range(100)], "b": [f"b{i:03d}" for i in range(100)]}
    assert data.parse_mix("a=2, b=0.25,c") == {"a": 2.0, "b": 0.25, "c": 1.0}
    first, again, other = (data.mixed(documents, {"a": 2.0, "b": 0.25}, seed) for seed in (1, 1, 2))
    assert first == again != other
    counts = Counter(first)
    assert all(counts[d] == 2 for d in documents["a"])
    assert sum(counts[d] for d in documents["b"]) == 25
    assert max(counts[d] for d in documents["b"]) == 1
    assert data.mixed({"book": ["x" * 1000]}, {"book": 0.3}, seed=0) == ["x" * 300]


@pytest.mark.parametrize(("text", "message"), [
    ("a=x", "NAME=EPOCHS"), ("a=0", "above 0"), ("a=-1", "above 0"), ("a=inf", "above 0"), ("a,a=2", "twice"),
    ("", "no source"),
])  # fmt: skip
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
    with pytest.raises(ConfigError, match="fewer than 64 tokens"):
        data.train_blocks({"a": ["short"]}, {"a": 1.0}, LETTERS, 64, seed=0)
    (tmp_path / "a.train.txt").write_text("something")
    assert data.held_out_blocks(tmp_path, ["a"], LETTERS, 4) == {}  # as it has no held-out text


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(["Once upon a time there were 123 foxes."] * 3, vocab=300, context=64).save_pretrained(out)
    return AutoTokenizer.from_pretrained(out)


@pytest.mark.parametrize("text", ["Once upon a time", " two  spaces \n\n", "Ünïcödé 木 🦊", "isn't it 'so' , yes .", ""])
def test_any_text_comes_back(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text


def test_a_prompt_starts_where_a_document_starts_and_digits_stand_alone(tokenizer: Any) -> None:
    ids = tokenizer("Once").input_ids
    assert ids[0] == tokenizer.bos_token_id == tokenizer.eos_token_id == tokenizer.pad_token_id
    assert ids[1:] == tokenizer("Once", add_special_tokens=False).input_ids
    assert data.encode(["Once"], tokenizer).tolist() == [*ids[1:], tokenizer.eos_token_id]
    assert tokenizer.eos_token_id not in ids[1:]
    assert len(tokenizer("123123", add_special_tokens=False).input_ids) == 6
