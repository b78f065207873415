"""A client that goes in the very moment in which a part of its text comes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from starlette.requests import ClientDisconnect

from draftwood import Limits, Sampling
from draftwood.engine.requests import Request
from draftwood.serve.answers import Answer, while_present
from draftwood.serve.jobs import Job, TextDelta
from draftwood.serve.prepare import Prepared
from draftwood.serve.scheduler import Scheduler


class Taken:
    """In place of a scheduler: keeps the jobs, and writes nothing."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.cancelled: list[Job] = []

    def submit(self, jobs: Sequence[Job]) -> None:
        self.jobs = list(jobs)

    def cancel(self, jobs: Sequence[Job]) -> None:
        self.cancelled += jobs


async def leave(turns: int) -> Taken:
    """A part of the text comes, and so many turns of the event loop later the client goes."""
    scheduler, gone = Taken(), asyncio.Event()
    request = Request(prompt=[1], limits=Limits(max_new_tokens=9))
    prepared = Prepared(requests=[request], sampling=Sampling(), method=None, prompt_tokens=1)
    answer = Answer(cast(Scheduler, scheduler), prepared)

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def work() -> None:
        async for _ in answer.events(60):
            pass

    waiting = asyncio.create_task(while_present(receive, work()))
    await asyncio.sleep(0.01)
    scheduler.jobs[0].deliver(TextDelta(tokens=(1,), text="a", finish_reason=None))
    for _ in range(turns):
        await asyncio.sleep(0)
    gone.set()
    done, _ = await asyncio.wait({waiting}, timeout=10)
    waiting.cancel()
    assert done, "the text goes on without its client"
    with pytest.raises(ClientDisconnect):
        await waiting
    answer.close()
    return scheduler


@pytest.mark.parametrize("turns", range(6))
def test_the_text_of_a_client_that_goes_while_a_part_comes_is_cancelled(turns: int) -> None:
    scheduler = asyncio.run(leave(turns))
    assert scheduler.cancelled == scheduler.jobs
