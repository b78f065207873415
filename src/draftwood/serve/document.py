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
_GETS = {  # with the names of a query
    "/docs": "This document, as a page.",
    "/version": "The version of the server.",
    "/api/tags": "The model, for Ollama's clients.",
    "/api/version": "The version, for Ollama's clients.",
    "/v1/models": "The model.",
    "/health": "200 while the server takes requests.",
    "/metrics": "Metrics for Prometheus.",
    "/v1/traces/{id}": "The trace of a response, when its text has ended; as events, its rounds as they come.",
    "/v1/traces/{id}/rounds/{round}?width": "A round, drawn and as text.",
    "/v1/traces/{id}/race?plain&width": "The race of two texts of one prompt.",
}
_FAILED = {"description": "An error: docs/serve.md says which status means what."}


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
    error = _FAILED | {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    paths: dict[str, Any] = {}
    for path, (kind, text) in (_POSTS | _OTHERS).items():
        body = {"required": True, "content": {"application/json": {"schema": refs[kind, "validation"]}}}
        failed = _FAILED if path in _OTHERS else error
        paths[path] = {"post": {**_route(text, failed), "requestBody": body}}
    for given, text in _GETS.items():
        path, _, query = given.partition("?")
        paths[path] = {"get": {**_route(text, error), "parameters": _parameters(path, query)}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Draftwood", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas["$defs"]},
    }


def _route(text: str, failed: Mapping[str, Any]) -> dict[str, Any]:
    return {"summary": text, "responses": {"200": {"description": text}, "default": failed}}


def _parameters(path: str, query: str) -> list[dict[str, Any]]:
    inside = [(name, "path") for name in re.findall(r"{(\w+)}", path)]
    after = [(name, "query") for name in re.findall(r"\w+", query)]
    return [
        {"name": name, "in": where, "required": where == "path", "schema": {"type": "string"}}
        for name, where in inside + after
    ]


def _other(name: str) -> dict[str, Any]:
    """A field that the server does not have: what it takes of it."""
    other = OTHER_FIELDS[name]
    if other.neutral is None:
        return {"description": "Without effect."}
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
