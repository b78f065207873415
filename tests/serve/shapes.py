"""Responses are held against OpenAI's own models, and against the keys that its published document requires."""

from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk


def check_chat(found):
    ChatCompletion.model_validate(found, strict=True)
    for choice in found["choices"]:
        _has(choice, "finish_reason", "index", "message", "logprobs")
        _has(choice["message"], "role", "content", "refusal")
    _check_usage(found["usage"])


def check_completion(found):
    Completion.model_validate(found, strict=True)
    for choice in found["choices"]:
        _has(choice, "finish_reason", "index", "text", "logprobs")
    _check_usage(found["usage"])


def check_chat_chunks(found, *, usage=False):
    for chunk in found:
        ChatCompletionChunk.model_validate(chunk, strict=True)
        for choice in chunk["choices"]:
            _has(choice, "delta", "finish_reason", "index", "logprobs")
    texts = found[:-1] if usage else found
    assert all(len(chunk["choices"]) == 1 for chunk in texts)
    for index in {chunk["choices"][0]["index"] for chunk in texts}:
        own = [chunk["choices"][0] for chunk in texts if chunk["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert all(set(choice["delta"]) == {"content"} for choice in own[1:-1])
        assert own[-1]["delta"] == {}
        assert [choice["finish_reason"] is None for choice in own] == [True] * (len(own) - 1) + [False]
    _check_stream(found, usage)


def check_completion_chunks(found, *, usage=False):
    for chunk in found:
        choices = [{**choice, "finish_reason": choice["finish_reason"] or "stop"} for choice in chunk["choices"]]
        Completion.model_validate({**chunk, "choices": choices}, strict=True)  # whose model knows the last chunk only
    _check_stream(found, usage)


def _check_stream(found, usage):
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in found}) == 1
    if usage:
        assert found[-1]["choices"] == []
        _check_usage(found[-1]["usage"])
        assert all(chunk["usage"] is None for chunk in found[:-1])
    else:
        assert all("usage" not in chunk for chunk in found)


def check_model(found):
    Model.model_validate(found, strict=True)


def check_error(found):
    assert set(found) == {"error", "request_id"}
    error = found["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert all(error[name] is None or isinstance(error[name], str) for name in ("param", "code"))


def _check_usage(usage):
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def _has(found, *names):
    assert not [name for name in names if name not in found]
