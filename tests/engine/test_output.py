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


def row(tokenizer=None, *, eos=(), longest=None, criterion=None, final=None, **limits):
    given = {"eos": eos, "longest": longest, "tokenizer": tokenizer, "criterion": criterion, "final": final}
    return output_of(PROMPT, Limits(**limits), **given)


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


@pytest.mark.parametrize(("settings", "blocks", "kept", "reason"), [
    ({"max_new_tokens": 3}, [[1, 2], [4, 5, 6]], [1, 2, 4], "length"),
    ({"max_new_tokens": 50, "longest": 4}, [[1, 2, 4]], [1, 2], "length"),
    ({"max_new_tokens": 2, "eos": [EOS]}, [[1, EOS, 5]], [1, EOS], "stop"),
    ({"eos": [EOS], "ignore_eos": True}, [[EOS, 1]], [EOS, 1], None),
    *((ends, [[*before, EOS, 2, 5]], [*before, EOS], "stop") for before in ([], [1], [1, 2]) for ends in (
        {"eos": [EOS, 4]}, {"stop_token_ids": (EOS,)}, {"stop_token_ids": (EOS,), "ignore_eos": True, "eos": [7]})),
    *(({"max_new_tokens": 3, "eos": [2, 3], "final": 2}, *case) for case in (  # a final token takes the last place
        ([[5, 6], [7, 8, 9]], [5, 6, 2], "length"), ([[5, 6], [2]], [5, 6, 2], "stop"), ([[5, 2]], [5, 2], "stop"),
        ([[5, 6, 3]], [5, 6, 2], "length"))),
])  # fmt: skip
def test_where_a_text_ends_and_what_is_kept(settings, blocks, kept, reason):
    output, longest = row(**settings), min(settings.get("max_new_tokens", 200), settings.get("longest", 999) - len(PROMPT))
    counts = [output.take(block) for block in blocks]
    assert (sum(count for count, _ in counts), {text for _, text in counts}) == (len(kept), {""})
    assert (output.row.tokens, output.finish_reason) == ([*PROMPT, *kept], reason)
    assert output.remaining == longest - len(kept)


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


@pytest.mark.parametrize(("limits", "eos"), [({"max_new_tokens": 3}, ()), ({}, [1])])
def test_held_text_is_given_out_when_the_text_ends_otherwise(limits, eos):
    output = row(Letters(), stop=("abc",), eos=eos, **limits)
    assert feed(output, [ids("xab"), ids("c")]) == "xab"
    assert output.finish_reason == ("stop" if eos else "length")


@calm
@given(st.text("ab", max_size=20), st.integers(0, 20))
def test_only_what_may_begin_a_stop_string_is_held(text, at):
    stops = ("abba", "babb")
    output = row(Letters(), stop=stops)
    given_out, begun = feed(output, [[t] for t in ids(text[:at])]), text[:at]
    held = max((begun[-n:] for n in (1, 2, 3) for stop in stops if begun[-n:] == stop[:n]), key=len, default="")
    assert (given_out + output.held, output.held) == (begun, held) or (output.finish_reason, output.held) == ("stop", "")


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
@given(
    st.lists(PARTS, max_size=12), st.sampled_from([" once", "once", "time", "e u", " ", "time a", None]), st.integers(1, 4),
    st.sampled_from([[], [3]]),
)  # fmt: skip
def test_spaces_special_tokens_byte_tokens_and_stops_of_a_sentencepiece_tokenizer(parts, stop, size, prompt):
    """A piece decoded alone lacks the blank that it begins with (openvinotoolkit/openvino.genai#1676)."""
    tokens, stops = [token for part in parts for token in part], (stop,) if stop else ()
    before = len(WITH_SPACES.decode(prompt))
    texts = [WITH_SPACES.decode([*prompt, *tokens[:n]], skip_special_tokens=True)[before:] for n in range(len(tokens) + 1)]
    ends = [text for text in texts if stop and stop in text]
    output = output_of(prompt, Limits(max_new_tokens=max(1, len(tokens)), stop=stops), tokenizer=WITH_SPACES)
    text = feed(output, [tokens[i : i + size] for i in range(0, len(tokens), size)])
    assert text == (ends[0].split(stop)[0] if ends else texts[-1])
    assert (output.finish_reason == "stop") == bool(ends)
