"""What the benchmark of Ray demands, and that it notices what does not hold."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ray import faults, file, leaving
from benchmarks.ray.config import RayConfig
from benchmarks.serving.client import Answer, client_of
from benchmarks.serving.servers import Server

CONFIG = RayConfig(texts=8, prompts=8, clients=4)
WHOLE = {"status": 200, "finish_reason": "length"}


def broken(checks: list[Any]) -> int:
    return sum(not check.holds for check in checks)


@pytest.mark.parametrize(
    ("first", "second", "again", "count"),
    [
        ({"text": "a fox", **WHOLE}, {"text": "a h", "status": 200, "error": "RemoteProtocolError"}, "a hen", 0),
        ({"text": "a cow", **WHOLE}, {"text": "a h", "status": 200, "error": "RemoteProtocolError"}, "a hen", 1),
        ({"text": "a fox", **WHOLE}, {"text": "a h", "status": 200}, "a hen", 1),  # lost in silence
        ({"text": "a fox", **WHOLE}, {"text": "a o", "status": 200, "error": "ReadTimeout"}, "a hen", 2),
        ({"text": "a fox", **WHOLE}, {"status": 500, "error": "Internal Server Error"}, "a cow", 1),
        ({"text": "a fox", **WHOLE}, {"text": "a hen", **WHOLE}, "", 1),  # nothing was lost
    ],
)
def test_control_a_wrong_lost_or_late_text_is_seen(first: Any, second: Any, again: str, count: int) -> None:
    found = [asdict(Answer(**one)) for one in (first, second)]
    document = {"wanted": ["a fox", "a hen"], "found": found, "again": {"1": again}}
    assert broken(faults.checks(document, CONFIG)) == count


def test_what_came_before_a_connection_broke_is_kept() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        chunk = b'data: {"choices": [{"text": "a h"}]}\n\n'
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(chunk), chunk))
        writer.close()

    async def got() -> Answer:
        async with await asyncio.start_server(cut, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with client_of(Server(url=url, model="tiny")) as client:
                return await faults.answered(client, {"stream": True})

    found = asyncio.run(got())
    assert (found.status, found.text, found.error, found.complete) == (200, "a h", "RemoteProtocolError", False)


def test_control_a_line_that_is_missing_repeated_or_another_is_seen(tmp_path: Path) -> None:
    right = [{"index": i, "token_ids": [i]} for i in range(8)]
    for name, lines in {
        "alone": right, "right": right[::-1], "twice": [*right, right[0]], "short": right[1:],
        "wrong": [*right[1:], {"index": 0, "error": "none"}],
    }.items():  # fmt: skip
        (tmp_path / name).write_text("".join(json.dumps(one) + "\n" for one in lines))
    for name, count in (("right", 0), ("twice", 1), ("short", 1), ("wrong", 1)):
        found = file.compared(tmp_path / name, tmp_path / "alone") | {"stopped_at": 4}
        assert broken(file.checks(found, CONFIG)) == count, name


@pytest.mark.parametrize(
    ("change", "count"),
    [({}, 0), ({"left": 0}, 1), ({"whole": 1}, 1), ({"busy": {"a": 0, "b": 1}}, 1), ({"busy": {"a": 0}}, 1)],
)
def test_control_rows_that_are_not_freed_are_seen(change: dict[str, Any], count: int) -> None:
    right = {"left": 2, "whole": 2, "stayed": 2, "busy": {"a": 0, "b": 0}}
    assert broken(leaving.checks(right | change, CONFIG)) == count
