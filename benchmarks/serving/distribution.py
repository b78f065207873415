"""Sampled texts of a server, tested by the target alone: with drafts, without, and a control at another temperature."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any, Final

from benchmarks.opening import quiet
from benchmarks.report import table
from benchmarks.serving.client import answer, client_of, closed_loop
from benchmarks.serving.config import DistributionConfig, Served
from benchmarks.serving.outcome import Check, document, load, report
from benchmarks.serving.servers import Server, serving
from benchmarks.surprise import LARGEST, Text, tested
from draftwood.api import Pair
from draftwood.core.settings import LoadOptions
from draftwood.tune.prompts import built_in

CONTROL: Final = "control"
WAYS: Final = ("with drafts", "without drafts", CONTROL)
OTHERS_WAYS: Final = ("of this server", CONTROL)
"""Of another program than Draftwood, where the command that starts it says whether drafts are made."""


def fields(way: str, config: DistributionConfig, server: Server) -> dict[str, Any]:
    """What a way of writing adds to a request."""
    return ({"speculative": way != "without drafts"} if server.drafts_by_request else {}) | {
        "temperature": config.control if way == CONTROL else config.temperature,
        "max_tokens": config.max_new_tokens,
        "return_token_ids": True,
        "top_p": 1.0,
        "top_k": 0,
    }


async def written(
    server: Server, pair: Pair, config: DistributionConfig, seed: int, on_step: Callable[[], object]
) -> dict[tuple[int, str], list[Text]]:
    """Texts of every way at every concurrency, each with a seed of its own.

    Raises:
        RuntimeError: a text did not come, or without its token ids.
    """
    prompts = [pair.encode(text) for text in built_in(12)]
    found: dict[tuple[int, str], list[Text]] = {}
    async with client_of(server) as client:

        async def one(number: int) -> Text:
            prompt = prompts[number % len(prompts)]
            got = await answer(client, {"model": server.model, "prompt": prompt, "seed": number, **settings})
            if not got.complete or not got.token_ids:
                raise RuntimeError(f"no token ids came for request {number}: status {got.status}, {got.error}")
            return Text(prompt, got.token_ids)

        for level in config.levels():
            for way in WAYS if server.drafts_by_request else OTHERS_WAYS:
                settings = fields(way, config, server)
                first = 10_000_000 * seed + 100_000 * (1 + len(found))
                numbers = range(first, first + config.texts)
                found[level, way] = await closed_loop(one, numbers, level)
                on_step()
    return found


def checks(results: Sequence[dict[str, Any]]) -> list[Check]:
    """Texts fit the target with and without drafts, both alike, and the control does not."""
    found = []
    by_way = {(result["concurrency"], result["way"]): result for result in results}
    for (level, way), result in by_way.items():
        fit, score = result["fit"], result["excess"] / result["excess_error"]
        fits = fit["exact"] and abs(score) < LARGEST
        words = f"p = {fit['p_value']:.2g}, surprise {score:+.1f} standard errors from the entropy"
        what = f"concurrency {level}: " + (
            "the control is found out" if way == CONTROL else f"texts {way} follow the target"
        )
        found.append(Check(what=what, found=words, holds=fits != (way == CONTROL)))
    for level in {level: None for level, way in by_way if way == "with drafts"}:
        drafted, plain = by_way[level, "with drafts"], by_way[level, "without drafts"]
        difference = drafted["mean"] - plain["mean"]
        error = sqrt(drafted["error"] ** 2 + plain["error"] ** 2)
        words = f"{difference:+.4f} ± {error:.4f} nats per token"
        what = f"concurrency {level}: mean -log p with drafts is that without"
        found.append(Check(what=what, found=words, holds=abs(difference) < LARGEST * error))
    return found


def run(served: Served, config: DistributionConfig, on_step: Callable[[], object]) -> dict[str, Any]:
    """The document of a run; raises what :func:`serving` and :func:`draftwood.api.load` raise."""
    from draftwood.api import load as load_pair

    before = load()
    quiet()
    options = LoadOptions(dtype=served.dtype, device="cpu", backend="torch", profile="none")
    pair = load_pair(served.target, served.draft, options=options)
    with serving(served) as server:
        texts = asyncio.run(written(server, pair, config, served.seed, on_step))
    results = []
    for (level, way), some in texts.items():
        results.append({"concurrency": level, "way": way, **tested(pair, some, config.temperature, served.seed)})
        on_step()
    return document("serve-distribution", served, config, before, checks(results), {"results": results})


def markdown(found: dict[str, Any]) -> str:
    """The report, a function of the document alone."""
    rows = []
    for result in found["results"]:
        fit = result["fit"]
        rows.append([
            f"{result['concurrency']}, {result['way']}", str(fit["tokens"]), f"{result['mean']:.4f} ± {result['error']:.4f}",
            f"{result['excess']:+.4f} ± {result['excess_error']:.4f}",
            f"{fit['total_variation']:.4f} ({fit['expected']:.4f})", f"{fit['p_value']:.2g}",
        ])  # fmt: skip
    header = ["concurrency, way", "tokens", "mean -log p", "above entropy", "total variation (by chance)", "p"]
    config = found["config"]
    about = (
        f"Texts at temperature {config['temperature']:g}; the control is sampled at {config['control']:g} and tested as "
        "if it were not. Nats per token with standard errors over texts. The target scores each text in one plain forward."
    )
    return report("Distribution over HTTP", found, table(header, rows), about)
