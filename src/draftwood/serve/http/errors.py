"""Errors of the server, in the shape of the interface whose route was called."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Final, final

from starlette.responses import JSONResponse

from draftwood.core.errors import CacheError, ConfigError, DraftwoodError
from draftwood.serve.http.log import ENTRY

_LOG = logging.getLogger(__name__)
RETRY_SECONDS: Final = 1
"""``Retry-After`` of a full queue: rows end every few seconds."""
_ANTHROPIC: Final = {404: "not_found_error", 413: "request_too_large", 500: "api_error", 503: "overloaded_error"}
_KINDS: Final = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error", 503: "service_unavailable_error"}
_SETTINGS: Final = frozenset(  # the fields with which the engine's messages may begin
    {"prompt", "messages", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"}
    | {"frequency_penalty", "logit_bias", "seed", "stop", "stop_token_ids", "max_tokens"}
    | {"chat_template_kwargs", "continue_final_message"}
)


@final
@dataclass(eq=False)
class ApiError(Exception):
    """A request that is refused, or an answer that failed.

    Attributes:
        status: of HTTP.
        message: one sentence.
        param: the field at fault, if there is one.
        code: a short name for programs.
        headers: of the response.
    """

    status: int
    message: str
    _: KW_ONLY
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] | None = None

    def __post_init__(self) -> None:
        self.message = " ".join(self.message.split())
        super().__init__(self.message)

    def renamed(self, names: Mapping[str, str]) -> ApiError:
        """The same, where the field at fault has another name; a message about a field's value begins with it."""
        name, value = names.get(self.param or "", self.param), f"{self.param} is "
        says = f"{name} is {self.message.removeprefix(value)}" if self.message.startswith(value) else self.message
        return replace(self, param=name, message=says)

    def to_json(self) -> dict[str, Any]:
        """In OpenAI's shape, with the id of the request; all four keys of the error are always there."""
        kind, entry = _KINDS.get(self.status, "invalid_request_error"), ENTRY.get()
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        if entry is None:
            return {"error": error}
        entry.error = self.code
        return {"error": error, "request_id": entry.id}


def bad(message: str, *, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """A refused value."""
    return ApiError(400, message, param=param, code=code)


def refused(error: Exception, param: str | None = None) -> ApiError:
    """The error of a request that the engine refuses. Most of its messages begin with the name of the setting at fault.

    ``param`` is the field at fault where they do not.
    """
    if isinstance(error, ApiError):
        return error
    if not isinstance(error, CacheError | ConfigError):
        _LOG.error("a request failed", exc_info=error)
        return failed(error)
    message = str(error).replace("max_new_tokens", "max_tokens")
    first = message.partition(" ")[0]
    code = "context_length_exceeded" if isinstance(error, CacheError) else "invalid_value"
    return bad(message, param=first if first in _SETTINGS else param, code=code)


def failed(error: BaseException) -> ApiError:
    """The error of a text that could not be written; the server's log has more."""
    what = str(error) if isinstance(error, DraftwoodError) else type(error).__name__
    return ApiError(500, f"the server could not write this text ({what}): its log says more", code="internal_error")


def unavailable(message: str) -> ApiError:
    """The server takes no requests."""
    return ApiError(503, message, code="unavailable", headers={"Retry-After": str(RETRY_SECONDS)})


def error_response(error: ApiError, path: str) -> JSONResponse:
    """The response of a refused or failed request for a path."""
    found = error.to_json()
    if path.startswith("/v1/messages"):
        found = in_anthropic(found, error.status)
    elif path.startswith("/api/"):
        found = in_ollama(found)
    return JSONResponse(found, error.status, error.headers)


def in_anthropic(error: dict[str, Any], status: int) -> dict[str, Any]:
    """An error of OpenAI's shape in Anthropic's."""
    kind, message, code = (error["error"][name] for name in ("type", "message", "code"))
    said = {"type": _ANTHROPIC.get(status, kind), "message": message}
    return {**error, "type": "error", "error": said | ({"details": {"error_code": code}} if code else {})}


def in_ollama(error: dict[str, Any]) -> dict[str, Any]:
    """An error of OpenAI's shape in Ollama's."""
    return {**error, "error": error["error"]["message"]}
