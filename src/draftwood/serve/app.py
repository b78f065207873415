"""The routes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar, final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from draftwood.core.errors import DraftwoodError
from draftwood.serve.answers import Answer
from draftwood.serve.bodies import read_body
from draftwood.serve.checked import checked
from draftwood.serve.dialects.routes import DialectRoutes
from draftwood.serve.document import document
from draftwood.serve.errors import ApiError, error_response, refused, unavailable
from draftwood.serve.keys import SALT, Keys
from draftwood.serve.metrics import CONTENT_TYPE
from draftwood.serve.page import DOCS_POLICY, docs
from draftwood.serve.prepare import Prepared
from draftwood.serve.request_log import RequestLog
from draftwood.serve.schemas import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    RouteBody,
    Settings,
    TokenizeBody,
)
from draftwood.serve.service import Service
from draftwood.serve.shapes import ChatShape, CompletionShape, Shape
from draftwood.serve.streams import AnswerResponse, Wire
from draftwood.serve.trace_routes import TraceRoutes

CHATS: Final = "/v1/chat/completions"
_LOG = logging.getLogger(__name__)
B = TypeVar("B", bound=RouteBody)
S = TypeVar("S", bound=Settings)


@final
class Routes:
    """The handlers of all routes."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def texts(self, request: Request) -> Response:
        """Chats and completions."""
        return await self.answered(request, request.url.path, await read_body(request), Wire())

    async def answered(self, request: Request, path: str, data: Mapping[str, Any], wire: Wire) -> Response:
        """The response to the body of a chat or of a completion, by its path."""
        if path == CHATS:
            return await self._texts(request, data, ChatBody, self._service.preparation.chat, ChatShape, wire)
        return await self._texts(request, data, CompletionBody, self._service.preparation.completion, CompletionShape, wire)

    async def counted(self, request: Request, data: Mapping[str, Any]) -> int:
        """The tokens of a chat's prompt."""
        body, _ = await self._checked(request, ChatBody, data)
        return (await asyncio.to_thread(self._service.preparation.chat, body)).prompt_tokens

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model(name) for name in self._service.names]})

    async def model(self, request: Request) -> Response:
        return JSONResponse(self._model(self._service.name(request.path_params["model"])))

    async def tokenize(self, request: Request) -> Response:
        body, remarks = await self._body(request, TokenizeBody)
        tokens = await asyncio.to_thread(self._service.preparation.tokens, body)
        found = {"count": len(tokens), "max_model_len": self._service.preparation.max_length, "tokens": tokens}
        return JSONResponse(found | _warnings(remarks))

    async def detokenize(self, request: Request) -> Response:
        body, remarks = await self._body(request, DetokenizeBody)
        found = {"prompt": await asyncio.to_thread(self._service.preparation.text, body.tokens)}
        return JSONResponse(found | _warnings(remarks))

    async def health(self, request: Request) -> Response:
        state = self._service.scheduler.state
        if state != "ready":
            raise unavailable(f"the server is {state}")
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        return Response(self._service.metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(document(self._service.names, self._service.options))

    async def docs(self, request: Request) -> Response:
        html = docs(document(self._service.names, self._service.options))
        return HTMLResponse(html, headers={"Content-Security-Policy": DOCS_POLICY, "X-Content-Type-Options": "nosniff"})

    async def _texts(
        self, request: Request, data: Mapping[str, Any], kind: type[S], prepare: Callable[[S], Prepared],
        shape: type[Shape], wire: Wire,
    ) -> Response:  # fmt: skip
        body, remarks = await self._checked(request, kind, data)
        prepared = await asyncio.to_thread(prepare, body)
        salt = "" if self._service.options.share_prefixes else request.scope.get(SALT, "")
        requests = [replace(one, cache_salt=salt) for one in prepared.requests]
        prepared = replace(prepared, requests=requests, warnings=[*remarks, *prepared.warnings])
        prepared = replace(prepared, echoes=await self._service.scored(prepared.echoes))
        made = shape(self._service.name(body.model), self._service.texts, prepared, token_ids=bool(body.return_token_ids))
        made.id = wire.named(made.id)
        trace = await asyncio.to_thread(self._service.traces.begin, prepared) if body.trace else None
        answer = Answer(self._service.scheduler, prepared, trace)
        if trace is not None:
            self._service.traces.keep(made.id, trace)
        return AnswerResponse(answer, made, body.stream_options, wire, stream=bool(body.stream))

    async def _body(self, request: Request, kind: type[B]) -> tuple[B, list[str]]:
        """The body of a request, and remarks about what is ignored."""
        return await self._checked(request, kind, await read_body(request))

    async def _checked(self, request: Request, kind: type[B], data: Mapping[str, Any]) -> tuple[B, list[str]]:
        """The fields of a body, and remarks about what is ignored."""
        body, remarks = await asyncio.to_thread(checked, kind, data, self._service.options.unknown_fields)
        self._service.name(body.model)
        for remark in remarks:
            _LOG.warning("%s: %s", request.url.path, remark)
        return body, remarks

    def _model(self, name: str) -> dict[str, Any]:
        service = self._service
        return {
            "id": name,
            "object": "model",
            "created": service.created,
            "owned_by": "draftwood",
            "max_model_len": service.preparation.max_length,
            "chat_template": service.preparation.chats,
            "methods": service.preparation.drafting.methods,
            "nodes": service.preparation.drafting.nodes,
            **service.facts,
        }


def _warnings(remarks: Sequence[str]) -> dict[str, Any]:
    return {"warnings": list(remarks)} if remarks else {}


def make_app(service: Service, keys: Sequence[str] = ()) -> Starlette:
    """The application; it starts the scheduler, and stops it at the end."""
    routes, traces = Routes(service), TraceRoutes(service.traces)

    @asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[None]:
        service.scheduler.start()
        yield
        await asyncio.to_thread(service.scheduler.stop)

    def route(path: str, handler: Callable[[Request], Awaitable[Response]], method: str = "GET") -> Route:
        return Route(path, handler, methods=[method])

    return Starlette(
        routes=[
            route(CHATS, routes.texts, "POST"),
            route("/v1/completions", routes.texts, "POST"),
            *DialectRoutes(service, routes.answered, routes.counted).routes(),
            route("/v1", routes.models),
            route("/v1/models", routes.models),
            route("/v1/models/{model:path}", routes.model),
            route("/tokenize", routes.tokenize, "POST"),
            route("/detokenize", routes.detokenize, "POST"),
            route("/health", routes.health),
            route("/metrics", routes.metrics),
            route("/openapi.json", routes.openapi),
            route("/docs", routes.docs),
            route("/", traces.page),
            route("/v1/traces/{id}", traces.trace),
            route("/v1/traces/{id}/race", traces.race),
            route("/v1/traces/{id}/rounds/{round}", traces.round),
        ],
        middleware=[Middleware(RequestLog), Middleware(Keys, keys=keys)],
        exception_handlers={
            ApiError: _refused,
            DraftwoodError: _refused,
            ClientDisconnect: _client_gone,
            HTTPException: _http_error,
        },
        lifespan=running,
    )


async def _refused(request: Request, error: Exception) -> Response:
    return error_response(refused(error), request.url.path)


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _http_error(request: Request, error: Exception) -> Response:
    """No such path, or another method."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    why = "this server's models make no embeddings" if "embed" in path else "GET /openapi.json lists what there is"
    message, headers = f"there is no {request.method} {path}: {why}", dict(error.headers or {})
    return error_response(ApiError(error.status_code, message, code="not_found", headers=headers), path)
