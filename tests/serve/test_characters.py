"""Characters of several tokens over HTTP: in streams, cut by the cap, and in log-probabilities."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from draftwood import Grammar, Pair, TokenTexts
from tests.serve.client import chat, choice, completion, streamed, text_of

TEXT = "a 🌍 cats and é🐶 你好"
WANTED: dict[str, Any] = {"regex": f"({TEXT}){{3}}", "max_tokens": 60, "return_token_ids": True}


def chosen(client: TestClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices of a stream that hold text or its end."""
    parts = [part["choices"][0] for part in streamed(client, body)]
    return parts[1:] if "messages" in body else parts


@pytest.mark.parametrize("speculative", [True, False])
@pytest.mark.parametrize("request_body", [chat, completion])
def test_a_chunk_has_all_characters_that_its_tokens_complete(
    client: TestClient, pair: Pair, request_body: Any, speculative: bool
) -> None:
    texts, data, given_out = TokenTexts(pair.tokenizer), b"", ""
    parts = chosen(client, request_body(**{**WANTED, "regex": TEXT, "speculative": speculative}))
    for part in parts:
        for token in part.get("token_ids", ()):
            data += b"" if texts.is_special(token) else texts.bytes_of(token)
        given_out += text_of(part)
        assert given_out == data.decode(errors="ignore")
    assert given_out == TEXT


@pytest.mark.parametrize("seed", range(8))
def test_a_stream_is_the_whole_answer_and_has_no_empty_chunk(client: TestClient, seed: int) -> None:
    for body in (chat, completion):
        wanted = {"seed": seed, "temperature": 1.3, "max_tokens": 24, "regex": "([é🌍你]|a b)+"}
        parts = chosen(client, body(**wanted))
        assert text_of(*parts) == text_of(choice(client, body(**wanted)))
        assert all(text_of(part) or part["finish_reason"] for part in parts)
        assert not any("\ufffd" in text_of(part) for part in parts[:-2])


def test_a_cap_inside_a_character_leaves_the_characters_before_it(client: TestClient) -> None:
    """At every length: stream and whole answer are equal, and more tokens change the broken character at most."""
    longest = choice(client, chat(**WANTED, logprobs=True))
    data = [bytes(one["bytes"]) for one in longest["logprobs"]["content"]]
    assert len(data) == 60
    for most in range(1, 41):
        body = chat(**{**WANTED, "max_tokens": most}, logprobs=True)
        found = choice(client, body)
        assert [bytes(one["bytes"]) for one in found["logprobs"]["content"]] == data[:most]
        text, known = text_of(found), b"".join(data[:most])
        assert text.rstrip("\ufffd") == known.decode(errors="ignore")
        assert text_of(longest).startswith(text.rstrip("\ufffd"))
        assert ("\ufffd" in text) == (text.rstrip("\ufffd").encode() != known)
        assert text_of(*chosen(client, body)) == text


def test_tokens_of_completions_have_names_of_their_own(client: TestClient, pair: Pair) -> None:
    """Two tokens that both hold a part of a character are two keys."""
    body = completion(regex="[éà🌍🐶你]+", logprobs=20, max_tokens=12)
    one = choice(client, {**body, "return_token_ids": True})
    found = one["logprobs"]
    texts = TokenTexts(pair.tokenizer)
    wanted = pair.generate(
        "the fox ran", seed=1, max_new_tokens=12, temperature=1.0, logprobs=20, grammar=Grammar.regex(body["regex"])
    )
    assert one["token_ids"] == wanted.token_ids
    assert wanted.logprobs is not None
    parts = zip(wanted.logprobs, *(found[name] for name in ("tokens", "token_logprobs", "top_logprobs")), strict=True)
    for one, name, logprob, listed in parts:
        assert name == rf"bytes:\x{texts.bytes_of(one.token)[0]:02x}"
        assert len(listed) == len({*(token for token, _ in one.top), one.token})
        assert listed[name] == logprob
