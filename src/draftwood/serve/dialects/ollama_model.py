"""What Ollama's clients ask of the model itself: which there are, which are loaded, what it is, and to pull it."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar, final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from draftwood.serve.dialects.dialect import Json
from draftwood.serve.dialects.ollama import Ollama, as_time
from draftwood.serve.openai.bodies import read_body, validated
from draftwood.serve.openai.schemas import RouteBody
from draftwood.serve.openai.streams import line
from draftwood.serve.service import Service

NEVER: Final = "2262-01-01T00:00:00Z"
"""When the model is unloaded: as late as nanoseconds in 64 bits reach."""


class NameBody(RouteBody):
    """A model by ``model``, or by the older ``name``."""

    name: str | None = None

    @property
    def wanted(self) -> str | None:
        name = self.name if self.model is None else self.model
        return name and name.removesuffix(":latest")


class ShowBody(NameBody):
    """``/api/show``."""

    verbose: bool | None = None


class PullBody(NameBody):
    """``/api/pull``."""

    stream: bool | None = None
    insecure: bool | None = None


N = TypeVar("N", bound=NameBody)


@final
class OllamaModel:
    """The handlers of these routes."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def tags(self, request: Request) -> Response:
        return JSONResponse({"models": self._listed()})

    async def loaded(self, request: Request) -> Response:
        on_device = self._service.pair.target.device.type != "cpu"
        return JSONResponse(
            {
                "models": self._listed(
                    expires_at=NEVER,
                    size_vram=self._entry["size"] if on_device else 0,
                    context_length=self._service.preparation.max_length,
                )
            }
        )

    async def show(self, request: Request) -> Response:
        await self._named(request, ShowBody)
        facts, preparation = self._service.facts["meta"], self._service.preparation
        return JSONResponse(
            {
                "modelfile": "", "parameters": "",
                **{name: self._entry[name] for name in ("details", "modified_at")},
                "template": self._service.pair.template.source,
                "model_info": {
                    "general.architecture": facts["architecture"], "general.parameter_count": facts["n_params"],
                    f"{facts['architecture']}.context_length": preparation.max_length,
                },
                "capabilities": ["completion", *(["tools"] if preparation.chats else [])],
            }
        )  # fmt: skip

    async def pull(self, request: Request) -> Response:
        """The server's model is here already; other names are refused."""
        body = await self._named(request, PullBody)
        done = {"status": "success"}
        return JSONResponse(done) if body.stream is False else Response(line(done) + b"\n", media_type=Ollama.media_type)

    async def _named(self, request: Request, kind: type[N]) -> N:
        """The body of a request for the server's model; raises an ApiError for another model."""
        data = await read_body(request)
        body = await asyncio.to_thread(validated, kind, data)
        self._service.name(body.wanted)
        return body

    def _listed(self, **facts: Any) -> list[Json]:
        return [{"name": name, "model": name, **self._entry, **facts} for name in self._service.names]

    @cached_property
    def _entry(self) -> Json:
        """What stays while the model's files do: the digest is of its facts, and of their names, sizes and times."""
        facts = self._service.facts["meta"]
        name = getattr(self._service.pair.model, "name_or_path", "")
        path = Path(name)
        found = sorted(path.iterdir()) if name and path.is_dir() else [path]
        files = {file.name: file.stat() for file in found if file.is_file()}
        known = [facts, *((name, stat.st_size, stat.st_mtime_ns) for name, stat in files.items())]
        changed = max((stat.st_mtime for stat in files.values()), default=0.0)
        return {
            "modified_at": as_time(datetime.fromtimestamp(changed, UTC)), "size": facts["size"],
            "digest": sha256(json.dumps(known, sort_keys=True).encode()).hexdigest(),
            "details": {
                "parent_model": "", "format": "gguf" if path.suffix == ".gguf" else "safetensors",
                "family": facts["architecture"], "families": [facts["architecture"]],
                "parameter_size": f"{facts['n_params'] / 1e6:.1f}M", "quantization_level": facts["dtype"],
            },
        }  # fmt: skip
