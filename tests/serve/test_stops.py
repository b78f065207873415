"""Stop texts over HTTP: where texts end, whatever was drafted, streamed, or asked for in another order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from draftwood import Method, Pair
from tests.serve.client import chat, choice, completion, parts_of, text_of
from tests.serve.conftest import make_service, serving

LETTERS = "[a-z ]{60}"  # else random models write broken characters
METHODS_HERE = [
    Method(method="shared-noise", shape="2-2-2"),
    Method(method="shared-noise", shape="1-1-1-1-1-1"),
    Method(method="ngram"),
]


@pytest.fixture(scope="module", params=METHODS_HERE, ids=lambda method: f"{method.method} {method.shape}")
def client(served: Pair, request: pytest.FixtureRequest) -> Iterator[TestClient]:
    with serving(make_service(served, method=request.param)) as found:
        yield found


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ids_and_log_probabilities_end_with_the_stop_text(client: TestClient, temperature: float) -> None:
    """Nothing of an accepted block comes after the token that completes a stop (vllm-project/vllm#47616)."""
    body = completion(
        temperature=temperature, max_tokens=40, prompt="the fox the fox", logprobs=1, return_token_ids=True, regex=LETTERS
    )
    whole = choice(client, {**body, "speculative": False})
    for at in (5, 12, 20):
        stop = whole["text"][at : at + 4]
        found = [choice(client, {**body, "stop": [stop], "speculative": drafts}) for drafts in (True, False)]
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


def test_a_stop_before_the_cap_in_one_block_wins_over_it(client: TestClient) -> None:
    """The order of the two checks matters where a round brings both (sgl-project/sglang#31599)."""
    body = completion(temperature=1.0, seed=5, max_tokens=32, return_token_ids=True, regex=LETTERS)
    whole = choice(client, {**body, "speculative": False})
    stop = whole["text"][-4:-2]
    end = whole["text"].index(stop)
    ids = choice(client, {**body, "stop": stop})["token_ids"]
    for most in range(len(ids), len(ids) + 4):
        found = choice(client, {**body, "stop": stop, "max_tokens": most})
        assert (found["text"], found["finish_reason"]) == (whole["text"][:end], "stop")
    assert choice(client, {**body, "stop": stop, "max_tokens": len(ids) - 1})["finish_reason"] == "length"


@pytest.mark.parametrize("seed", range(6))
def test_the_first_stop_in_the_text_wins_in_any_order_and_in_streams(client: TestClient, seed: int) -> None:
    """The list's first must not win (vllm-project/vllm#49391), nor a long block hide one (sgl-project/sglang#23802)."""
    wanted_text = {"seed": seed, "max_tokens": 40, "regex": LETTERS}
    for body in (chat(**wanted_text), completion(**wanted_text, temperature=0)):
        whole = choice(client, {**body, "stop": None})
        text = text_of(whole)
        stops = ["q", "he", text[9:11], text[17:18]]
        ends = [at for stop in stops if (at := text.find(stop)) >= 0]
        wanted = (text[: min(ends)], "stop") if ends else (text, whole["finish_reason"])
        for given in (stops, stops[::-1]):
            for stream in (True, False):
                parts = [part["choices"][0] for part in parts_of(client, {**body, "stop": given}, stream=stream)]
                assert (text_of(*parts), parts[-1]["finish_reason"]) == wanted
