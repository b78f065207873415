"""Tokens that ``logit_bias`` bans are in no text, however they are drafted.

sgl-project/sglang#3059, ggml-org/llama.cpp#19699.
"""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from draftwood import Method, Pair
from tests.serve.client import answer, completion, refused
from tests.serve.conftest import make_service, serving

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
