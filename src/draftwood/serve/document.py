"""The OpenAPI document of the server, made from the fields of requests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic.json_schema import models_json_schema

from draftwood import __version__
from draftwood.serve.dialects.messages import CountBody, MessagesBody
from draftwood.serve.dialects.ollama import OllamaChatBody, OllamaGenerateBody, ShowBody
from draftwood.serve.dialects.responses import ResponsesBody
from draftwood.serve.fields import Body
from draftwood.serve.other_fields import OTHER_FIELDS
from draftwood.serve.schemas import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from draftwood.serve.settings import ServeOptions

_POSTS: dict[str, tuple[type[Body], str]] = {
    "/v1/chat/completions": (ChatBody, "The next answer of a chat."),
    "/v1/completions": (CompletionBody, "What follows a prompt."),
    "/tokenize": (TokenizeBody, "Token ids of a prompt or of a chat."),
    "/detokenize": (DetokenizeBody, "The text of token ids."),
}
_OTHERS: dict[str, tuple[type[Body], str]] = {
    "/v1/responses": (ResponsesBody, "OpenAI's Responses, without a store."),
    "/v1/messages": (MessagesBody, "Anthropic's Messages."),
    "/v1/messages/count_tokens": (CountBody, "Tokens of a message's prompt."),
    "/api/chat": (OllamaChatBody, "Ollama's chats."),
    "/api/generate": (OllamaGenerateBody, "Ollama's prompts."),
    "/api/show": (ShowBody, "The model, for Ollama's clients."),
}
_GETS = {
    "/docs": "This document, as a page.",
    "/version": "The version of the server.",
    "/api/tags": "The model, for Ollama's clients.",
    "/api/version": "The version, for Ollama's clients.",
    "/v1/models": "The model.",
    "/health": "200 while the server takes requests.",
    "/metrics": "Metrics for Prometheus.",
}
_TRACES = {
    "/v1/traces/{id}": ("The trace of a response, when its text has ended; as events, its rounds as they come.", ()),
    "/v1/traces/{id}/rounds/{round}": ("A round, drawn and as text.", ("width",)),
    "/v1/traces/{id}/race": ("The race of two texts of one prompt.", ("plain", "width")),
}
_WHOLE = ("application/json",)
_STREAMED = ("application/json", "text/event-stream")
_STATUSES = {
    "400": "A value that cannot be honoured.",
    "401": "No key, or a wrong one.",
    "404": "Another model; a trace that is not kept.",
    "408": "A request that took too long to arrive.",
    "413": "A request that is too large.",
    "429": "A full queue; Retry-After says when to ask again.",
    "500": "A text that could not be written.",
    "503": "The server takes no requests.",
}


def document(names: Sequence[str], options: ServeOptions) -> dict[str, Any]:
    """The document of a server whose model has these names."""
    refs, schemas = models_json_schema(
        [(kind, "validation") for kind, _ in (*_POSTS.values(), *_OTHERS.values())],
        ref_template="#/components/schemas/{model}",
    )
    for kind, _ in _POSTS.values():
        fields = schemas["$defs"][kind.__name__]["properties"]
        fields["model"] = {"type": ["string", "null"]} if options.any_model else {"enum": [*names, None]}
        fields |= {name: _other(name) for name in OTHER_FIELDS}
    for name, made in schemas["$defs"].items():
        chats = name not in {kind.__name__ for kind, _ in _OTHERS.values()}  # the others have the fields of chats too
        if chats and options.unknown_fields == "refuse" and made.get("additionalProperties") is True:
            made["additionalProperties"] = False
    schemas["$defs"]["Error"] = _error()
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    errors = {status: {"description": text, **error} for status, text in _STATUSES.items()}
    paths: dict[str, Any] = {}
    for path, (kind, text) in (_POSTS | _OTHERS).items():
        body = {"required": True, "content": {"application/json": {"schema": refs[kind, "validation"]}}}
        bad = {status: {"description": said} for status, said in _STATUSES.items()} if path in _OTHERS else errors
        media = _WHOLE if path.startswith(("/tokenize", "/detokenize")) else _STREAMED
        paths[path] = {"post": {**_route(text, media, bad), "requestBody": body}}
    for path, text in _GETS.items():
        media = {"/metrics": ("text/plain",), "/docs": ("text/html",)}.get(path, _WHOLE)
        paths[path] = {"get": _route(text, media, {status: errors[status] for status in ("401", "503")})}
    for path, (text, names) in _TRACES.items():
        made = _route(text, _WHOLE if names else _STREAMED, {status: errors[status] for status in ("400", "401", "404")})
        paths[path] = {"get": {**made, "parameters": _parameters(path, names)}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Draftwood", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas["$defs"]},
    }


def _route(text: str, media: Sequence[str], errors: Mapping[str, Any]) -> dict[str, Any]:
    """What a route does, in which types, and its other answers."""
    content: dict[str, Any] = {kind: {} for kind in media}
    return {"summary": text, "responses": {"200": {"description": text, "content": content}, **errors}}


def _parameters(path: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """Those of a path, and those after it."""
    inside = [(name, "path") for name in re.findall(r"{(\w+)}", path)]
    after = [(name, "query") for name in names]
    return [
        {"name": name, "in": where, "required": where == "path", "schema": {"type": "string"}}
        for name, where in inside + after
    ]


def _other(name: str) -> dict[str, Any]:
    """A field that the server does not have: what it takes of it."""
    other = OTHER_FIELDS[name]
    if other.neutral is None:
        return {"description": f"Without effect: {other.why}."}
    return {"description": f"Refused otherwise: {other.why}.", "enum": [*other.neutral, None]}


def _error() -> dict[str, Any]:
    text: dict[str, Any] = {"type": "string"}
    maybe = {"type": ["string", "null"]}
    inner = {"message": text, "type": text, "param": maybe, "code": maybe}
    return {
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"type": "object", "required": list(inner), "properties": inner}, "request_id": text},
    }
