"""The routes of other programs' interfaces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar, final

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from draftwood import __version__
from draftwood.serve.bodies import read_body
from draftwood.serve.checked import named
from draftwood.serve.dialects.dialect import Dialect, Json
from draftwood.serve.dialects.messages import CountBody, Messages, MessagesBody
from draftwood.serve.dialects.ollama import OllamaChat, OllamaChatBody, OllamaGenerate, OllamaGenerateBody, ShowBody, now
from draftwood.serve.dialects.responses import Responses, ResponsesBody
from draftwood.serve.fields import Body
from draftwood.serve.service import Service

B = TypeVar("B", bound=Body)
T = TypeVar("T")


@final
class DialectRoutes:
    """The handlers. Each translates a request, and has the answer translated back.

    Args:
        service: the model.
        answered: the response to the body of a chat or of a completion, by its path.
        counted: the tokens of a chat's prompt.
    """

    def __init__(
        self, service: Service, answered: Callable[[Request, str, Json, Dialect], Awaitable[Response]],
        counted: Callable[[Request, Json], Awaitable[int]],
    ) -> None:  # fmt: skip
        self._service = service
        self._answered = answered
        self._counted = counted

    def routes(self) -> list[Route]:
        """All routes."""
        generate = partial(OllamaGenerate, chats=self._service.preparation.chats)
        return [
            Route("/v1/responses", self._answers(ResponsesBody, Responses), methods=["POST"]),
            Route("/v1/messages", self._answers(MessagesBody, Messages), methods=["POST"]),
            Route("/v1/messages/count_tokens", self.count_tokens, methods=["POST"]),
            Route("/api/chat", self._answers(OllamaChatBody, OllamaChat), methods=["POST"]),
            Route("/api/generate", self._answers(OllamaGenerateBody, generate), methods=["POST"]),
            Route("/api/tags", self.tags, methods=["GET"]),
            Route("/api/show", self.show, methods=["POST"]),
            Route("/api/version", self.version, methods=["GET"]),
            Route("/version", self.version, methods=["GET"]),
        ]

    def _answers(self, kind: type[B], dialect: Callable[[B], Dialect]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            made = await _read(request, kind, dialect)
            return await self._answered(request, made.path, made.chat, made)

        return answer

    async def count_tokens(self, request: Request) -> Response:
        made = await _read(request, CountBody, Messages)
        return JSONResponse({"input_tokens": await self._counted(request, made.chat)})

    async def tags(self, request: Request) -> Response:
        facts = self._service.facts["meta"]
        made = {"modified_at": now(), "size": facts["size"], "digest": "", "details": _details(facts)}
        return JSONResponse({"models": [{"name": name, "model": name, **made} for name in self._service.names]})

    async def show(self, request: Request) -> Response:
        body = await _read(request, ShowBody, lambda body: body)
        self._service.name((body.model or body.name or self._service.names[0]).removesuffix(":latest"))
        facts, preparation = self._service.facts["meta"], self._service.preparation
        kind = facts["architecture"]
        return JSONResponse(
            {
                "modelfile": "", "parameters": "", "details": _details(facts),
                "template": getattr(self._service.pair.tokenizer, "chat_template", None) or "",
                "model_info": {
                    "general.architecture": kind, "general.parameter_count": facts["n_params"],
                    f"{kind}.context_length": preparation.max_length,
                },
                "capabilities": ["completion", *(["tools"] if preparation.chats else [])],
            }
        )  # fmt: skip

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": __version__})


async def _read(request: Request, kind: type[B], make: Callable[[B], T]) -> T:
    """What is made of a body."""
    data = await read_body(request)

    def made() -> T:
        try:
            return make(kind.model_validate(data))
        except ValidationError as error:
            raise named(error) from None

    return await asyncio.to_thread(made)


def _details(facts: Json) -> Json:
    return {
        "parent_model": "", "format": "safetensors", "family": facts["architecture"], "families": [facts["architecture"]],
        "parameter_size": f"{facts['n_params'] / 1e6:.1f}M", "quantization_level": facts["dtype"],
    }  # fmt: skip
