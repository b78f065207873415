"""The models behind one address: which there are, which are loaded, and when they come and go.

All of this happens in the event loop. Models are loaded and unloaded one at a time, in threads, while the others write.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Mapping
from contextlib import ExitStack
from contextvars import Context
from functools import partial
from math import inf
from pathlib import Path
from typing import Final, final

import torch

from draftwood.api import Pair, load
from draftwood.core.checks import short_repr
from draftwood.core.errors import DraftwoodError, lacks_memory
from draftwood.core.settings import LoadOptions
from draftwood.engine.arguments import MethodLike
from draftwood.hardware.machine import release_free_memory
from draftwood.serve.decoding.metrics import Metrics
from draftwood.serve.decoding.rows import GIB, free_memory
from draftwood.serve.decoding.scheduler import Scheduler, State
from draftwood.serve.http.errors import ApiError, unavailable
from draftwood.serve.http.log import REQUESTS
from draftwood.serve.http.settings import ServeOptions, seconds_of
from draftwood.serve.models import Model, Stay
from draftwood.serve.service import Service

_SPARE: Final = GIB
"""Bytes for keys and values that a model should find when it is loaded: models that write nothing go for them."""
_TOO_LARGE: Final = 600.0
"""Seconds for which no other model goes for one that lacked memory although it was alone."""


@final
class Registry:
    """Finds the service of a request. A model is loaded by the first request for it, and stays for ``keep_alive``.

    Where memory does not suffice for a model, the least recently used one of those that write nothing goes. If all write,
    one takes no further requests, and goes when its texts have ended.

    Args:
        models: target and draft by the model's name; the first one is for requests without a name.
        loading, method: of all models.
    """

    def __init__(
        self,
        models: Mapping[str, tuple[str | Path | None, str | Path | None]],
        loading: LoadOptions,
        options: ServeOptions,
        method: MethodLike | None = None,
    ) -> None:
        metrics = Metrics("model_name")
        self.models = [
            Model(names=(name,), target=target or "", draft=draft, metrics=metrics.of(name))
            for name, (target, draft) in models.items()
        ]
        self.options, self._loading, self._method = options, loading, method
        self._stays: list[Stay] = []  # of models that are loaded
        self._lock = asyncio.Lock()  # of loading and unloading
        self._threads = torch.get_num_threads()
        self._draining = False

    @staticmethod
    def of(service: Service) -> Registry:
        """One model that is always there."""
        made, name = Registry({}, LoadOptions(), service.options), getattr(service.pair.model, "name_or_path", "")
        model = Model(names=service.names, target=name, stays=True, metrics=service.metrics)
        model.stay = Stay(model=model, keep=inf, service=service)
        made.models, made._stays = [model], [model.stay]
        return made

    @property
    def names(self) -> list[str]:
        return [name for model in self.models for name in model.names]

    @property
    def loaded(self) -> list[tuple[Stay, Service]]:
        return [(stay, stay.service) for stay in self._stays if stay.service is not None]

    @property
    def _schedulers(self) -> list[Scheduler]:
        return [service.scheduler for _, service in self.loaded]

    @property
    def texts(self) -> int:
        """Number of texts that are written or wait."""
        return sum(scheduler.texts for scheduler in self._schedulers)

    @property
    def state(self) -> State:
        """That of the schedulers; one that has failed stops the server."""
        states = [scheduler.state for scheduler in self._schedulers]
        return next((state for state in states if state != "ready"), "draining" if self._draining else "ready")

    def find(self, wanted: str | None) -> tuple[str, Model]:
        """A model by its name, and its name in the answer; raises an ApiError if there is none of this name."""
        for name in (wanted, wanted and wanted.removesuffix(":latest")):  # the tag that stands for none in Ollama
            for model in self.models:
                if name in model.names:
                    return str(name), model
        if wanted is not None and not self.options.any_model:
            raise ApiError(
                404,
                f"the model {short_repr(wanted)} is not here: this server has {', '.join(map(short_repr, self.names))}; "
                "send its name, or none, or start the server with --any-model",
                param="model",
                code="model_not_found",
            )
        return self.names[0], self.models[0]

    async def take(self, leases: ExitStack, wanted: str | None, keep: float | None = None) -> Service:
        """The service of a model, which stays until the leases end.

        Args:
            keep: seconds that the model stays after them; None changes nothing.

        Raises:
            ApiError: no model of this name, or one that cannot be loaded. The next request tries it again.
        """
        _, model = self.find(wanted)
        if (stay := model.stay) is None or stay.leaving:
            stay = model.stay = Stay(model=model, keep=seconds_of(self.options.keep_alive))
            stay.loading = asyncio.create_task(self._load(stay), context=Context())  # that of a request holds its texts
        if keep is not None and not model.stays:
            stay.keep = keep
        self._enter(stay)
        leases.callback(self._leave, stay)
        if stay.loading is not None:
            await asyncio.shield(stay.loading)  # others may wait for it too
        assert stay.service is not None
        return stay.service

    def dismiss(self, wanted: str | None) -> None:
        """Let a model go as soon as nothing is written; raises an ApiError if there is none of this name."""
        stay = self.find(wanted)[1].stay
        if stay is not None and not stay.model.stays:
            stay.keep = 0.0
            self._expires(stay)

    def _enter(self, stay: Stay) -> None:
        stay.uses += 1
        stay.used = asyncio.get_running_loop().time()
        stay.idle.clear()
        if stay.timer is not None:
            stay.timer.cancel()

    def _leave(self, stay: Stay) -> None:
        stay.uses -= 1
        stay.used = asyncio.get_running_loop().time()
        self._expires(stay)

    def _expires(self, stay: Stay) -> None:
        """Begin the time after which a model goes, if nothing uses it."""
        if stay.uses:
            return
        stay.idle.set()
        if stay not in self._stays or stay.leaving:
            return
        if stay.timer is not None:
            stay.timer.cancel()
        if stay.keep < inf:
            stay.timer = asyncio.create_task(self._end(stay), context=Context())

    async def _end(self, stay: Stay) -> None:
        await asyncio.sleep(stay.keep)
        async with self._lock:
            ends = stay.used + stay.keep  # a request may have changed it while others were loaded
            if stay in self._stays and not stay.uses and asyncio.get_running_loop().time() >= ends:
                await self._unload(stay)

    async def _load(self, stay: Stay) -> None:
        """Load a model, after those that are being loaded; raises an ApiError."""
        name, began = stay.model.names[0], time.perf_counter()
        try:
            async with self._lock:
                service = await self._made(stay.model)
                service.scheduler.start()
                if self._draining:
                    service.scheduler.drain()
                stay.service, stay.loading = service, None
                self._stays.append(stay)
        except Exception as error:
            if stay.model.stay is stay:
                stay.model.stay = None
            if isinstance(error, ApiError):
                raise
            REQUESTS.error("the model %s cannot be loaded", name, exc_info=error)
            what = str(error) if isinstance(error, DraftwoodError) else f"{type(error).__name__}, its log says more"
            raise ApiError(
                500, f"the model {name!r} cannot be loaded: {what}", param="model", code="model_not_loaded"
            ) from None
        stay.model.metrics.count("model_loads")
        REQUESTS.info("the model %s was loaded in %.1f s", name, time.perf_counter() - began)

    async def _made(self, model: Model) -> Service:
        """The service of a model; others go where memory does not suffice for it."""
        pair: Pair | None = None
        while pair is None:
            if self._draining:
                raise unavailable("the server is draining and takes no requests: ask again later, or another server")
            try:
                pair = await asyncio.to_thread(self._pair, model)
            except Exception as error:
                now = asyncio.get_running_loop().time()
                if not lacks_memory(error):
                    raise
                if not self._stays:
                    model.lacked = now
                if now < model.lacked + _TOO_LARGE:
                    raise
            if pair is None:  # here the error, and what it holds, is gone
                await self._make_room(self._stays)
        while (room := free_memory(pair.target.device)) is not None and room < _SPARE:
            if not (idle := [stay for stay in self._stays if not stay.uses]):
                break
            await self._make_room(idle)
        make = partial(Service, name=model.names[0], method=self._method, metrics=model.metrics)
        return await asyncio.to_thread(make, pair, self.options)

    def _pair(self, model: Model) -> Pair:
        torch.set_num_threads(self._threads)  # a new thread may find the number of another model's present round
        return load(model.target or None, model.draft, options=self._loading)

    async def _make_room(self, stays: list[Stay]) -> None:
        """Unload the least recently used of these models, one that writes nothing if there is one."""
        await self._unload(min(stays, key=lambda stay: (stay.uses > 0, stay.used)))

    async def _unload(self, stay: Stay) -> None:
        stay.leaving = True
        await stay.idle.wait()
        self._stays.remove(stay)
        if stay.model.stay is stay:
            stay.model.stay = None
        assert stay.service is not None  # of models that are loaded
        await asyncio.to_thread(stay.service.scheduler.stop)
        stay.service = None
        await asyncio.to_thread(_release)
        REQUESTS.info("the model %s was unloaded", stay.model.names[0])

    def start(self) -> None:
        for scheduler in self._schedulers:
            scheduler.start()

    def drain(self) -> None:
        """Take no further texts."""
        self._draining = True
        for scheduler in self._schedulers:
            scheduler.drain()

    def cut(self) -> None:
        """End all texts as they are after the present rounds."""
        self.drain()
        for scheduler in self._schedulers:
            scheduler.cut()

    async def stop(self) -> None:
        """End all threads after the present rounds."""
        self.drain()
        async with self._lock:
            for scheduler in self._schedulers:
                await asyncio.to_thread(scheduler.stop)


def _release() -> None:
    """Give the memory of a model back that has gone."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    release_free_memory()
