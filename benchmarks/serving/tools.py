"""Required tool calls: all validate, drafts change none of them, and streams bring what whole answers do."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean, stdev
from typing import Any, Final

import httpx2
from jsonschema import Draft202012Validator, ValidationError

from benchmarks.report import table
from benchmarks.serving.client import CHATS, Answer, answer, client_of, closed_loop
from benchmarks.serving.config import Served, ToolsConfig
from benchmarks.serving.metrics import counts
from benchmarks.serving.outcome import Check, document, load, report
from benchmarks.serving.servers import Server, serving

_TEXT: Final = {"type": "string", "maxLength": 24}
_DATE: Final = {"type": "string", "pattern": "^20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])$"}


def _one_of(*values: Any) -> dict[str, Any]:
    return {"enum": list(values)}


def _whole(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def _list(items: Mapping[str, Any], most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "maxItems": most}


def _object(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


_FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "get_weather": {"place": _TEXT, "unit": _one_of("celsius", "fahrenheit")},
    "find_route": {"start": _TEXT, "end": _TEXT, "by": _one_of("car", "train", "foot")},
    "set_alarm": {
        "time": {"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"},
        "daily": {"type": "boolean"},
    },
    "translate_text": {"text": _TEXT, "language": _one_of("de", "fr", "it", "es")},
    "book_flight": {"origin": _TEXT, "goal": _TEXT, "date": _DATE, "passengers": _whole(1, 9)},
    "book_hotel": {"city": _TEXT, "nights": _whole(1, 30), "breakfast": {"type": "boolean"}},
    "send_mail": {"to": _TEXT, "subject": _TEXT, "urgent": {"type": "boolean"}},
    "get_stock": {"symbol": {"type": "string", "pattern": "^[A-Z]{1,5}$"}},
    "convert_money": {"amount": _whole(0, 100_000), "source": _one_of("EUR", "USD"), "goal": _one_of("CHF", "GBP")},
    "play_music": {"artist": _TEXT, "volume": _whole(0, 10)},
    "find_recipe": {"dish": _TEXT, "without": _list(_TEXT, 2)},
    "get_news": {"topic": _one_of("sport", "politics", "science"), "count": _whole(1, 20)},
    "call_taxi": {"address": _object({"street": _TEXT, "number": _whole(1, 999)})},
    "add_note": {"text": _TEXT, "tags": _list(_one_of("home", "work", "idea"), 3)},
    "find_film": {"title": _TEXT, "year": {"anyOf": [_whole(1900, 2030), {"type": "null"}]}},
    "rent_car": {"size": _one_of("small", "large"), "begin": _DATE, "days": _whole(1, 60)},
    "roll_dice": {"count": _whole(1, 6), "sides": _one_of(4, 6, 8, 12, 20)},
    "set_light": {"room": _TEXT, "colour": {"type": "string", "pattern": "^#[0-9a-f]{6}$"}, "on": {"type": "boolean"}},
    "get_time": {"zone": {"type": "string", "enum": ["UTC", "CET", "EST", "JST"]}},
    "buy_tickets": {"event": _TEXT, "seats": _list(_object({"row": _whole(1, 40), "seat": _whole(1, 60)}), 2)},
}
SCHEMAS: Final[Mapping[str, dict[str, Any]]] = {name: _object(fields) for name, fields in _FIELDS.items()}
TOOLS: Final = [
    {"type": "function", "function": {"name": name, "description": f"To {name.replace('_', ' ')}.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
TEMPERATURES: Final = (0.0, 1.0)
_PLACES: Final = ("Oslo", "Rome", "Paris", "Bern", "Lima")
_SECONDS: Final = 600.0  # that an answer may be silent, on a machine that others use
_LEAST: Final = 2  # texts for an error of a mean


def body_of(number: int, seed: int, model: str, longest: int) -> dict[str, Any]:
    """The body of a request for a call; all that it wants depends on its number and the seed."""
    rng = random.Random(f"tools/{seed}/{number}")
    wish = rng.choice(list(SCHEMAS)).replace("_", " ")
    return {
        "model": model,
        "messages": [{"role": "user", "content": f"Please {wish} for me in {rng.choice(_PLACES)}, request {number}."}],
        "tools": TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": longest,
        "temperature": TEMPERATURES[number % len(TEMPERATURES)],
        "seed": 1_000 * seed + number,
    }


def wrong_with(found: Answer) -> str | None:
    """What is wrong with an answer that has to be one call; None if nothing is."""
    if not found.complete:
        return f"no answer: status {found.status}, {found.error}"
    if found.finish_reason != "tool_calls" or len(found.calls) != 1 or found.text:
        return f"{len(found.calls)} calls, text {found.text[:40]!r}, finish reason {found.finish_reason}"
    [(name, arguments)] = found.calls
    if name not in SCHEMAS:
        return f"a function {name!r}, which was not given"
    try:
        Draft202012Validator(SCHEMAS[name]).validate(json.loads(arguments))
    except (ValueError, ValidationError) as error:
        return f"{name} with {arguments[:200]!r}: {str(error).splitlines()[0]}"
    return None


async def both(server: Server, client: httpx2.AsyncClient, number: int, seed: int, longest: int) -> dict[str, Any]:
    """One call, written with drafts and without, one of the two in a stream. Which one, and which comes first, takes turns.

    Returns:
        Its temperature and name, whether both answers are the same, what is wrong, and by way seconds and tokens.
    """
    body, found = body_of(number, seed, server.model, longest), dict[str, Answer]()
    streamed, first = number // 2 % 2 == 1, number // 4 % 2 == 1
    for drafts in (first, not first):
        stream = {"stream": True, "stream_options": {"include_usage": True}} if drafts == streamed else {}
        found["drafted" if drafts else "plain"] = await answer(client, body | stream | {"speculative": drafts}, CHATS)
    wrong = [f"{way}: {what}" for way, one in found.items() if (what := wrong_with(one)) is not None]
    same = found["drafted"].calls == found["plain"].calls
    if not same:
        wrong.append(f"drafted {found['drafted'].calls}, plain {found['plain'].calls}")
    return {
        "number": number,
        "temperature": body["temperature"],
        "name": found["plain"].calls[0][0] if found["plain"].calls else None,
        "streamed": "drafted" if streamed else "plain",
        "same": same,
        "valid": len(wrong) == (not same),
        "wrong": wrong,
        "seconds": {way: one.ended - one.sent for way, one in found.items()},
        "tokens": {way: one.tokens for way, one in found.items()},
    }


async def measure(server: Server, config: ToolsConfig, seed: int, on_step: Callable[[], object]) -> dict[str, Any]:
    """All calls; ``on_step`` is called after each one.

    Returns:
        What :func:`both` says of each call, and the number of drafts.
    """

    async def one(number: int) -> dict[str, Any]:
        found = await both(server, client, number, seed, config.max_new_tokens)
        on_step()
        return found

    async with client_of(server, _SECONDS) as client:
        for drafts in (True, False):  # reads the functions, and compiles their grammar
            await answer(client, body_of(-1, seed, server.model, config.max_new_tokens) | {"speculative": drafts}, CHATS)
        before = await counts(client)
        calls = await closed_loop(one, range(config.calls), config.clients)
        made = (await counts(client) - before).drafts
    return {"calls": calls, "drafts": made}


def speeds(calls: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Tokens per second with drafts and without, and their ratio: by calls that were valid, the mean and its error.

    The ratio is that of one pair of answers, which follow each other, so a machine that others use slows both down.
    """
    some = [call for call in calls if call["valid"] and call["same"]]
    if len(some) < _LEAST:
        return {}
    rates = {
        way: sum(call["tokens"][way] for call in some) / sum(call["seconds"][way] for call in some)
        for way in ("drafted", "plain")
    }
    ratios = [call["seconds"]["plain"] / call["seconds"]["drafted"] for call in some]
    return {**rates, "ratio": fmean(ratios), "error": stdev(ratios) / len(ratios) ** 0.5, "calls": len(some)}


def checks(found: dict[str, Any], config: ToolsConfig) -> list[Check]:
    """All calls validate and are the same, and drafts do not slow them down."""
    calls = found["calls"]
    wrong = sum(not call["valid"] for call in calls)
    differ, streams = sum(not call["same"] for call in calls), Counter(call["streamed"] for call in calls)
    names, speed = {call["name"] for call in calls} - {None}, speeds(calls) if config.clients == 1 else {}
    out = [
        Check(what="calls that do not parse, or do not validate against their schema", found=f"{wrong} of {len(calls)}",
              holds=not wrong and len(calls) == config.calls),
        Check(what="calls that differ with drafts and without, one of the two whole and one in a stream "
              f"({streams['drafted']} streams with drafts, {streams['plain']} without)", found=f"{differ} of {len(calls)}",
              holds=not differ),
        Check(what="control: several functions were called", found=f"{len(names)} of {len(TOOLS)}", holds=len(names) > 1),
        Check(what="control: drafts were made", found=str(found["drafts"]), holds=found["drafts"] > 0),
    ]  # fmt: skip
    if speed:
        most = speed["ratio"] + 2 * speed["error"]
        out.append(
            Check(what="with drafts not slower than without, up to two standard errors",
                  found=f"{speed['ratio']:.2f} ± {speed['error']:.2f} times as fast", holds=most >= 1)
        )  # fmt: skip
    return out


def run(served: Served, config: ToolsConfig, on_step: Callable[[], object]) -> dict[str, Any]:
    """The document of a run; raises what :func:`serving` raises."""
    before = load()
    with serving(served) as server:
        found = asyncio.run(measure(server, config, served.seed, on_step))
    return document("serve-tools", served, config, before, checks(found, config), found)


def markdown(found: dict[str, Any]) -> str:
    """The report, a function of the document alone."""
    rows = []
    for temperature in TEMPERATURES:
        speed = speeds(call for call in found["calls"] if call["temperature"] == temperature)
        if speed and found["config"]["clients"] == 1:
            rates = [f"{speed[way]:.1f}" for way in ("drafted", "plain")]
            rows.append([f"{temperature:g}", str(speed["calls"]), *rates, f"{speed['ratio']:.2f} ± {speed['error']:.2f}"])
    shown = table(["temperature", "calls", "tokens/s with drafts", "without", "ratio of seconds"], rows) if rows else ""
    names = Counter(call["name"] for call in found["calls"])
    called = "Functions by calls: " + ", ".join(f"{name} {n}" for name, n in names.most_common()) + "."
    wrong = [f"* request {call['number']}, {what}" for call in found["calls"] for what in call["wrong"]]
    return report("Tool calls", found, shown, called, "\n".join(wrong[:20]))
