"""The second turn of a chat reads only what is new; keys share no beginnings, and texts that run come first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import draftwood
from draftwood import LoadOptions, Pair
from tests.serve.client import answer, chat, completion, metric, streamed, text_of
from tests.serve.conftest import make_service, serving

PROMPT = "the fox ran over the hill and the dog ran after the fox " * 3


@pytest.fixture(scope="module", params=["native", "torch"])
def own(request: pytest.FixtureRequest, folders: tuple[Path, Path]) -> Pair:
    options = LoadOptions(dtype="float32", device="cpu", backend=request.param, profile="none")
    return draftwood.load(*folders, options=options)


@pytest.fixture(autouse=True)
def nothing_is_kept_from_test_to_test(own: Pair) -> None:
    own.prefixes.clear()


def cached(found: dict[str, Any]) -> int:
    return int(found["usage"]["prompt_tokens_details"]["cached_tokens"])


def turns(client: TestClient) -> list[dict[str, Any]]:
    """The answers of a chat of two turns."""
    said = [{"role": "user", "content": PROMPT}]
    first = answer(client, chat(messages=said))
    text = first["choices"][0]["message"]["content"]
    said += [{"role": "assistant", "content": text}, {"role": "user", "content": "and then"}]
    return [first, answer(client, chat(messages=said, seed=2))]


def test_the_second_turn_of_a_chat_reads_what_is_new(own: Pair) -> None:
    with serving(make_service(own)) as client:
        first, second = turns(client)
        assert cached(first) == 0
        assert 0.5 * second["usage"]["prompt_tokens"] < cached(second) < second["usage"]["prompt_tokens"]
        assert metric(client, "prefix_cache_hits_total") == cached(second)
        assert metric(client, "prefix_cache_hit_requests_total") == 1
        usage = {"include_usage": True}
        last = [streamed(client, completion(prompt=PROMPT, n=2, stream_options=usage))[-1] for _ in range(2)]
        assert cached(last[0]) == 0, "one of the two choices has read it"
        assert cached(last[1]) == last[1]["usage"]["prompt_tokens"] - 2
        assert cached(answer(client, completion(prompt=[PROMPT, PROMPT], n=2))) == 2 * cached(last[1])
    own.prefixes.clear()
    with serving(make_service(own, no_prefix_cache=True)) as client:
        read = turns(client)
        assert [text_of(*one["choices"]) for one in read] == [text_of(*one["choices"]) for one in (first, second)]
        assert [cached(one) for one in read] == [0, 0]
        assert metric(client, "prefix_cache_hits_total") == 0
    assert len(own.prefixes) == 0


@pytest.mark.parametrize("share", [False, True])
def test_keys_share_beginnings_only_on_request(own: Pair, share: bool) -> None:
    with serving(make_service(own, share_prefixes=share), keys=("one", "two")) as client:
        for key, hit in (("one", False), ("two", share), ("one", True)):
            client.headers["Authorization"] = f"Bearer {key}"
            assert (cached(answer(client, completion(prompt=PROMPT))) > 0) == hit


def test_texts_that_are_kept_make_room_for_those_that_are_written(own: Pair) -> None:
    kept, tokens = own.prefixes, len(own.encode(PROMPT))
    with serving(make_service(own)) as client:
        assert answer(client, completion(prompt=PROMPT))
        assert len(kept) == 1
    used = sum(runner.memory_bytes for runner in (own.target, own.draft))  # type: ignore[union-attr]
    with serving(make_service(own, max_memory=5 * used / 2**30)) as client:
        for start in "abcdefgh":
            assert answer(client, completion(prompt=f"{start} {PROMPT}"))
        assert 1 <= len(kept) < 8
        assert metric(client, "kv_cache_usage_perc") == 0
        long = completion(prompt=PROMPT, n=3, max_tokens=tokens // 2, ignore_eos=True)
        assert [choice["finish_reason"] for choice in answer(client, long)["choices"]] == ["length"] * 3
