"""The OpenAPI document of the server, made from its routes and the fields of their requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final, final

from pydantic.json_schema import models_json_schema
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from draftwood import __version__
from draftwood.serve.http.fields import OTHER_FIELDS, Body
from draftwood.serve.http.settings import ServeOptions
from draftwood.serve.openai.schemas import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from draftwood.serve.openai.streams import EVENTS

LEASES: Final = "draftwood.leases"
"""The key of a request's scope: what ends with it."""
UNREAD_SECONDS: Final = 60.0
"""After so long a client that has not read 48 KiB of what waits for it counts as gone."""
_OWN: Final[tuple[type[Body], ...]] = (ChatBody, CompletionBody, TokenizeBody, DetokenizeBody)
_ERRORS: Final = {"/v1/messages": "MessagesError", "/api/": "OllamaError"}
_FAILED: Final = {"description": "An error: docs/serve.md says which status means what."}


@final
class Described(Route):
    """A route and what the document says of it.

    Args:
        summary: one sentence; empty for a route that the document leaves out.
        body: of a POST; None for a GET.
        query: names in the query of a GET.
    """

    def __init__(
        self, path: str, handler: Any, summary: str = "", body: type[Body] | None = None, *, query: Sequence[str] = ()
    ) -> None:
        super().__init__(path, handler, methods=["GET" if body is None else "POST"])
        self.summary, self.body, self.query = summary, body, query

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, at whose end the models that it has taken may go. A client that reads nothing for long has gone:
        others may wait for a model whose place is that of its own."""

        async def send_soon(message: Message) -> None:
            try:
                async with asyncio.timeout(UNREAD_SECONDS):
                    await send(message)
            except TimeoutError:
                raise ClientDisconnect from None

        with ExitStack() as scope[LEASES], suppress(ClientDisconnect):
            await super().handle(scope, receive, send_soon)

    @property
    def media(self) -> list[str]:
        if kind := {"/docs": "text/html", "/metrics": "text/plain"}.get(self.path):
            return [kind]
        streams = self.path == "/v1/traces/{id}" or (self.body is not None and "stream" in self.body.model_fields)
        lines = "application/x-ndjson" if self.path.startswith("/api/") else EVENTS
        return ["application/json", lines] if streams else ["application/json"]


def document(routes: Iterable[BaseRoute], names: Sequence[str], options: ServeOptions) -> dict[str, Any]:
    """The document of a server with these routes, whose models have these names."""
    described = [route for route in routes if isinstance(route, Described) and route.summary]
    bodies = [route.body for route in described if route.body is not None]
    refs, schemas = models_json_schema(
        [(kind, "validation") for kind in bodies], ref_template="#/components/schemas/{model}"
    )
    for kind in _OWN:
        fields = schemas["$defs"][kind.__name__]["properties"]
        fields["model"] = {"type": ["string", "null"]} if options.any_model else {"enum": [*names, None]}
        fields |= {name: _other(name) for name in OTHER_FIELDS}
    others = {kind.__name__ for kind in bodies if kind not in _OWN}  # which have the fields of chats too
    for name, made in schemas["$defs"].items():
        if name not in others and options.unknown_fields == "refuse" and made.get("additionalProperties") is True:
            made["additionalProperties"] = False
    schemas["$defs"] |= _errors()
    paths: dict[str, Any] = {}
    for route in described:
        error = next((name for start, name in _ERRORS.items() if route.path.startswith(start)), "Error")
        failed = _FAILED | {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{error}"}}}}
        good = {"description": route.summary, "content": {kind: dict[str, Any]() for kind in route.media}}
        found = {"summary": route.summary, "responses": {"200": good, "default": failed}}
        if route.body is None:
            paths[route.path] = {"get": {**found, "parameters": _parameters(route)}}
        else:
            content = {"application/json": {"schema": refs[route.body, "validation"]}}
            paths[route.path] = {"post": {**found, "requestBody": {"required": True, "content": content}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Draftwood", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas["$defs"]},
    }


def _parameters(route: Described) -> list[dict[str, Any]]:
    found = [(name, "path") for name in route.param_convertors] + [(name, "query") for name in route.query]
    return [{"name": name, "in": where, "required": where == "path", "schema": {"type": "string"}} for name, where in found]


def _other(name: str) -> dict[str, Any]:
    """A field that the server does not have: what it takes of it."""
    other = OTHER_FIELDS[name]
    if other.neutral is None:
        return {"description": "Without effect."}
    return {"description": f"Refused otherwise: {other.why}.", "enum": [*other.neutral, None]}


def _errors() -> dict[str, Any]:
    """The schemas of errors, in the shapes of :mod:`draftwood.serve.http.errors`."""
    text: dict[str, Any] = {"type": "string"}
    maybe = {"type": ["string", "null"]}
    known = _object({"message": text, "type": text, "param": maybe, "code": maybe})
    anthropic = _object({"message": text, "type": text}, details=_object({"error_code": text}))
    return {
        "Error": _object({"error": known}, request_id=text),
        "MessagesError": _object({"error": anthropic, "type": {"const": "error"}}, request_id=text),
        "OllamaError": _object({"error": text}, request_id=text),
    }


def _object(always: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The schema of an object with these fields, and sometimes more."""
    return {"type": "object", "required": list(always), "properties": always | more, "additionalProperties": False}
