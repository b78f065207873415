"""Where texts end, which tokens count, and text that grows without breaking characters."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from draftwood.core.detokenizer import Detokenizer
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from tests.helpers import output_of

calm = settings(deadline=None, derandomize=True)
PROMPT = [9, 8]
EOS = 3


class Letters:
    """Token 0 is "a", 1 is "b", and so on; 100 and above are pairs: 101 is "ab", 110 is "ba"."""

    def decode(self, ids, **_):
        return "".join(self.word(t) for t in ids)

    @staticmethod
    def word(token):
        return chr(97 + token) if token < 100 else chr(97 + token // 10 % 10) + chr(97 + token % 10)


class Bytes:
    """One byte a token; broken characters become the replacement character."""

    def decode(self, ids, **_):
        return bytes(ids).decode("utf-8", errors="replace")


def row(tokenizer=None, *, eos=(), longest=None, criterion=None, **limits):
    return output_of(PROMPT, Limits(**limits), eos=eos, longest=longest, tokenizer=tokenizer, criterion=criterion)


def generated(output):
    """Token ids after the prompt."""
    return output.row.tokens[output.row.prompt_length :]


def feed(output, blocks):
    """Hand over block after block until the text ends; returns what was given out."""
    given_out = ""
    for block in blocks:
        count, text = output.take(block)
        given_out += text
        if output.finish_reason is not None:
            break
        assert count == len(block)
    return given_out


# Tokens -----------------------------------------------------------------------------------------------------------------


def test_the_length_limit_cuts_inside_a_block_and_a_stop_at_the_last_token_is_a_stop():
    output = row(max_new_tokens=3)
    assert (output.take([1, 2]), output.remaining, output.finish_reason) == ((2, ""), 1, None)
    assert output.take([4, 5, 6]) == (1, "")
    assert (generated(output), output.remaining, output.finish_reason) == ([1, 2, 4], 0, "length")
    assert output.row.tokens == [*PROMPT, 1, 2, 4]
    output = row(eos=[EOS], max_new_tokens=2)
    output.take([1, EOS, 5])
    assert output.finish_reason == "stop"


def test_the_context_is_a_limit_too():
    output = row(max_new_tokens=50, longest=4)
    assert output.remaining == 2
    assert output.take([1, 2, 4]) == (2, "")
    assert output.finish_reason == "length"


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_stop_token_inside_a_block_is_kept_and_ends_it(at):
    for output in (row(eos=[EOS, 4]), row(stop_token_ids=(EOS,)), row(stop_token_ids=(EOS,), ignore_eos=True, eos=[7])):
        block = [1, 2, 5]
        block[at] = EOS
        assert output.take(block) == (at + 1, "")
        assert (generated(output), output.finish_reason) == (block[: at + 1], "stop")


def test_end_of_text_can_be_ignored():
    output = row(eos=[EOS], ignore_eos=True)
    assert output.take([EOS, 1]) == (2, "")
    assert output.finish_reason is None


def test_a_criterion_sees_every_prefix_with_the_prompt_and_none_after_the_end():
    seen = []

    def criterion(tokens):
        seen.append(list(tokens))
        return tokens[-1] == 6

    output = row(criterion=criterion)
    assert output.take([4]) == (1, "")
    assert output.take([5, 6, 7]) == (2, "")
    assert seen == [[9, 8, 4], [9, 8, 4, 5], [9, 8, 4, 5, 6]]
    assert output.finish_reason == "stop"


@calm
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 12), st.data())
def test_blocks_do_not_matter(tokens, limit, data):
    def run(blocks):
        output = row(eos=[EOS], max_new_tokens=limit, criterion=lambda ids: ids[-2:] == [1, 2])
        feed(output, blocks)
        return generated(output), output.finish_reason

    cuts = sorted(data.draw(st.sets(st.integers(1, len(tokens)))))
    blocks = [tokens[a:b] for a, b in zip([0, *cuts], [*cuts, len(tokens)], strict=True) if a < b]
    assert run(blocks) == run([[t] for t in tokens])


# Stop strings -----------------------------------------------------------------------------------------------------------


def ids(text):
    return [ord(c) - 97 for c in text]


def test_text_that_only_began_a_stop_string_is_given_out():
    output = row(Letters(), stop=("abc",))
    assert output.take(ids("xab")) == (3, "x")
    assert output.take(ids("ab")) == (2, "ab")  # "abab": the first two cannot be its beginning any more
    assert output.take(ids("d")) == (1, "abd")
    assert output.finish_reason is None


@pytest.mark.parametrize(("limits", "eos"), [({"max_new_tokens": 3}, ()), ({}, [1])])
def test_held_text_is_given_out_when_the_text_ends_otherwise(limits, eos):
    output = row(Letters(), stop=("abc",), eos=eos, **limits)
    assert feed(output, [ids("xab"), ids("c")]) == "xab"
    assert output.finish_reason == ("stop" if eos else "length")


@calm
@given(st.text("ab", max_size=20), st.integers(0, 20))
def test_what_is_held_is_the_rest_of_the_text_so_far(text, at):
    output = row(Letters(), stop=("abba", "babb"))
    given_out = feed(output, [[t] for t in ids(text[:at])])
    assert output.finish_reason is not None or given_out + output.held == text[:at]
    assert output.finish_reason is None or output.held == ""


def test_half_a_character_is_held():
    output = row(Bytes())
    assert output.take([0x61, 0xC3]) == (2, "a")
    assert output.held == "\ufffd"
    assert output.take([0xA4]) == (1, "ä")
    assert output.held == ""


@calm
@given(
    st.lists(st.sampled_from([0, 1, 2, 100, 101, 110, 111, 120]), max_size=10),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(1, 4),
)
def test_stop_strings_are_found_wherever_the_tokens_break(tokens, stops, size):
    expected, over, count = "", False, 0
    for token in tokens:  # the plain way: look at the whole text after every token
        expected, count = expected + Letters.word(token), count + 1
        found = [at for stop in stops if (at := expected.find(stop)) >= 0]
        if found:
            expected, over = expected[: min(found)], True
            break
    output = row(Letters(), stop=tuple(stops), max_new_tokens=max(1, len(tokens)))
    text = feed(output, [tokens[i : i + size] for i in range(0, len(tokens), size)])
    assert text == expected
    assert (output.finish_reason == "stop") == over
    assert generated(output) == tokens[:count]  # the token that completes it is the last that counts


def test_stop_strings_need_a_tokenizer():
    with pytest.raises(ConfigError, match="stop strings need a tokenizer"):
        row(stop=("x",))


# Characters -------------------------------------------------------------------------------------------------------------


NO_CHARACTER = st.lists(st.sampled_from([0x80, 0x9F, 0xBD, 0xE4, 0xF0, 0xFF]), max_size=120).map(bytes)


@calm
@given(st.binary(max_size=120) | NO_CHARACTER, st.integers(1, 5))
def test_incremental_text_is_the_whole_text_even_for_broken_bytes(data, size):
    words, text = Detokenizer(Bytes()), ""
    for at in range(0, len(data), size):
        text += words.push(list(data[at : at + size]))
    assert text + words.push([], last=True) == Bytes().decode(data)


def tokenizer_with_spaces():
    """As SentencePiece: a word brings the space before it, and the first space of a text is dropped."""
    words = ["▁once", "▁upon", "▁a", "time", "▁", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    inner = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], byte_fallback=True))
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>")


def tokenizer_of_bytes():
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner)


WITH_SPACES, OF_BYTES = tokenizer_with_spaces(), tokenizer_of_bytes()


@pytest.mark.parametrize(("tokenizer", "tokens", "text"), [
    (Bytes(), list("Straße à la 🙂 ".encode()) * 40, "Straße à la 🙂 " * 40),
    (Bytes(), [0xFF] * 720, "\ufffd" * 720),
    (WITH_SPACES, [0] + [5] * 720 + [1], "once upon"),  # special tokens have no text
])  # fmt: skip
def test_long_texts_are_read_in_windows(monkeypatch, tokenizer, tokens, text):
    words, longest, decode = Detokenizer(tokenizer), 0, type(tokenizer).decode

    def measured(self, ids, **settings):
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(self, ids, **settings)

    monkeypatch.setattr(type(tokenizer), "decode", measured)
    assert "".join([*(words.push([token]) for token in tokens), words.push([], last=True)]) == text
    assert longest < 80  # and not all 720 again and again


@pytest.mark.parametrize("name", ["bytes", "byte-level", "byte-fallback"])
@calm
@given(st.text("a🌍é ", max_size=12), st.lists(st.integers(1, 4), max_size=12))
def test_only_the_incomplete_character_of_a_round_waits(name, text, sizes):
    """What the tokens of full characters say goes out with them, wherever a round ends."""
    data = text.encode()
    tokenizer, before, left = {
        "bytes": (Bytes(), [97], list(data)),
        "byte-level": (OF_BYTES, OF_BYTES("a")["input_ids"], OF_BYTES(text)["input_ids"]),
        "byte-fallback": (WITH_SPACES, [0], [6 + byte for byte in data]),
    }[name]
    words, given_out, seen = Detokenizer(tokenizer, before), "", 0
    for size in [*sizes, len(left)]:
        block, left = left[:size], left[size:]
        given_out, seen = given_out + words.push(block), seen + len(block)
        assert given_out == data[:seen].decode(errors="ignore")
        assert bool(words.held) == (given_out.encode() != data[:seen])
    assert given_out == text


BROKEN = [
    ([0xE4, 0xBD, 0xA0, 0xF0], "你\ufffd"),  # the cap cuts the second of two characters
    ([0xE4, 0xBD, 0xA0, 0xF0, 0x9F, 0x8C, 0x8D], "你🌍"),
    ([0xE4, 0xBD, 0xA0, 0xF0, -3], "你\ufffdtime"),
    ([-3, 0xFF, 0xFF, -3], "time\ufffd\ufffdtime"),
]


@pytest.mark.parametrize(("tokens", "text"), BROKEN)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_broken_character_spoils_none_before_it_and_blocks_do_not_matter(tokens, text, size):
    """A decoder of byte tokens gives up a whole run of them for one that is broken."""
    ids = [6 + byte if byte >= 0 else -byte for byte in tokens]
    output = row(WITH_SPACES, max_new_tokens=len(ids))
    assert feed(output, [ids[i : i + size] for i in range(0, len(ids), size)]) == text


def test_broken_bytes_do_not_wait_for_ever():
    words = Detokenizer(Bytes())
    assert [len(words.push([0xFF])) for _ in range(6)] == [0, 0, 0, 1, 1, 1]  # a character lacks a byte after three at most


def test_a_prompt_that_ends_inside_a_character_has_its_rest_in_the_text():
    *first, last = "🌍".encode()
    assert Detokenizer(Bytes(), [97, *first]).push([last, 98]) == "🌍b"
    assert Detokenizer(Bytes(), list("a\ufffd".encode())).push([98]) == "b"


CHARACTERS = st.characters(codec="utf-8").map(lambda c: [6 + b for b in c.encode()])
PARTS = st.one_of(st.integers(0, 5).map(lambda token: [token]), CHARACTERS)


@calm
@given(st.lists(PARTS))
def test_spaces_special_tokens_and_byte_tokens_of_a_sentencepiece_tokenizer(parts):
    tokens, words = [token for part in parts for token in part], Detokenizer(WITH_SPACES)
    text = "".join(words.push([token]) for token in tokens) + words.push([], last=True)
    assert text == WITH_SPACES.decode(tokens, skip_special_tokens=True)


@calm
@given(st.lists(PARTS, max_size=12), st.sampled_from([" once", "once", "time", "e u", " ", "time a"]), st.integers(1, 4))
def test_stop_strings_meet_the_spaces_of_a_sentencepiece_tokenizer(parts, stop, size):
    """A piece decoded alone lacks the blank that it begins with (openvinotoolkit/openvino.genai#1676)."""
    tokens, prompt = [token for part in parts for token in part], [3]
    before = len(WITH_SPACES.decode(prompt))
    texts = [WITH_SPACES.decode([*prompt, *tokens[:n]], skip_special_tokens=True)[before:] for n in range(len(tokens) + 1)]
    ends = [text for text in texts if stop in text]
    output = output_of(prompt, Limits(max_new_tokens=max(1, len(tokens)), stop=(stop,)), tokenizer=WITH_SPACES)
    text = feed(output, [tokens[i : i + size] for i in range(0, len(tokens), size)])
    assert text == (ends[0].split(stop)[0] if ends else texts[-1])
    assert (output.finish_reason == "stop") == bool(ends)


@pytest.mark.parametrize(
    ("given", "tokens", "reason"),
    [
        ([[5, 6], [7, 8, 9]], [5, 6, 2], "length"),
        ([[5, 6], [2]], [5, 6, 2], "stop"),
        ([[5, 2]], [5, 2], "stop"),
        ([[5, 6, 3]], [5, 6, 2], "length"),
    ],
)
def test_a_final_token_takes_the_last_place(given, tokens, reason):
    output = output_of([1], Limits(max_new_tokens=3), eos={2, 3}, final=2)
    counts = [output.take(part)[0] for part in given]
    assert (generated(output), output.finish_reason, sum(counts)) == (tokens, reason, len(tokens))
