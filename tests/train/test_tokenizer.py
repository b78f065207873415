"""The tokenizer survives saving, puts the end of text in front of prompts and splits numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from draftwood.train.tokenizer import encoder, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(["Once upon a time there were 123 foxes."] * 3, vocab=300, context=64).save_pretrained(out)
    return AutoTokenizer.from_pretrained(out)


@pytest.mark.parametrize("text", ["Once upon a time", " two  spaces \n\n", "Ünïcödé 木 🦊", "isn't it 'so' , yes .", ""])
def test_any_text_comes_back(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text


def test_a_prompt_starts_where_a_document_starts(tokenizer: Any) -> None:
    ids = tokenizer("Once").input_ids
    assert ids[0] == tokenizer.bos_token_id == tokenizer.eos_token_id == tokenizer.pad_token_id
    assert ids[1:] == tokenizer("Once", add_special_tokens=False).input_ids == encoder(tokenizer)(["Once"])[0]
    assert tokenizer.eos_token_id not in ids[1:]


def test_digits_stand_alone(tokenizer: Any) -> None:
    assert len(tokenizer("123123", add_special_tokens=False).input_ids) == 6


def test_it_can_be_saved_and_loaded_again(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("a time 9").input_ids == tokenizer("a time 9").input_ids
