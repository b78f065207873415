"""Sentence pairs: files read line by line, batches of nearly equal lengths, nothing lost and nothing seen twice."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from draftwood.core.errors import ConfigError
from draftwood.train.config import TranslatorConfig
from draftwood.train.corpus import read_sentence_pairs
from draftwood.train.pairs import IGNORED, PairBatches, TokenPairs, batch_of, batches_of, encode_pairs
from draftwood.train.tokenizer import train_pair_tokenizer


def write(folder: Path, name: str, lines: list[str]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    (folder / name).write_bytes(lzma.compress(data) if name.endswith(".xz") else data)


def test_pairs_of_all_names_are_read_plain_or_packed(tmp_path: Path) -> None:
    write(tmp_path, "b.train.de", ["Hund", "Katze "])
    write(tmp_path, "b.train.en.xz", ["dog", "cat"])
    write(tmp_path, "a.train.de.xz", ["Ja"])
    write(tmp_path, "a.train.en", ["yes"])
    write(tmp_path, "a.train.fr", ["oui"])
    assert read_sentence_pairs(tmp_path, "train", ("de", "en")) == (["Ja", "Hund", "Katze"], ["yes", "dog", "cat"])


@pytest.mark.parametrize(("files", "message"), [
    ({"a.train.de": ["Ja", "Nein"], "a.train.en": ["yes"]}, "2 lines in de and 1 lines in en"),
    ({"a.train.de": ["Ja"]}, "no a.train.en or"),
    ({"a.train.en": ["yes"]}, "no a.train.de or"),
    ({"a.train.de": [], "a.train.en": []}, "a.train.de holds no text"),
    ({"a.train.de": ["Ja", ""], "a.train.en": ["yes", "no"]}, "line 2 of .*a.train.de is empty"),
    ({"a.val.de": ["Ja"], "a.val.en": ["yes"]}, "holds no NAME.train.de"),
    ({"a.train.de": b"Ja\nNein \xff\n", "a.train.en": ["yes"]}, r"line 2 of .*a\.train\.de is not UTF-8 text: convert"),
    ({"a.train.de.xz": b"Ja\n", "a.train.en": ["yes"]}, r"a\.train\.de\.xz is not a complete xz file"),
    ({"a.train.de.xz": lzma.compress(b"Ja\n" * 100)[:-20], "a.train.en": ["yes"]}, r"de\.xz is not a complete xz file"),
])  # fmt: skip
def test_bad_files_are_named(tmp_path: Path, files: dict[str, list[str] | bytes], message: str) -> None:
    for name, lines in files.items():
        if isinstance(lines, bytes):
            (tmp_path / name).write_bytes(lines)
        else:
            write(tmp_path, name, lines)
    with pytest.raises(ConfigError, match=message):
        read_sentence_pairs(tmp_path, "train", ("de", "en"))


def test_a_missing_folder_and_one_language_twice_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        read_sentence_pairs(tmp_path / "nowhere", "train", ("de", "en"))
    with pytest.raises(ConfigError, match="both 'de'"):
        read_sentence_pairs(tmp_path, "train", ("de", "de"))


def test_text_comes_back_from_tokens(tmp_path: Path) -> None:
    train_pair_tokenizer(["Der Hund schläft.", "The dog sleeps at 10:45."] * 3, 300, 32).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert 259 < len(tokenizer) <= 300
    assert [tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.mask_token_id] == [0, 1, 2]
    for text in ("Der Hund schläft.", "um 10:45 Uhr, 2019!", "☃ und\tZeichen, nie gesehen"):
        ids = tokenizer(text)["input_ids"]
        assert ids[-1] == 1
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    inside, first = tokenizer(["The dog", "dog"])["input_ids"]
    assert inside[-2] == first[-2]
    assert tokenizer("dog")["input_ids"] == tokenizer("  dog ")["input_ids"]


def test_long_pairs_are_left_out_and_counted(tmp_path: Path) -> None:
    tokenizer = train_pair_tokenizer(["a b c d e f"], 262, 8)
    pairs = encode_pairs(tokenizer, (["a", "a b c d e f", "b"], ["b", "a", "a b c"]), 4)
    assert len(pairs) == 2
    assert pairs.too_long == 1
    assert all(row[-1] == tokenizer.eos_token_id for row in pairs.sources + pairs.targets)
    with pytest.raises(ConfigError, match="more than 1 tokens"):
        encode_pairs(tokenizer, (["a"], ["b"]), 1)


def some_pairs(count: int) -> TokenPairs:
    rng = np.random.default_rng(0)
    sides = [[[3 + i % 90] * int(n) for i, n in enumerate(rng.integers(1, 20, count))] for _ in range(2)]
    return TokenPairs(sources=sides[0], targets=sides[1])


def test_a_batch_fits_and_an_epoch_holds_every_pair_once() -> None:
    lengths = some_pairs(500).lengths()
    batches = batches_of(lengths, 200, np.random.default_rng(1))
    assert sorted(np.concatenate(batches)) == list(range(500))
    assert all(len(b) * lengths[b].max(0).sum() <= 200 for b in batches)
    padding = 1 - lengths.sum() / sum(len(b) * lengths[b].max(0).sum() for b in batches)
    assert padding < 0.2
    with pytest.raises(ConfigError, match="does not fit a batch of 10"):
        batches_of(lengths, 10, np.random.default_rng(1))


def test_epochs_differ_and_items_depend_on_their_number_only(tmp_path: Path) -> None:
    config = TranslatorConfig(data=tmp_path, out=tmp_path, epochs=3, batch=200)
    dataset = PairBatches(some_pairs(300), config, 0)
    each = len(dataset) // 3
    ordered = [dataset[i] for i in range(len(dataset))]
    assert any(not torch.equal(ordered[i]["labels"], ordered[each + i]["labels"]) for i in range(each))
    later = dataset[2 * each + 1]
    dataset[0]
    for name, tensor in dataset[2 * each + 1].items():
        assert torch.equal(tensor, later[name])
    seen = sum(int((item["labels"] != IGNORED).sum() + item["attention_mask"].sum()) for item in ordered)
    assert seen == dataset.tokens_until(len(dataset))


def test_a_few_pairs_are_spread_over_all_and_padding_is_no_token_and_no_label() -> None:
    pairs = some_pairs(100)
    assert [pairs.sources.index(s) for s in pairs.spread(4).sources] == [0, 25, 50, 75]
    assert [pairs.targets.index(t) for t in pairs.spread(4).targets] == [0, 25, 50, 75]
    with pytest.raises(ConfigError, match="number of sentence pairs is 0"):
        pairs.spread(0)
    assert pairs.spread(100).sources == pairs.spread(1000).sources == pairs.sources
    batch = batch_of(TokenPairs(sources=[[0, 5, 1], [7, 1]], targets=[[1], [4, 0, 1]]), [0, 1], 0)
    assert batch["input_ids"].tolist() == [[0, 5, 1], [7, 1, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[1, IGNORED, IGNORED], [4, 0, 1]]
