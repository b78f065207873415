"""What a served text is: the same alone and in company, with whole characters, without banned tokens, up to its stop."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from draftwood import Grammar, Method, Pair, TokenTexts
from tests.serve.client import answer, chat, choice, completion, parts_of, refused, streamed, text_of
from tests.serve.conftest import live_server, loaded, make_service, serving

PROMPTS = ["the fox ran", "a dog", "the hen sat on the red hill and", "a"]
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    {"temperature": 0.9, "logit_bias": {"260": 1.5}, "min_tokens": 4},
]


def wanted(seed: int) -> dict[str, Any]:
    """A request, by its number."""
    rng = random.Random(seed)
    prompt, settings = rng.choice(PROMPTS), rng.choice(SETTINGS)
    return completion(prompt=prompt, seed=seed, max_tokens=rng.randrange(3, 14), **settings)


def test_a_text_is_the_one_it_is_alone_while_others_come_and_go(folders: tuple[Path, Path]) -> None:
    bodies = [wanted(seed) for seed in range(40)]
    with serving(make_service(loaded(folders), method=Method(method="ar"))) as client:
        alone = [text_of(choice(client, body)) for body in bodies]
    assert len(set(alone)) > 30  # control: the texts differ
    with (
        live_server(make_service(loaded(folders), max_rows=4)) as live,
        httpx2.Client(base_url=live.url, timeout=60) as client,
    ):

        def text(number: int) -> str:
            rng = random.Random(number)
            stream, drafts = rng.random() < 0.5, rng.random() < 0.7
            parts = parts_of(client, {**bodies[number], "speculative": drafts}, stream=stream)
            return text_of(*(part["choices"][0] for part in parts))

        with ThreadPoolExecutor(8) as threads:
            together = list(threads.map(text, range(len(bodies))))
    assert together == alone


@pytest.mark.parametrize("method", [Method(method="lookup"), Method(method="rsd-s", shape="2x2"), Method(method="chain")])
def test_every_method_serves_greedy_texts_as_plain_decoding_does(folders: tuple[Path, Path], method: Method) -> None:
    with serving(make_service(loaded(folders), method=method)) as client:
        body = chat(temperature=0, max_tokens=12)
        texts = {text_of(choice(client, {**body, "speculative": drafts})) for drafts in (True, False)}
    assert len(texts) == 1


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


METHODS = [Method(method="ngram"), Method(method="adaptive")]
LINES = "é\n\né\né\n\né\né\n\né\n"
"""What n-grams propose behind it are parts of characters and line breaks."""


def tokens_of(client: TestClient, text: str) -> list[int]:
    return client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]


def written(client: TestClient, temperature: float, bias: dict[str, float], **fields: object) -> list[list[int]]:
    body = completion(prompt=LINES, temperature=temperature, n=2, max_tokens=16, logit_bias=bias, return_token_ids=True)
    return [choice["token_ids"] for choice in answer(client, {**body, **fields})["choices"]]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.method)
@pytest.mark.usefixtures("always_drafts")
def test_no_banned_token_is_written_also_within_a_character(served: Pair, method: Method) -> None:
    with serving(make_service(served, method=method)) as client:
        first, rest, line = (tokens_of(client, text)[i] for text, i in (("é", 0), ("é", 1), ("\n", 0)))
        likely = {str(token): 9.0 for token in (first, rest, line)}
        free = {token for text in written(client, 1, likely) for token in text}
        assert {first, rest, line} <= free  # control
        banned = {**likely, str(rest): -100.0, str(line): -100.0}
        for temperature in (0, 1, 2):
            texts = written(client, temperature, banned)
            assert not any({rest, line} & set(text) for text in texts)
            plain = written(client, temperature, banned, speculative=False)
            assert not any({rest, line} & set(text) for text in plain)
            if temperature == 0 or method.method == "adaptive":  # the same noise picks the tokens
                assert texts == plain


def test_a_bias_of_no_token_is_none_and_a_token_is_written_in_one_way(client: TestClient) -> None:
    assert written(client, 1, {}) == written(client, 1, {"5": 0}) != written(client, 1, {"270": 40})
    error = refused(client, completion(logit_bias={"5": -100, "05": 0}))
    assert (error["param"], "'05'" in error["message"]) == ("logit_bias", True)


LETTERS = "[a-z ]{60}"  # else random models write broken characters
METHODS_HERE = [
    Method(method="shared-noise", shape="2-2-2"),
    Method(method="shared-noise", shape="1-1-1-1-1-1"),
    Method(method="ngram"),
]


@pytest.fixture(scope="module", params=METHODS_HERE, ids=lambda method: f"{method.method} {method.shape}")
def by_method(served: Pair, request: pytest.FixtureRequest) -> Iterator[TestClient]:
    with serving(make_service(served, method=request.param)) as found:
        yield found


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ids_and_log_probabilities_end_with_the_stop_text(by_method: TestClient, temperature: float) -> None:
    """Nothing of an accepted block comes after the token that completes a stop (vllm-project/vllm#47616)."""
    body = completion(
        temperature=temperature, max_tokens=40, prompt="the fox the fox", logprobs=1, return_token_ids=True, regex=LETTERS
    )
    whole = choice(by_method, {**body, "speculative": False})
    for at in (5, 12, 20):
        stop = whole["text"][at : at + 4]
        found = [choice(by_method, {**body, "stop": [stop], "speculative": drafts}) for drafts in (True, False)]
        assert found[0]["token_ids"] == found[1]["token_ids"]
        for one in found:
            end = whole["text"].index(stop)
            assert (one["text"], one["finish_reason"]) == (whole["text"][:end], "stop")
            count = len(one["token_ids"])
            assert one["token_ids"] == whole["token_ids"][:count]
            assert stop in "".join(one["logprobs"]["tokens"])
            assert stop not in "".join(one["logprobs"]["tokens"][:-1])
            assert one["logprobs"]["tokens"] == whole["logprobs"]["tokens"][:count]
            assert len(one["logprobs"]["token_logprobs"]) == count


def test_a_stop_before_the_cap_in_one_block_wins_over_it(by_method: TestClient) -> None:
    """The order of the two checks matters where a round brings both (sgl-project/sglang#31599)."""
    body = completion(temperature=1.0, seed=5, max_tokens=32, return_token_ids=True, regex=LETTERS)
    whole = choice(by_method, {**body, "speculative": False})
    stop = whole["text"][-4:-2]
    end = whole["text"].index(stop)
    ids = choice(by_method, {**body, "stop": stop})["token_ids"]
    for most in range(len(ids), len(ids) + 4):
        found = choice(by_method, {**body, "stop": stop, "max_tokens": most})
        assert (found["text"], found["finish_reason"]) == (whole["text"][:end], "stop")
    assert choice(by_method, {**body, "stop": stop, "max_tokens": len(ids) - 1})["finish_reason"] == "length"


@pytest.mark.parametrize("seed", range(6))
def test_the_first_stop_in_the_text_wins_in_any_order_and_in_streams(by_method: TestClient, seed: int) -> None:
    """The list's first must not win (vllm-project/vllm#49391), nor a long block hide one (sgl-project/sglang#23802)."""
    wanted_text = {"seed": seed, "max_tokens": 40, "regex": LETTERS}
    for body in (chat(**wanted_text), completion(**wanted_text, temperature=0)):
        whole = choice(by_method, {**body, "stop": None})
        text = text_of(whole)
        stops = ["q", "he", text[9:11], text[17:18]]
        ends = [at for stop in stops if (at := text.find(stop)) >= 0]
        wanted = (text[: min(ends)], "stop") if ends else (text, whole["finish_reason"])
        for given in (stops, stops[::-1]):
            for stream in (True, False):
                parts = [part["choices"][0] for part in parts_of(by_method, {**body, "stop": given}, stream=stream)]
                assert (text_of(*parts), parts[-1]["finish_reason"]) == wanted
