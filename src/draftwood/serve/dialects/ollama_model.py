"""What Ollama's clients ask of the model itself: which there are, which are loaded, what it is, and to pull it."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final, final

from pydantic import AliasChoices, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from draftwood.loading.outline import outline_of
from draftwood.serve.dialects.ollama import Ollama, as_time
from draftwood.serve.models import Model, Stay
from draftwood.serve.openai.bodies import read
from draftwood.serve.openai.schemas import RouteBody
from draftwood.serve.openai.streams import Json, line
from draftwood.serve.registry import Registry

NEVER: Final = "2262-01-01T00:00:00Z"
"""When a model is unloaded that stays: as late as nanoseconds in 64 bits reach."""
_LATEST: Final = 1e9  # seconds from now of other ends


class NameBody(RouteBody):
    """A model by ``model``, or by the older ``name``."""

    model: str | None = Field(default=None, validation_alias=AliasChoices("model", "name"))


class ShowBody(NameBody):
    """``/api/show``."""

    verbose: bool | None = None


class PullBody(NameBody):
    """``/api/pull``."""

    stream: bool | None = None
    insecure: bool | None = None


@final
class OllamaModels:
    """The handlers of these routes."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def tags(self, request: Request) -> Response:
        models = self._registry.models
        return JSONResponse({"models": [one for model in models for one in await _listed(model)]})

    async def loaded(self, request: Request) -> Response:
        found = []
        for stay, service in self._registry.loaded:
            on_device, length = service.pair.target.device.type != "cpu", service.preparation.max_length
            for entry in await _listed(stay.model):
                vram = entry["size"] if on_device else 0
                found.append({**entry, "expires_at": _end(stay), "size_vram": vram, "context_length": length})
        return JSONResponse({"models": found})

    async def show(self, request: Request) -> Response:
        """What a model is; one that is not loaded is described by its files, and is not loaded for it."""
        _, model = self._registry.find((await read(request, ShowBody)).model)
        entry = await asyncio.to_thread(_entry, model)
        service, family = model.service, entry["details"]["family"]
        outline = await asyncio.to_thread(outline_of, model.target)
        length, template, chats, size = outline.length, outline.template, bool(outline.template), None
        if service is not None:
            length, chats = service.preparation.max_length, service.preparation.chats
            template, size = service.pair.template.source, service.facts["meta"]["n_params"]
        known = {"general.architecture": family, "general.parameter_count": size, f"{family}.context_length": length}
        return JSONResponse(
            {
                "modelfile": "", "parameters": "", **{name: entry[name] for name in ("details", "modified_at")},
                "template": template,
                "model_info": {name: value for name, value in known.items() if value is not None},
                "capabilities": ["completion", *(["tools"] if chats else [])],
            }
        )  # fmt: skip

    async def pull(self, request: Request) -> Response:
        """The server's models are here already; other names are refused."""
        body = await read(request, PullBody)
        self._registry.find(body.model)
        done = {"status": "success"}
        return JSONResponse(done) if body.stream is False else Response(line(done) + b"\n", media_type=Ollama.media_type)


def _end(stay: Stay) -> str:
    """When a model is unloaded, unless requests come."""
    if stay.keep > _LATEST:
        return NEVER
    left = stay.keep if stay.uses else stay.used + stay.keep - asyncio.get_running_loop().time()
    return as_time(datetime.now(UTC) + timedelta(seconds=max(0.0, left)))


async def _listed(model: Model) -> list[Json]:
    entry = await asyncio.to_thread(_entry, model)
    return [{"name": name, "model": name, **entry} for name in model.names]


def _entry(model: Model) -> Json:
    """What the files of a model say, and more once it is loaded. The digest is of the names, sizes and times of files."""
    outline, facts = outline_of(model.target), {} if model.service is None else model.service.facts["meta"]
    files = {path.name: path.stat() for path in outline.files}
    known: list[Any] = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in files.items()] or [*model.names, facts]
    changed = max((stat.st_mtime for stat in files.values()), default=0.0)
    family = facts.get("architecture", outline.architecture)
    return {
        "modified_at": as_time(datetime.fromtimestamp(changed, UTC)),
        "size": facts.get("size") or sum(stat.st_size for stat in files.values()),
        "digest": sha256(json.dumps(known, sort_keys=True).encode()).hexdigest(),
        "details": {
            "parent_model": "", "format": "gguf" if any(name.endswith(".gguf") for name in files) else "safetensors",
            "family": family, "families": [family],
            "parameter_size": f"{facts['n_params'] / 1e6:.1f}M" if facts else "",
            "quantization_level": outline.quantisation or facts.get("dtype", ""),
        },
    }  # fmt: skip
