"""The same seed gives the same text: alone, in company, streamed or not, with and without drafts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any, Final

import httpx2

from benchmarks.report import table
from benchmarks.serving.bodies import mixed
from benchmarks.serving.client import answer, client_of
from benchmarks.serving.config import SameTextConfig, Served
from benchmarks.serving.metrics import counts
from benchmarks.serving.outcome import Check, document, load, report
from benchmarks.serving.servers import Server, serving
from benchmarks.serving.soak import fate

WAYS: Final = tuple((stream, drafts) for stream in (False, True) for drafts in (False, True))
_COMPANY_SEED: Final = 77_000


def name(company: bool, stream: bool, drafts: bool) -> str:
    """A way of writing, in words."""
    where = "in company" if company else "alone"
    return f"{where}, {'streamed' if stream else 'whole'}, {'with' if drafts else 'without'} drafts"


REFERENCE: Final = name(False, False, False)


async def texts_of(
    server: Server,
    client: httpx2.AsyncClient,
    config: SameTextConfig,
    seed: int,
    on_step: Callable[[], object],
    *,
    company: bool,
) -> dict[str, dict[int, str]]:
    """Texts by way and number. Alone every text is written whole and without drafts, and streamed with drafts; in company
    in the four ways in turn.

    Raises:
        RuntimeError: a text did not come.
    """
    found: dict[str, dict[int, str]] = {}
    for number in range(config.texts):
        ways = [WAYS[number % len(WAYS)]] if company else [(False, False), (True, True)]
        for stream, drafts in ways:
            body = mixed(number, seed, server.model, config.max_new_tokens)
            got = await answer(client, body | {"stream": stream, "speculative": drafts})
            if not got.complete:
                raise RuntimeError(f"the text of request {number} did not come: status {got.status}, {got.error}")
            found.setdefault(name(company, stream, drafts), {})[number] = got.text
        on_step()
    return found


async def compare(server: Server, config: SameTextConfig, seed: int, on_step: Callable[[], object]) -> dict[str, Any]:
    """Write all texts alone, then in company; ``on_step`` is called after each one.

    Returns:
        Per way the number of texts and of those that differ, with a few of them; the numbers of different texts, of drafts,
        and of requests of the company.
    """
    async with client_of(server) as client:
        before = await counts(client)
        texts = await texts_of(server, client, config, seed, on_step, company=False)
        numbers, done = count(), asyncio.Event()

        async def come_and_go() -> None:
            while not done.is_set():
                await fate(server, client, next(numbers), _COMPANY_SEED + seed)

        others = [asyncio.create_task(come_and_go()) for _ in range(config.company)]
        try:
            texts |= await texts_of(server, client, config, seed, on_step, company=True)
        finally:
            done.set()
            await asyncio.gather(*others)
        drafts = (await counts(client) - before).drafts
    wanted = texts.pop(REFERENCE)
    results = []
    for way, some in texts.items():
        differ = [number for number, text in some.items() if text != wanted[number]]
        samples = [{"number": n, "wanted": wanted[n], "found": some[n]} for n in differ[:3]]
        results.append({"way": way, "texts": len(some), "differ": len(differ), "samples": samples})
    made = {"different_texts": len(set(wanted.values())), "drafts": drafts, "company_requests": next(numbers)}
    return {"results": results, **made}


def checks(found: dict[str, Any], config: SameTextConfig) -> list[Check]:
    """No text differs, and the texts are not all the same."""
    differ, written = (sum(result[part] for result in found["results"]) for part in ("differ", "texts"))
    control = found["different_texts"]
    return [
        Check(what="texts that differ from those written alone, whole and without drafts", found=f"{differ} of {written}",
              holds=not differ),
        Check(what="control: the requests have different texts", found=f"{control} of {config.texts}",
              holds=control >= min(config.texts, 2)),
        Check(what="control: drafts were made", found=str(found["drafts"]), holds=found["drafts"] > 0),
    ]  # fmt: skip


def run(served: Served, config: SameTextConfig, on_step: Callable[[], object]) -> dict[str, Any]:
    """The document of a run; raises what :func:`serving` raises."""
    before = load()
    with serving(served) as server:
        found = asyncio.run(compare(server, config, served.seed, on_step))
    return document("serve-same-text", served, config, before, checks(found, config), found)


def markdown(found: dict[str, Any]) -> str:
    """The report, a function of the document alone."""
    rows = [[result["way"], str(result["texts"]), str(result["differ"])] for result in found["results"]]
    company = f"The company sent {found['company_requests']} requests, and left about a third of them early."
    return report("Same seed, same text", found, table(["way", "texts", "differ"], rows), company)
