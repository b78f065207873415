"""The prefix cache: the second turn of a chat against a new chat that reads as many tokens, after a restart, with its middle
left out, and with the cache off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any, Final, final

import httpx2

from benchmarks.report import spread_cell, table
from benchmarks.serving.client import CHATS, Answer, answer, client_of
from benchmarks.serving.config import PrefixConfig, Served
from benchmarks.serving.outcome import Check, document, report
from benchmarks.serving.servers import Server, serving
from benchmarks.summary import spread
from draftwood.core.errors import ConfigError
from draftwood.hardware.machine import load_average

SECONDS: Final = 600.0  # that an answer may be silent
TEMPERATURES: Final = (0.0, 1.0)  # of the repeats, in turn
NOTES: Final = """\
* A chat has a long question and its answer. **Second turn** is the time from the request with the next question to the
  first text of its answer. **New chat** is a chat of its own whose whole prompt has as many tokens as the second turn has
  new ones. **After a restart** another next question comes to a new server with the same `--cache-dir`; **compacted** is
  the second turn there without the middle third of the first one. **Cache off** is the second turn at a server with
  `--no-prefix-cache`, which reads all of it, and runs alone too.
* Every repeat has a chat of its own, of which no other text knows the beginning. The second turn and the new chat come one
  after the other, in turns. **÷ new chat** is a ratio inside a repeat.
* Milliseconds; medians over repeats with their extremes."""
NEXT: Final = (
    "And how many houses did the town have in the year 1010? Please answer in one short sentence, with the number, and say "
    "after it whether the town had more boats than houses in that year."
)


@final
@dataclass(frozen=True, kw_only=True)
class Chat:
    """The messages of a repeat, and what they have in common with those of others: their lengths.

    Attributes:
        server, client: where they go.
        number: of the repeat, with which all of its messages begin.
        facts: sentences of the long question.
        without: those that were left out of it.
    """

    server: Server
    client: httpx2.AsyncClient
    number: int
    facts: int
    without: range = range(0)

    def begun(self, question: str) -> list[dict[str, str]]:
        """A chat with its first question."""
        return [{"role": "system", "content": f"{self.number} is the chat."}, {"role": "user", "content": question}]

    @property
    def first(self) -> list[dict[str, str]]:
        """The first turn."""
        told = (
            f"In year {1000 + i} the town had {i * 37 % 911} houses and {i * 53 % 877} boats."
            for i in range(self.facts)
            if i not in self.without
        )
        return self.begun(" ".join([*told, "How many boats were there in year 1003?"]))

    def second(self, answered: str, question: str = NEXT) -> list[dict[str, str]]:
        """The second turn, after the answer to the first one."""
        return [*self.first, {"role": "assistant", "content": answered}, {"role": "user", "content": question}]

    async def tokens(self, messages: list[dict[str, str]]) -> int:
        """The tokens of a prompt."""
        body = {"model": self.server.model, "messages": messages}
        return int((await self.client.post("/tokenize", json=body)).raise_for_status().json()["count"])

    async def of_size(self, new: int) -> list[dict[str, str]]:
        """A new chat whose prompt has so many tokens, or one of the next smaller sizes."""
        found = self.begun("And?")
        for words in range(1, new):
            longer = self.begun("And" + " so" * words + "?")
            if await self.tokens(longer) > new:
                return found
            found = longer
        return found


async def long_enough(server: Server, client: httpx2.AsyncClient, tokens: int) -> int:
    """How many sentences a first question of so many tokens has.

    Raises:
        ConfigError: the model has no chats.
    """
    models = (await client.get("/v1/models")).raise_for_status().json()
    if models["data"][0].get("chat_template") is False:
        raise ConfigError("the model has no chat template: give --target smollm2, or another chat model")
    chat = Chat(server=server, client=client, number=1000, facts=1)
    while await chat.tokens(chat.first) < tokens:
        chat = replace(chat, facts=chat.facts + max(1, chat.facts // 8))
    return chat.facts


async def written(chat: Chat, config: PrefixConfig, messages: list[dict[str, str]]) -> Answer:
    """The answer to messages of a chat."""
    settings = {
        "model": chat.server.model,
        "temperature": TEMPERATURES[chat.number % len(TEMPERATURES)],
        "seed": chat.number,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": config.max_new_tokens,
        "ignore_eos": True,
    }
    found = await answer(chat.client, {**settings, "messages": messages}, CHATS)
    if not found.complete or not found.chunks:
        raise RuntimeError(f"the text of chat {chat.number} did not come: status {found.status}, {found.error}")
    return found


async def repeat(chat: Chat, config: PrefixConfig) -> dict[str, Any]:
    """One chat: times in milliseconds, tokens, and texts."""
    begun = await written(chat, config, chat.first)
    second = chat.second(begun.text)
    new = await chat.tokens(second) - begun.prompt_tokens - begun.tokens  # the least that a second turn reads
    ways = {"second": second, "new": await chat.of_size(new)}
    got = {name: await written(chat, config, ways[name]) for name in (ways if chat.number % 2 else reversed(ways))}
    found: dict[str, Any] = {"texts": {"first": begun.text}, "milliseconds": {}, "prompt_tokens": {}, "cached_tokens": {}}
    found["silence"] = begun.silence
    for name, one in got.items():
        _add(found, name, one)
    return found


def _add(found: dict[str, Any], name: str, got: Answer) -> None:
    found["milliseconds"][name] = 1e3 * (got.chunks[0] - got.sent)
    found["prompt_tokens"][name] = got.prompt_tokens
    found["cached_tokens"][name] = got.cached_tokens
    found["texts"][name] = got.text


async def measure(server: Server, config: PrefixConfig, seed: int, on_step: Callable[[], object]) -> list[dict[str, Any]]:
    """All repeats, after one that warms up; ``on_step`` is called after each one."""
    async with client_of(server, SECONDS) as client:
        facts, found = await long_enough(server, client, config.tokens), []
        for number in range(config.repeats + 1):
            chat = Chat(server=server, client=client, number=1000 + 1000 * seed + number, facts=facts)
            found.append(await repeat(chat, config) | {"chat": {"number": chat.number, "facts": facts}})
            on_step()
    return found[1:]


async def add(
    server: Server, config: PrefixConfig, found: list[dict[str, Any]], ways: Sequence[str], on_step: Callable[[], object]
) -> None:
    """The second turns at another server: one that keeps no prefixes, or one that finds them on disk."""
    async with client_of(server, SECONDS) as client:
        for one in found:
            chat, said = Chat(server=server, client=client, **one["chat"]), one["texts"]["first"]
            shorter = replace(chat, without=range(chat.facts // 3, 2 * chat.facts // 3))
            made = {
                "off": chat.second(said),
                "restart": chat.second(said, NEXT.replace("1010", "1012")),
                "compacted": shorter.second(said),
            }
            for name in ways:
                _add(one, name, await written(chat, config, made[name]))
            on_step()


def checks(repeats: list[dict[str, Any]], config: PrefixConfig) -> list[Check]:
    """The first token comes soon, the beginning was copied, and the text is the same without the cache."""
    ratio, count = _ratios(repeats)["second"], len(repeats)
    copied = sum(one["cached_tokens"]["second"] >= config.tokens for one in repeats)
    silence = max(one["silence"] for one in repeats)
    plain = [one["texts"] for one in repeats if "off" in one["texts"]]
    same = sum(texts["second"] == texts["off"] for texts in plain)
    found = [
        Check(what=f"first token of a second turn, by that of a new chat: at most {config.most:g}",
              found=spread_cell(ratio, 2), holds=ratio["median"] <= config.most),
        Check(what="second turns that copied the first one", found=f"{copied} of {count}", holds=copied == count),
        Check(what="control: new chats that copied nothing", found=f"{count - _copied(repeats, 'new')} of {count}",
              holds=not _copied(repeats, "new")),
        Check(what="longest silence of a first turn's stream: at most 10 s", found=f"{silence:.1f}", holds=silence <= 10),
    ]  # fmt: skip
    if plain:
        off = _copied(repeats, "off")
        restored = sum(one["cached_tokens"]["restart"] >= config.tokens for one in repeats)
        found += [
            Check(what="second turns that copied the first one after a restart", found=f"{restored} of {count}",
                  holds=restored == count),
            Check(what="texts that are the same with the cache off", found=f"{same} of {count}", holds=same == count),
            Check(what="control: second turns that copied nothing there", found=f"{count - off} of {count}", holds=not off),
        ]  # fmt: skip
    return found


def _copied(repeats: list[dict[str, Any]], name: str) -> int:
    return sum(one["cached_tokens"][name] > 0 for one in repeats)


def _ratios(repeats: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Times by those of new chats."""
    times: list[Mapping[str, float]] = [one["milliseconds"] for one in repeats]
    return {name: spread([one[name] / one["new"] for one in times]) for name in times[0]}


def run(served: Served, config: PrefixConfig, on_step: Callable[[], object]) -> dict[str, Any]:
    """The document of a run; raises what :func:`serving` raises."""
    before = load_average()
    with TemporaryDirectory(prefix="draftwood-bench-") as folder:
        with serving(served, "--cache-dir", folder) as server:
            repeats = asyncio.run(measure(server, config, served.seed, on_step))
        if not served.url:  # one after the other: each server would leave a core to the other one
            with serving(served, "--cache-dir", folder) as server:
                asyncio.run(add(server, config, repeats, ("restart", "compacted"), on_step))
            with serving(served, "--no-prefix-cache") as server:
                asyncio.run(add(server, config, repeats, ("off",), on_step))
    return document("serve-prefix", served, config, before, checks(repeats, config), {"repeats": repeats})


def markdown(found: dict[str, Any]) -> str:
    """The report, a function of the document alone."""
    repeats, names = found["repeats"], {"second": "second turn", "new": "new chat", "off": "second turn, cache off",
                                     "restart": "after a restart", "compacted": "after a restart, compacted"}  # fmt: skip
    ratios = _ratios(repeats)
    rows = []
    for name in ratios:
        sizes = [one["prompt_tokens"][name] for one in repeats]
        read = [one["prompt_tokens"][name] - one["cached_tokens"][name] for one in repeats]
        times = spread_cell(spread([one["milliseconds"][name] for one in repeats]), 1)
        rows.append([names[name], *(spread_cell(spread(some), 0) for some in (sizes, read)), times,
                     spread_cell(ratios[name], 2)])  # fmt: skip
    head = ["", "prompt, tokens", "of them read", "first token, ms", "÷ new chat"]
    return report("The prefix cache", found, table(head, rows), "## How to read this", NOTES)
