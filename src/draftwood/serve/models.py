"""One of the models behind an address, and its stays in memory."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any, final

from draftwood.serve.decoding.metrics import Metrics
from draftwood.serve.service import Service


@final
@dataclass(eq=False, kw_only=True)
class Model:
    """One of the models.

    Attributes:
        names: in the interface, the usual one first.
        target: the name, folder or file that is loaded.
        draft: its draft model; None for the usual one.
        stays: it is always there.
        metrics: what is counted of its texts.
        created: when it was first listed, in seconds of Unix.
        lacked: when it last lacked memory although no other was loaded, on the clock of the event loop.
        stay: its present or coming stay in memory; None where there is none.
    """

    names: tuple[str, ...]
    target: str | Path
    draft: str | Path | None = None
    stays: bool = False
    metrics: Metrics
    created: int = field(default_factory=lambda: int(time.time()))
    lacked: float = -inf
    stay: Stay | None = None

    @property
    def service(self) -> Service | None:
        """What serves it now; None while it is not loaded."""
        return None if self.stay is None else self.stay.service

    def listed(self, name: str) -> dict[str, Any]:
        """What OpenAI's and Anthropic's clients read of it, by one of its names; little before it is loaded."""
        known = {} if self.service is None else self.service.facts
        state = "unloaded" if self.stay is None else "loading" if self.service is None else "loaded"
        began = datetime.fromtimestamp(self.created, UTC).isoformat()
        return {
            "id": name, "object": "model", "created": self.created, "owned_by": "draftwood",
            "type": "model", "display_name": name, "created_at": began, "lifecycle": "active",
            **known, "status": {"value": state},
        }  # fmt: skip


@final
@dataclass(eq=False, kw_only=True)
class Stay:
    """The time for which a model is in memory.

    Attributes:
        keep: seconds that it stays without a request.
        service: None until it is loaded.
        loading: the task that loads it.
        uses: requests that use it, or wait for it.
        used: when the last one came or ended, on the clock of the event loop.
        leaving: it takes no further requests.
    """

    model: Model
    keep: float
    service: Service | None = None
    loading: asyncio.Task[None] | None = None
    uses: int = 0
    used: float = 0.0
    leaving: bool = False
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.Task[None] | None = None
