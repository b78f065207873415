"""Texts of single tokens, to the byte."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from draftwood import TokenTexts
from tests.engine.test_output import OF_BYTES, WITH_SPACES

calm = settings(max_examples=40, deadline=None, derandomize=True)
BYTES, SPACES = TokenTexts(OF_BYTES), TokenTexts(WITH_SPACES)


@calm
@given(st.text(max_size=12))
def test_the_bytes_of_a_byte_level_tokenizer_make_the_text(text):
    tokens = OF_BYTES(text)["input_ids"]
    assert b"".join(map(BYTES.bytes_of, tokens)) == text.encode()


def test_every_byte_is_itself():
    assert sorted(BYTES.bytes_of(token) for token in range(256)) == [bytes([byte]) for byte in range(256)]
    assert [SPACES.bytes_of(6 + byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]


@pytest.mark.parametrize(("token", "text", "marked", "escaped"), [
    *((token, text, text, text) for token, text in (
        (0, " once"), (2, " a"), (3, "time"), (4, " "), (5, "</s>"), (6 + 0x41, "A"), (999, ""))),
    (6 + 0xE2, "\ufffd", "<E2>", r"bytes:\xe2"),
])  # fmt: skip
def test_a_word_keeps_the_space_before_it_and_parts_of_characters_are_shown_by_their_bytes(token, text, marked, escaped):
    assert (SPACES.text_of(token), SPACES.marked(token), SPACES.escaped(token)) == (text, marked, escaped)
    assert SPACES.bytes_of(token) == (b"\xe2" if text == "\ufffd" else text.encode())


def test_whole_characters_around_a_part_stay():
    words = {"Ġð\u0141": 0, "ĮįaĠ": 1, "ï¿½": 2}  # a blank and F0 9F; 8C 8D, "a" and a blank; the sign U+FFFD itself
    inner = Tokenizer(models.BPE(words, []))
    inner.decoder = decoders.ByteLevel()
    texts = TokenTexts(PreTrainedTokenizerFast(tokenizer_object=inner))
    assert [texts.marked(token) for token in range(3)] == [" <F0 9F>", "<8C 8D>a ", "\ufffd"]
    assert [texts.escaped(token) for token in range(3)] == [r"bytes: \xf0\x9f", r"bytes:\x8c\x8da ", "\ufffd"]


def test_parts_of_words_and_special_tokens():
    words = ["[UNK]", "the", "##ing", "\ufffd", "<0x41>"]
    inner = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    inner.decoder = decoders.WordPiece()
    texts = TokenTexts(PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]"))
    assert [texts.bytes_of(i) for i in range(5)] == [b"[UNK]", b" the", b"ing", " \ufffd".encode(), b" <0x41>"]
