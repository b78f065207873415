"""A client that sends a large body sees why it is refused, over a connection of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest

from draftwood import Pair
from draftwood.serve import bodies
from draftwood.serve.errors import ApiError
from draftwood.serve.settings import MAX_BODY
from tests.serve import shapes
from tests.serve.client import COMPLETIONS
from tests.serve.conftest import Live, live_server, make_service

JSON = {"Content-Type": "application/json"}
KEY = {"Authorization": "Bearer right"}
LARGE = 24 << 20  # bytes: more than the buffers of a connection hold

REFUSALS = {
    "too large": (COMPLETIONS, JSON | KEY, 413),
    "without a key": (COMPLETIONS, JSON, 401),
    "another type": (COMPLETIONS, {"Content-Type": "text/plain"} | KEY, 400),
    "no such path": ("/v1/embeddings", JSON | KEY, 404),
    "another method": ("/metrics", JSON | KEY, 405),
}


@pytest.fixture(scope="module")
def live(served: Pair) -> Iterator[Live]:
    with live_server(make_service(served), ("right",)) as found:
        yield found


def post(live: Live, path: str, headers: dict[str, str], *, announced: bool = True) -> httpx2.Response:
    """The answer that an asynchronous client sees: it gives up where its connection is reset."""

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(LARGE // 65536):
            yield b" " * 65536

    async def send() -> httpx2.Response:
        async with httpx2.AsyncClient(timeout=60) as client:
            return await client.post(f"{live.url}{path}", content=b" " * LARGE if announced else parts(), headers=headers)

    return asyncio.run(send())


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "in chunks"])
@pytest.mark.parametrize(("path", "headers", "status"), REFUSALS.values(), ids=REFUSALS.keys())
def test_the_answer_is_seen(live: Live, path: str, headers: dict[str, str], status: int, announced: bool) -> None:
    response = post(live, path, headers, announced=announced)
    assert response.status_code == status
    shapes.check_error(response.json())


def test_control_where_the_connection_is_closed_clients_see_no_answer(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    closing = ApiError(413, "too large", headers={"Connection": "close"})
    monkeypatch.setattr(bodies, "_too_large", lambda: closing)
    with pytest.raises(httpx2.HTTPError):
        post(live, COMPLETIONS, JSON | KEY)


@pytest.mark.parametrize(("headers", "status"), [
    (["Content-Type: application/json", f"Content-Length: {2 * MAX_BODY}", "Expect: 100-continue"], 413),
    (["Content-Type: text/plain", "Content-Length: 1000"], 400),
])  # fmt: skip
def test_a_client_that_sends_no_body_gets_its_answer_at_once(live: Live, headers: list[str], status: int) -> None:
    lines = [f"POST {COMPLETIONS} HTTP/1.1", "Host: x", "Authorization: Bearer right", *headers, "", ""]
    with socket.create_connection(("127.0.0.1", live.port), timeout=5) as connection:
        connection.sendall("\r\n".join(lines).encode())
        assert f" {status} ".encode() in connection.recv(4096).split(b"\r\n")[0]
