"""The routes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar, final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from draftwood.core.errors import DraftwoodError
from draftwood.sampling.settings import Sampling
from draftwood.serve.answers import Answer
from draftwood.serve.bodies import parse, read_body
from draftwood.serve.checked import checked
from draftwood.serve.document import document
from draftwood.serve.errors import ApiError, refused, unavailable
from draftwood.serve.keys import SALT, Keys
from draftwood.serve.metrics import CONTENT_TYPE
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
from draftwood.serve.streams import AnswerResponse, error_response
from draftwood.serve.trace_routes import TraceRoutes
from draftwood.serve.unread import UnreadBodies

_LOG = logging.getLogger(__name__)
B = TypeVar("B", bound=RouteBody)
S = TypeVar("S", bound=Settings)


@final
class Routes:
    """The handlers of all routes."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def chat(self, request: Request) -> Response:
        return await self._texts(request, ChatBody, self._service.preparation.chat, ChatShape)

    async def completions(self, request: Request) -> Response:
        return await self._texts(request, CompletionBody, self._service.preparation.completion, CompletionShape)

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

    async def _texts(
        self, request: Request, kind: type[S], prepare: Callable[[S], Prepared], shape: type[Shape]
    ) -> Response:
        body, remarks = await self._body(request, kind)
        prepared = await asyncio.to_thread(prepare, body)
        salt = "" if self._service.options.share_prefixes else request.scope.get(SALT, "")
        requests = [replace(one, cache_salt=salt) for one in prepared.requests]
        prepared = replace(prepared, requests=requests, warnings=[*remarks, *prepared.warnings])
        echoes = await self._service.scored(prepared.echoes)
        made = shape(self._service.name(body.model), self._service.texts, echoes, token_ids=bool(body.return_token_ids))
        trace = await asyncio.to_thread(self._service.traces.begin, prepared) if body.trace else None
        answer = Answer(self._service.scheduler, prepared, trace)
        if trace is not None:
            self._service.traces.keep(made.id, trace)
        return AnswerResponse(answer, made, body.stream_options, stream=bool(body.stream))

    async def _body(self, request: Request, kind: type[B]) -> tuple[B, list[str]]:
        """The body of a request, and remarks about what is ignored."""
        data, unknown = await read_body(request), self._service.options.unknown_fields
        body, remarks = await asyncio.to_thread(lambda: checked(kind, parse(data), unknown))
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
            "default_generation_settings": {"params": _preset(service.pair.sampling)},
        }


def _preset(own: Sampling) -> dict[str, float]:
    """How texts are drawn where a request does not say."""
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    return {name: getattr(own, name) for name in names} | ({"temperature": 1.0} if own.greedy else {})


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
            route("/v1/chat/completions", routes.chat, "POST"),
            route("/v1/completions", routes.completions, "POST"),
            route("/v1/models", routes.models),
            route("/v1/models/{model:path}", routes.model),
            route("/tokenize", routes.tokenize, "POST"),
            route("/detokenize", routes.detokenize, "POST"),
            route("/health", routes.health),
            route("/metrics", routes.metrics),
            route("/openapi.json", routes.openapi),
            route("/", traces.page),
            route("/v1/traces/{id}", traces.trace),
            route("/v1/traces/{id}/race", traces.race),
            route("/v1/traces/{id}/rounds/{round}", traces.round),
        ],
        middleware=[Middleware(RequestLog), Middleware(UnreadBodies), Middleware(Keys, keys=keys)],
        exception_handlers={
            ApiError: _refused,
            DraftwoodError: _refused,
            ClientDisconnect: _client_gone,
            HTTPException: _http_error,
        },
        lifespan=running,
    )


async def _refused(request: Request, error: Exception) -> Response:
    return error_response(refused(error))


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _http_error(request: Request, error: Exception) -> Response:
    """No such path, or another method."""
    assert isinstance(error, HTTPException)
    path = f"{request.method} {request.url.path}"
    message = f"there is no {path}: GET /openapi.json lists what there is"
    return error_response(ApiError(error.status_code, message, code="not_found", headers=dict(error.headers or {})))
