"""The routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from time import perf_counter_ns
from typing import Any, TypeVar, final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from draftwood import __version__
from draftwood.serve.decoding.metrics import CONTENT_TYPE, render
from draftwood.serve.dialects.dialect import CHATS, Dialect, Remark
from draftwood.serve.dialects.messages import Messages, MessagesBody
from draftwood.serve.dialects.ollama import Ollama, OllamaChatBody, OllamaGenerateBody
from draftwood.serve.dialects.ollama_model import OllamaModels, PullBody, ShowBody
from draftwood.serve.dialects.responses import Responses, ResponsesBody
from draftwood.serve.document import LEASES, Described, document
from draftwood.serve.http.errors import ApiError, bad, error_response, unavailable
from draftwood.serve.http.middleware import SALT, Keys, RequestLog
from draftwood.serve.openai.answers import Answer
from draftwood.serve.openai.bodies import checked, read, read_body
from draftwood.serve.openai.schemas import ChatBody, CompletionBody, DetokenizeBody, RouteBody, TokenizeBody
from draftwood.serve.openai.shapes import ChatShape, CompletionShape
from draftwood.serve.openai.streams import Shape
from draftwood.serve.page import DOCS_POLICY, docs
from draftwood.serve.page.traces import Traces
from draftwood.serve.registry import Registry
from draftwood.serve.service import Service

B = TypeVar("B", bound=RouteBody)


@final
class Routes:
    """The handlers of all routes."""

    def __init__(self, registry: Registry) -> None:
        self._registry, self.traces = registry, Traces(registry.options.max_traces)

    async def texts(self, request: Request) -> Response:
        """Chats and completions."""
        return await self._answered(request, request.url.path, await read_body(request))

    def dialect(self, path: str, kind: type[B], dialect: Callable[[B], Dialect], summary: str) -> Described:
        """The route of another interface: it translates a request, and has the answer translated back."""

        async def answer(request: Request) -> Response:
            return await self._translated(request, await asyncio.to_thread(dialect, await read(request, kind)))

        return Described(path, answer, summary, kind)

    def ollama(self, path: str, kind: type[OllamaChatBody] | type[OllamaGenerateBody], summary: str) -> Described:
        """The same for Ollama: a request may also just load or unload a model, and prompts need no chat template."""

        async def answer(request: Request) -> Response:
            body, began = await read(request, kind), perf_counter_ns()
            if body.unloads:
                self._registry.dismiss(body.model)
            service = None if body.unloads else await self._service(request, body, body.kept)
            chats = service is None or service.preparation.chats
            made = await asyncio.to_thread(Ollama, body, chats, perf_counter_ns() - began)
            if body.empty:
                return JSONResponse(made.without_text(self._registry.find(body.model)[0]))
            return await self._translated(request, made, service)

        return Described(path, answer, summary, kind)

    async def _translated(self, request: Request, made: Dialect, service: Service | None = None) -> Response:
        with _errors_of(made):
            return await self._answered(request, made.path, made.chat, made, service)

    def count(self, path: str, kind: type[B], dialect: Callable[[B], Dialect], **more: str) -> Described:
        """The route that counts the tokens of a prompt in another interface."""

        async def answer(request: Request) -> Response:
            made = await asyncio.to_thread(dialect, await read(request, kind))
            with _errors_of(made):
                body, _ = await self._checked(ChatBody, made.chat, made.remarks)
                preparation = (await self._service(request, body)).preparation
                prompt = await asyncio.to_thread(preparation.chat_prompt, body.messages, body)
            return JSONResponse({**more, "input_tokens": len(prompt)})

        return Described(path, answer, "Tokens of a prompt.", kind)

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": __version__})

    async def models(self, request: Request) -> Response:
        found = [model.listed(name) for model in self._registry.models for name in model.names]
        ends = {"first_id": found[0]["id"], "last_id": found[-1]["id"]}  # of Anthropic's page
        return JSONResponse({"object": "list", "data": found, "has_more": False, **ends})

    async def model(self, request: Request) -> Response:
        name, model = self._registry.find(request.path_params["model"])
        return JSONResponse(model.listed(name))

    async def tokenize(self, request: Request) -> Response:
        body, remarks = await self._checked(TokenizeBody, await read_body(request))
        preparation = (await self._service(request, body)).preparation
        tokens = await asyncio.to_thread(preparation.tokens, body)
        found = {"count": len(tokens), "max_model_len": preparation.max_length, "tokens": tokens}
        return JSONResponse(found | _warnings(remarks))

    async def detokenize(self, request: Request) -> Response:
        body, remarks = await self._checked(DetokenizeBody, await read_body(request))
        preparation = (await self._service(request, body)).preparation
        found = {"prompt": await asyncio.to_thread(preparation.text, body.tokens)}
        return JSONResponse(found | _warnings(remarks))

    async def health(self, request: Request) -> Response:
        if (state := self._registry.state) != "ready":
            raise unavailable(f"the server is {state}")
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        return Response(render(self._registry.models[0].metrics), headers={"Content-Type": CONTENT_TYPE})

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(document(request.app.routes, self._registry.names, self._registry.options))

    async def docs(self, request: Request) -> Response:
        html = docs(document(request.app.routes, self._registry.names, self._registry.options))
        return HTMLResponse(html, headers={"Content-Security-Policy": DOCS_POLICY, "X-Content-Type-Options": "nosniff"})

    async def _service(self, request: Request, body: RouteBody, keep: float | None = None) -> Service:
        """What serves the model of a request, at least until its answer has ended, and for ``keep`` seconds after it.

        A request takes it once: a second time it would wait for a model that is to go, which waits for the request.
        """
        return await self._registry.take(request.scope[LEASES], body.model, keep)

    async def _answered(
        self, request: Request, path: str, data: Mapping[str, Any], dialect: Dialect | None = None,
        service: Service | None = None,
    ) -> Response:  # fmt: skip
        """The response to the body of a chat or of a completion, by its path, in OpenAI's shape or in a dialect's. The
        service is that of its model, where the request has taken it already."""
        chats, left = path == CHATS, dialect.remarks if dialect else ()
        body: Any
        body, remarks = await self._checked(ChatBody if chats else CompletionBody, data, left)
        service, key = service or await self._service(request, body), request.scope.get(SALT, "")
        shape: Shape = dialect or (ChatShape if chats else CompletionShape)(body)
        prepare: Callable[[Any, str], Answer] = service.preparation.completion
        if chats:
            prepare = partial(service.preparation.chat, whole_calls=shape.whole_calls, truncates=shape.truncates)
        answer = await asyncio.to_thread(prepare, body, key)
        answer.warnings = [*remarks, *answer.warnings]
        await service.score(answer)
        if body.trace:
            self.traces.check(answer)
            await asyncio.to_thread(service.trace, answer)
        answer.start(service.scheduler, service.texts)
        shape.open(answer, self._registry.find(body.model)[0], service.texts, stream=bool(body.stream))
        if answer.trace is not None:
            self.traces.keep(shape.id, answer.trace)
        return shape

    async def _checked(self, kind: type[B], data: Mapping[str, Any], left: Sequence[Remark] = ()) -> tuple[B, list[str]]:
        """The fields of a body, and remarks about what is ignored, with those on what was left out before."""
        rule = self._registry.options.unknown_fields
        if left and rule == "refuse":
            field, says, _ = left[0]
            raise bad(f"{field} {says}: leave it out", param=field, code="unsupported_parameter")
        body, remarks = await asyncio.to_thread(checked, kind, data, rule)
        return body, [*map(str, left), *remarks]


@contextmanager
def _errors_of(made: Dialect) -> Iterator[None]:
    """A context whose errors name the fields of the request's interface."""
    try:
        yield
    except ApiError as error:
        raise error.renamed(made.names) from error


def _warnings(remarks: Sequence[str]) -> dict[str, Any]:
    return {"warnings": list(remarks)} if remarks else {}


def make_app(registry: Registry, keys: Sequence[str] = ()) -> Starlette:
    """The application; it starts to write, and ends all that at its end."""

    @asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[None]:
        registry.start()
        yield
        await registry.stop()

    return Starlette(
        routes=_routes(registry),
        middleware=[*_pages(registry.options.cors_origin), Middleware(RequestLog), Middleware(Keys, keys=keys)],
        exception_handlers={HTTPException: _http_error},
        lifespan=running,
    )


def _pages(origins: Sequence[str]) -> list[Middleware]:
    """What lets pages of these origins call the server: preflights need no key, and errors have the headers too."""
    if not origins:
        return []
    return [Middleware(
        CORSMiddleware, allow_origins=origins, allow_methods=("GET", "HEAD", "POST"), allow_headers=("*",),
        allow_private_network=True, expose_headers=("x-request-id", "retry-after"),
    )]  # fmt: skip


def _routes(registry: Registry) -> list[Described]:
    own, model = Routes(registry), OllamaModels(registry)
    traces = own.traces
    return [
        Described(CHATS, own.texts, "The next answer of a chat.", ChatBody),
        Described("/v1/completions", own.texts, "What follows a prompt.", CompletionBody),
        Described("/tokenize", own.tokenize, "Token ids of a prompt or of a chat.", TokenizeBody),
        Described("/detokenize", own.detokenize, "The text of token ids.", DetokenizeBody),
        own.dialect("/v1/responses", ResponsesBody, Responses, "OpenAI's Responses, without a store."),
        own.dialect("/v1/messages", MessagesBody, Messages, "Anthropic's Messages."),
        own.count("/v1/responses/input_tokens", ResponsesBody, Responses, object="response.input_tokens"),
        own.count("/v1/messages/count_tokens", MessagesBody, Messages),
        own.ollama("/api/chat", OllamaChatBody, "Ollama's chats."),
        own.ollama("/api/generate", OllamaGenerateBody, "Ollama's prompts."),
        Described("/api/show", model.show, "A model, for Ollama's clients.", ShowBody),
        Described("/api/pull", model.pull, "Nothing to do for models that are here.", PullBody),
        Described("/docs", own.docs, "This document, as a page."),
        Described("/version", own.version, "The version of the server."),
        Described("/api/tags", model.tags, "The models, for Ollama's clients."),
        Described("/api/ps", model.loaded, "The models that are loaded, for Ollama's clients."),
        Described("/api/version", own.version, "The version, for Ollama's clients."),
        Described("/v1/models", own.models, "The models."),
        Described("/health", own.health, "200 while the server takes requests."),
        Described("/metrics", own.metrics, "Metrics for Prometheus."),
        Described("/v1/traces/{id}", traces.trace, "The trace of a response when it has ended; as events, round by round."),
        Described("/v1/traces/{id}/rounds/{round}", traces.round, "A round, drawn and as text.", query=["width"]),
        Described("/v1/traces/{id}/race", traces.race, "The race of two texts of one prompt.", query=["plain", "width"]),
        Described("/v1", own.models),
        Described("/v1/models/{model:path}", own.model),
        Described("/openapi.json", own.openapi),
        Described("/", traces.page),
    ]


async def _http_error(request: Request, error: Exception) -> Response:
    """No such path, or another method."""
    assert isinstance(error, HTTPException)
    path, headers = request.url.path, dict(error.headers or {})
    message = f"there is no {request.method} {path}{_instead(request, headers.get('Allow'))}"
    return error_response(ApiError(error.status_code, message, code="not_found", headers=headers), path)


def _instead(request: Request, methods: str | None) -> str:
    """What to do in place of a request without a route; ``methods`` are those that its path has."""
    if methods is not None:
        return f": send {' or '.join(sorted(methods.split(', ')))}"
    path = "/" + "/".join(part for part in request.url.path.split("/") if part)
    if "embed" in path:
        return ": this server's models make no embeddings"
    known = sorted((str(route.path) for route in request.app.routes if route.path.count("/") > 1), key=len)
    near = next((one for one in known if _is_joined_wrongly(path, one)), None)
    if near is None:
        return ": GET /openapi.json lists what there is"
    return f", but there is {near}: change the client's base URL (OpenAI's clients want /v1 at its end, others do not)"


def _is_joined_wrongly(path: str, known: str) -> bool:
    """Whether a client has put too much or too little before a path, or its end twice."""
    rest = path.removeprefix(known)
    return path.endswith(known) or (path != "/" and known.endswith(path)) or (rest != path and known.endswith(rest))
