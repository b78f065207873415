"""Tokens that ``logit_bias`` bans are in no text, however they are drafted.

sgl-project/sglang#3059, ggml-org/llama.cpp#19699.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from draftwood import Method
from tests.serve.conftest import completion, loaded, make_service, serving

METHODS = [Method(method="ngram"), Method(method="adaptive")]
LINES = "é\n\né\né\n\né\né\n\né\n"
"""What n-grams propose behind it are parts of characters and line breaks."""


def tokens_of(client: TestClient, text: str) -> list[int]:
    return client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]


def written(client: TestClient, temperature: float, bias: dict[str, float], **fields: object) -> list[list[int]]:
    body = completion(prompt=LINES, temperature=temperature, n=2, max_tokens=16, logit_bias=bias, return_token_ids=True)
    return [choice["token_ids"] for choice in client.post("/v1/completions", json={**body, **fields}).json()["choices"]]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.method)
def test_no_banned_token_is_written_also_within_a_character(
    folders: tuple[Path, Path], always_drafts: None, method: Method
) -> None:
    with serving(make_service(loaded(folders), method=method)) as client:
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


def test_a_bias_of_no_token_is_none_and_a_token_is_written_in_one_way(folders: tuple[Path, Path]) -> None:
    with serving(make_service(loaded(folders))) as client:
        assert written(client, 1, {}) == written(client, 1, {"5": 0}) != written(client, 1, {"270": 40})
        refused = client.post("/v1/completions", json=completion(logit_bias={"5": -100, "05": 0}))
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "logit_bias"
    assert "'05'" in refused.json()["error"]["message"]
