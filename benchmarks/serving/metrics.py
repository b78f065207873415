"""What the server counts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import Final, final

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from draftwood.core.errors import ConfigError

PREFIX: Final = "draftwood:"
IDLE_SECONDS: Final = 60.0


@final
@dataclass(frozen=True, kw_only=True)
class Counts:
    """Texts of a server.

    Attributes:
        ended, cancelled, failed: since its start: with a finish reason, without a client, with an error.
        running, waiting: now.
        failed_rounds: rounds that raised an error, since its start.
    """

    ended: int = 0
    cancelled: int = 0
    failed: int = 0
    running: int = 0
    waiting: int = 0
    failed_rounds: int = 0

    @property
    def taken(self) -> int:
        """Texts that the server has taken."""
        return self.ended + self.cancelled + self.failed + self.running + self.waiting

    def __sub__(self, before: Counts) -> Counts:
        """What was added since; those of now stay."""
        return Counts(
            ended=self.ended - before.ended,
            cancelled=self.cancelled - before.cancelled,
            failed=self.failed - before.failed,
            running=self.running,
            waiting=self.waiting,
            failed_rounds=self.failed_rounds - before.failed_rounds,
        )


_NAMES: Final = {
    "request_success_total": "ended",
    "request_cancelled_total": "cancelled",
    "request_failure_total": "failed",
    "num_requests_running": "running",
    "num_requests_waiting": "waiting",
    "round_failure_total": "failed_rounds",
}


def parsed(text: str) -> Counts:
    """The counts in a text for Prometheus; labels are added up."""
    found = dict.fromkeys(_NAMES.values(), 0)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if (name := _NAMES.get(sample.name.removeprefix(PREFIX))) is not None:
                found[name] += int(sample.value)
    return Counts(**found)


async def counts(client: httpx2.AsyncClient) -> Counts:
    """The counts of a server now.

    Raises:
        ConfigError: it has no metrics.
    """
    response = await client.get("/metrics")
    if response.status_code != 200 or PREFIX not in response.text:
        raise ConfigError(f"the server has no metrics of Draftwood (status {response.status_code}): give another url")
    return parsed(response.text)


async def idle(client: httpx2.AsyncClient) -> Counts:
    """The counts as soon as no text is left; those of the present if some are left after a minute."""
    end = monotonic() + IDLE_SECONDS
    while True:
        found = await counts(client)
        if not (found.running or found.waiting) or monotonic() > end:
            return found
        await asyncio.sleep(0.05)
