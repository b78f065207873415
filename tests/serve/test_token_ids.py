"""Token ids of a response are those of its text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftwood import Limits, Sampling
from tests.serve import shapes
from tests.serve.conftest import chat, chunks, completion, loaded, make_service, serving


def ids(choices: list[dict[str, Any]]) -> list[int]:
    return [token for choice in choices for token in choice.get("token_ids", ())]


def test_token_ids_are_those_of_python_in_a_stream_too_and_come_only_when_wanted(folders: tuple[Path, Path]) -> None:
    pair = loaded(folders)
    wanted = pair.generate("the fox ran", seed=1, sampling=Sampling(), limits=Limits(max_new_tokens=16)).token_ids
    with serving(make_service(pair)) as client:
        for path, body in (("/v1/completions", completion), ("/v1/chat/completions", chat)):
            fields = body(return_token_ids=True, temperature=1.0)
            whole = client.post(path, json=fields).json()
            streamed = chunks(client.post(path, json={**fields, "stream": True}).text)
            parts = ids([chunk["choices"][0] for chunk in streamed])
            assert parts == ids(whole["choices"])
            assert len(parts) == whole["usage"]["completion_tokens"] == 16
            if body is completion:
                assert parts == wanted
                shapes.check_completion_chunks(streamed)
            else:
                shapes.check_chat_chunks(streamed)
        assert "token_ids" not in client.post("/v1/completions", json=completion()).json()["choices"][0]
