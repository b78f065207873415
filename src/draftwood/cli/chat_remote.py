"""A chat model behind a server with OpenAI's interface, such as ``draftwood serve``."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from http.client import HTTPException
from time import perf_counter
from typing import Any, final
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from draftwood.cli.chat_model import remark_of
from draftwood.cli.chat_settings import ChatDisplay, ChatServer
from draftwood.cli.settings import Settings
from draftwood.cli.show import Screen
from draftwood.core.checks import shown
from draftwood.core.errors import ConfigError, ModelError
from draftwood.core.limits import Limits
from draftwood.core.seeds import drawn
from draftwood.core.settings import NO_PLAIN_OPTION, Sampling

_SECONDS = 300.0  # of silence until an answer is given up
_RENAMED = {"max_new_tokens": "max_completion_tokens"}


@final
class RemoteModel:
    """A model behind a server.

    Args:
        server: its address and key.
        settings: sampling and limits; what was not given is left to the server.
        display: values for the chat template.

    Attributes:
        name: of the model, as the server calls it.

    Raises:
        ConfigError: the server cannot be reached, or refuses the key.
    """

    def __init__(self, server: ChatServer, settings: Settings, display: ChatDisplay) -> None:
        self._url = f"{server.url}".rstrip("/").removesuffix("/v1")
        self._key = server.key
        self._seed = settings.seed
        self._fields = _fields(settings)
        if display.variables is not None:
            self._fields["chat_template_kwargs"] = display.variables
        self._usage: Mapping[str, Any] = {}
        self._seconds = 0.0
        self._drawn = 0
        self.reason: str | None = None
        self.name = _first_name(self._url, b"".join(self._lines("/v1/models")))

    def check(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Nothing is sent before it is to be answered."""

    def answer(self, messages: Sequence[Mapping[str, Any]], screen: Screen) -> Generator[str]:
        self.reason, self._usage, self._drawn, began = None, {}, drawn(self._seed), perf_counter()
        body = {
            "model": self.name, "messages": list(messages), "seed": self._drawn, "stream": True,
            "stream_options": {"include_usage": True}, **self._fields,
        }  # fmt: skip
        with closing(self._lines("/v1/chat/completions", body)) as lines:
            for chunk in _chunks(lines):
                self._usage = chunk if chunk.get("usage") else self._usage
                for choice in chunk["choices"]:
                    self.reason = choice["finish_reason"] or self.reason
                    text = choice["delta"].get("content") or ""
                    screen.write(text)
                    yield text
                self._seconds = perf_counter() - began

    @property
    def remark(self) -> str:
        tokens = self._usage.get("usage", {}).get("completion_tokens", 0)
        return remark_of(tokens, self._seconds, None, self.reason, self._drawn)

    def _lines(self, path: str, body: Mapping[str, Any] | None = None) -> Generator[bytes]:
        """The lines of a response; what the server refuses is an error with its words."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        data = None if body is None else json.dumps(body).encode()
        try:
            with urlopen(Request(self._url + path, data, headers), timeout=_SECONDS) as response:
                yield from response
        except HTTPError as error:
            with error:
                message = _message(error.read())
            kind = ConfigError if error.code < 500 else ModelError
            raise kind(f"the server answers {error.code}: {message}") from None
        except (URLError, HTTPException, OSError, ValueError) as error:
            raise ConfigError(f"the server {self._url} cannot be reached ({error}): check --url") from None


def _fields(settings: Settings) -> dict[str, Any]:
    """The given settings, in the words of the interface."""
    found: dict[str, Any] = {}
    for part, kind in ((settings.sampling, Sampling), (settings.limits, Limits)):
        names = [f.name for f in fields(kind) if f.name in settings.given and f.name not in NO_PLAIN_OPTION]
        found |= {_RENAMED.get(name, name): getattr(part, name) for name in names}
    if settings.sampling.logit_bias:
        found["logit_bias"] = {str(token): value for token, value in settings.sampling.logit_bias.items()}
    return found


def _first_name(url: str, body: bytes) -> str:
    try:
        return str(json.loads(body)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise ConfigError(f"{url} is no server with OpenAI's interface: check --url") from None


def _chunks(lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """The chunks of a stream; raises a ModelError for one that is an error, or without its end."""
    for line in lines:
        if line.startswith(b"data: [DONE]"):
            return
        if line.startswith(b"data: "):
            chunk = json.loads(line.removeprefix(b"data: "))
            if "error" in chunk:
                raise ModelError(f"the server could not go on: {chunk['error'].get('message')}")
            yield chunk
    raise ModelError("the server has cut its answer: look at its log")


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return shown(body.decode("utf-8", "replace"))
