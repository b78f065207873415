"""The litellm client, where it is installed: chats, completions, streams, log-probabilities and errors."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.serve.client import MESSAGES
from tests.serve.conftest import Live

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network for prices
litellm = pytest.importorskip("litellm")


def ask(live: Live, call: Any = litellm.completion, model: str = "openai/tiny", **fields: Any) -> Any:
    where = {"api_base": f"{live.url}/v1", "api_key": "none"}
    what = {"messages": MESSAGES} if call is litellm.completion else {"prompt": "the fox ran"}
    return call(model=model, **{**where, **what, "max_tokens": 12, "seed": 1, **fields})


def test_a_chat_is_the_same_whole_and_as_a_stream(live: Live) -> None:
    whole = ask(live)
    assert whole.usage.completion_tokens == 12
    parts = list(ask(live, stream=True))
    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole.choices[0].message.content
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"


def test_a_completion_is_the_same_whole_and_as_a_stream(live: Live) -> None:
    call, model = litellm.text_completion, "text-completion-openai/tiny"
    whole = ask(live, call, model).choices[0].text
    parts = ask(live, call, model, stream=True)
    assert "".join(part.choices[0].text or "" for part in parts) == whole
    assert len(ask(live, call, model, logprobs=2).choices[0].logprobs.token_logprobs) == 12


def test_choices_stop_texts_and_log_probabilities(live: Live) -> None:
    text = ask(live).choices[0].message.content
    stopped = ask(live, stop=[text[3:5]]).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == (text[: text.index(text[3:5])], "stop")
    found = ask(live, n=2, logprobs=True, top_logprobs=2).choices
    assert [len(choice.logprobs.content) for choice in found] == [12, 12]


@pytest.mark.parametrize(("fields", "error"), [
    ({"model": "openai/none"}, "NotFoundError"), ({"temperature": -1}, "BadRequestError"),
])  # fmt: skip
def test_errors_are_those_of_openai(live: Live, fields: dict[str, Any], error: str) -> None:
    with pytest.raises(getattr(litellm, error)):
        ask(live, **fields)
