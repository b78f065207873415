"""Bodies that are nearly right: every answer comes in time, none is a server error, and texts stay as they were."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final

import httpx2

from benchmarks.report import table
from benchmarks.serving.client import answer, chunks, client_of, closed_loop, error_of
from benchmarks.serving.config import FuzzConfig, Served
from benchmarks.serving.metrics import idle
from benchmarks.serving.mutations import mutated
from benchmarks.serving.outcome import Check, document, report
from benchmarks.serving.right import valid
from benchmarks.serving.routes import chatting
from benchmarks.serving.servers import Server, serving
from draftwood.hardware.machine import load_average

STEPS: Final = 20
MAX_LENGTH: Final = 160  # tokens of prompt and text: what remains right by chance is short
_MESSAGES: Final = "/v1/messages"
_KEYS: Final[Mapping[str, set[str]]] = {_MESSAGES: {"type", "message"}, "": {"message", "type", "param", "code"}}
"""Keys of an error, by the beginning of a path; the first one counts."""
_DETAILS: Final = {"error_code": ""}  # that an error of Messages may have
_OLLAMA: Final = "/api/"
_SAMPLE: Final = 500  # bytes
_HEADERS: Final = {"Content-Type": "application/json"}
_STREAMS: Final = ("text/event-stream", "application/x-ndjson")


def problem(path: str, status: int, body: bytes, json_of: Callable[[], Any]) -> str | None:
    """What is wrong with an answer; None if it is right."""
    if status >= 500:
        return f"status {status}"
    if status == 200:
        return None if body else "an empty answer"
    try:
        error = json_of()["error"]
    except (ValueError, TypeError, KeyError):
        return f"status {status} without an error object"
    wanted = next(keys for beginning, keys in _KEYS.items() if path.startswith(beginning))
    if path.startswith(_OLLAMA):
        error = {"message": error, **dict.fromkeys(wanted - {"message"})}
    if path.startswith(_MESSAGES) and isinstance(error, dict) and set(error.pop("details", _DETAILS)) != set(_DETAILS):
        return f"status {status}: details of another shape"
    if not isinstance(error, dict) or set(error) != wanted or not isinstance(error["message"], str) or not error["message"]:
        return f"status {status}: an error of another shape"
    return None


async def send(
    client: httpx2.AsyncClient, bodies: Sequence[tuple[str, dict[str, Any]]], seed: int, number: int
) -> tuple[str, str, float, dict[str, Any] | None]:
    """Send one body: its path, status, seconds, and what was wrong."""
    method, path, data = mutated(bodies, number, seed)
    begun, wrong, status = perf_counter(), None, "none"
    try:
        response = await client.request(method, path, content=data, headers=_HEADERS)
        status, wrong = str(response.status_code), problem(path, response.status_code, response.content, response.json)
        if response.headers.get("content-type", "").partition(";")[0] in _STREAMS:
            errors = [error async for chunk in chunks(response) if (error := error_of(chunk)) is not None]
            wrong = f"an error inside a stream: {errors[0]}" if errors else wrong
    except httpx2.TimeoutException:
        wrong = "no answer in time"
    except httpx2.HTTPError as error:
        wrong = f"no answer: {type(error).__name__}"
    taken = perf_counter() - begun
    sample = None if wrong is None else {"number": number, "route": path, "wrong": wrong, "body": repr(data[:_SAMPLE])}
    return path if method == "POST" else method, status, taken, sample


async def fuzz(server: Server, config: FuzzConfig, seed: int, on_step: Callable[[], object]) -> dict[str, Any]:
    """Send all bodies; ``on_step`` is called :data:`STEPS` times.

    Returns:
        Answers by status, right ones by path, the longest seconds, what was wrong, whether a text is as before, and texts
        that were left.
    """
    statuses, right = Counter[str](), Counter[str]()
    longest, wrong = 0.0, list[dict[str, Any]]()
    bodies = valid(server.model)
    probe = {**bodies[0][1], "max_tokens": 16}
    async with client_of(server, config.seconds) as client:
        before = await answer(client, probe)
        one = partial(send, client, bodies, seed)
        for step in range(STEPS):
            part = range(step * config.requests // STEPS, (step + 1) * config.requests // STEPS)
            for path, status, taken, sample in await closed_loop(one, part, config.clients):
                statuses[status] += 1
                right[path] += status == "200"
                longest = max(longest, taken)
                wrong += [] if sample is None else [sample]
            on_step()
        now = await idle(client)
        after = await answer(client, probe)
    return {
        "statuses": dict(sorted(statuses.items())),
        "right": dict(sorted(right.items())),
        "longest_seconds": longest,
        "wrong": wrong[:50],
        "wrong_count": len(wrong),
        "same_text": before.complete and before.text == after.text,
        "server": asdict(now),
    }


def described(server: Server) -> str:
    """The server's document, in which the name of the model can only be its own: with another one every answer is 404."""
    found = httpx2.get(f"{server.url}/openapi.json", timeout=30).raise_for_status().json()
    own = {"const": server.model}
    for schema in found["components"]["schemas"].values():
        if "model" in schema.get("properties", {}):
            needed = "model" in schema.get("required", ())
            schema["properties"]["model"] = own if needed else {"anyOf": [own, {"type": "null"}]}
    return json.dumps(found)


def schemathesis(server: Server, cases: int, seed: int, seconds: float) -> dict[str, Any]:
    """Run schemathesis on the server's own document.

    Returns:
        The exit status (0: nothing found), the end of the report, and why it was left out, if it was.
    """
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", "openapi.json", "--url", server.url, "--max-examples", str(cases),
        "--phases", "examples,coverage,fuzzing", "--exclude-checks", "positive_data_acceptance",
        "--seed", str(seed), "--request-timeout", str(seconds), "--continue-on-failure", "--no-shrink",
        "--suppress-health-check", "all",
    ]  # fmt: skip
    with TemporaryDirectory(prefix="draftwood-bench-") as folder:  # it leaves files where it runs
        (Path(folder) / "openapi.json").write_text(described(server), encoding="utf-8")
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(folder))
    if "No module named" in done.stderr:
        return {"left_out": 'schemathesis is not installed: pip install ".[fuzz]"'}
    return {"exit_status": done.returncode, "output": (done.stdout + done.stderr)[-4000:]}


def checks(found: dict[str, Any], config: FuzzConfig) -> list[Check]:
    """No server error, no hang, nothing left."""
    server, kinds = found["server"], Counter(sample["wrong"] for sample in found["wrong"])
    wrong = ", ".join(f"{n} times {what}" for what, n in kinds.items())
    left = server["running"] + server["waiting"]
    out = [
        Check(what="answers that are a server error, too late, or an error of another shape",
              found=f"{found['wrong_count']} of {config.requests}" + (f" ({wrong})" if wrong else ""),
              holds=not found["wrong_count"]),
        Check(what="no round failed, no text is left", found=f"{server['failed_rounds']} rounds, {left} texts",
              holds=not (server["failed_rounds"] or left)),
        Check(what="a text after all this is the one before it", found="yes" if found["same_text"] else "no",
              holds=found["same_text"]),
    ]  # fmt: skip
    if (status := found["schemathesis"].get("exit_status")) is not None:
        out.append(Check(what="schemathesis finds nothing", found=f"exit status {status}", holds=status == 0))
    return out


def run(served: Served, config: FuzzConfig, on_step: Callable[[], object]) -> dict[str, Any]:
    """The document of a run; raises what :func:`serving` raises."""
    before = load_average()
    with chatting(served) as models, serving(models, "--max-length", str(MAX_LENGTH)) as server:
        found = asyncio.run(fuzz(server, config, served.seed, on_step))
        other = schemathesis(server, config.cases, served.seed, config.seconds) if config.cases else {"left_out": "0 cases"}
    found["schemathesis"] = other
    return document("serve-fuzz", served, config, before, checks(found, config), found)


def markdown(found: dict[str, Any]) -> str:
    """The report, a function of the document alone."""
    statuses = table(["status", "answers"], [[status, str(n)] for status, n in found["statuses"].items()])
    right = "Status 200 by route: " + ", ".join(f"{path} {n}" for path, n in found["right"].items()) + "."
    longest = f"The slowest answer took {found['longest_seconds']:.2f} s."
    other = found["schemathesis"]
    left_out = f"schemathesis was left out: {other['left_out']}." if "left_out" in other else ""
    lines = [f"* {s['wrong']}, {s['route']}: `{s['body']}`" for s in found["wrong"]]
    output = "" if "left_out" in other else "```text\n" + other["output"].strip() + "\n```"
    return report("Bodies that are nearly right", found, statuses, right, longest, "\n".join(lines), left_out, output)
