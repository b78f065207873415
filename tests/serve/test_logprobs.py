"""Log-probabilities over HTTP are those of the model, for chats, completions and echoed prompts."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from starlette.testclient import TestClient

from draftwood import Pair, TokenTexts
from draftwood.serve.errors import ApiError
from tests.serve.client import MESSAGES, answer, chat, completion, streamed
from tests.serve.conftest import make_service

CLOSE = 2e-4  # nats, between one forward and several in float32


def valid(client: TestClient, body: dict[str, Any]) -> dict[str, Any]:
    """The choice of an answer that the official client reads."""
    found = answer(client, body)
    if not body.get("echo"):  # its model does not know the null of a prompt's first token
        (ChatCompletion if "messages" in body else Completion).model_validate(found, strict=True)
    return dict(found["choices"][0])


def test_a_chat_reports_every_token_with_its_bytes_and_the_likeliest_ones(client: TestClient, pair: Pair) -> None:
    found = valid(client, chat(logprobs=True, top_logprobs=2))["logprobs"]["content"]
    wanted = pair.chat(MESSAGES, max_new_tokens=16, seed=1, temperature=1.0, logprobs=2)
    texts = TokenTexts(pair.tokenizer)
    assert wanted.logprobs is not None
    for one, own in zip(found, wanted.logprobs, strict=True):
        assert one["token"] == texts.text_of(own.token)
        assert bytes(one["bytes"]) == texts.bytes_of(own.token)
        assert one["logprob"] == pytest.approx(own.logprob, abs=CLOSE)
        assert [each["token"] for each in one["top_logprobs"]] == [texts.text_of(token) for token, _ in own.top]
    assert valid(client, chat())["logprobs"] is None
    assert valid(client, chat(logprobs=True))["logprobs"]["content"][0]["top_logprobs"] == []


def test_a_stream_reports_what_the_whole_response_does(client: TestClient) -> None:
    whole = valid(client, chat(logprobs=True, top_logprobs=1))
    parts = streamed(client, chat(logprobs=True, top_logprobs=1))
    for part in parts:
        ChatCompletionChunk.model_validate(part, strict=True)
    found = [one for part in parts if (logprobs := part["choices"][0]["logprobs"]) for one in logprobs["content"]]
    assert found == whole["logprobs"]["content"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_echoed_prompt_has_the_models_own_log_probabilities(client: TestClient, pair: Pair, stream: bool) -> None:
    body = completion(echo=True, logprobs=1, max_tokens=4, prompt="the fox ran to the hen", regex="[a-zé ]+")
    if stream:
        parts = [part["choices"][0] for part in streamed(client, body)]
        text = "".join(part["text"] for part in parts)
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        given = [part["logprobs"] for part in parts if part["logprobs"]]
        found: dict[str, list[Any]] = {name: [one for each in given for one in each[name]] for name in names}
    else:
        whole = valid(client, body)
        text, found = whole["text"], whole["logprobs"]
    assert text.startswith("the fox ran to the hen")
    ids = pair.encode("the fox ran to the hen")
    own = pair.prompt_logprobs(ids, top=1)
    assert found["token_logprobs"][0] is None
    assert found["top_logprobs"][0] is None
    assert found["token_logprobs"][1 : len(ids)] == pytest.approx([one.logprob for one in own if one], abs=CLOSE)
    assert len(found["tokens"]) == len(ids) + 4
    special = set(pair.tokenizer.all_special_tokens)
    for token, offset in zip(found["tokens"], found["text_offset"], strict=True):
        assert token in special or text[offset:].startswith(token), (token, offset)


def test_prompts_are_echoed_for_every_choice_and_without_log_probabilities_too(client: TestClient) -> None:
    body = completion(echo=True, prompt=["the fox", "a hen"], n=2, max_tokens=2)
    texts = [one["text"] for one in answer(client, body)["choices"]]
    assert [text.startswith("the fox") for text in texts] == [True, True, False, False]
    assert [text.startswith("a hen") for text in texts] == [False, False, True, True]
    plain = answer(client, {**body, "echo": False})["choices"]
    assert all(text.endswith(one["text"]) and len(text) > len(one["text"]) for text, one in zip(texts, plain, strict=True))


def test_scoring_that_nobody_waits_for_any_more_harms_nothing(served: Pair) -> None:
    scheduler = make_service(served).scheduler
    given_up = scheduler.work(iter([1, 2]))
    given_up.cancel()
    others = scheduler.work(iter([3, 4])), scheduler.work(1 // n for n in (1, 0))
    scheduler.start()
    assert others[0].result(30) == [3, 4]
    assert "ZeroDivisionError" in str(others[1].exception(30))
    assert scheduler.state == "ready"
    scheduler.stop()
    with pytest.raises(ApiError, match="is stopped and takes no requests"):
        scheduler.work(iter([5]))


def test_scoring_takes_a_place_in_the_queue_until_it_is_done(served: Pair) -> None:
    scheduler = make_service(served, max_rows=1, max_queue=0).scheduler
    first = scheduler.work(iter([1]))
    with pytest.raises(ApiError, match="the queue is full"):
        scheduler.work(iter([2]))
    scheduler.start()
    assert first.result(30) == [1]
    assert scheduler.work(iter([3])).result(30) == [3]
    scheduler.stop()
