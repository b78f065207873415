"""A tiny chat model behind the server: in the process of the test, and on a port."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from starlette.testclient import TestClient

import draftwood
from draftwood import LoadOptions, Method, Pair
from draftwood.serve.app import make_app
from draftwood.serve.run import listen, make_server
from draftwood.serve.service import Service
from draftwood.serve.settings import ServeOptions
from tests.tiny_chat import save_chat

METHOD = Method(method="shared-noise", shape="2-2")
MESSAGES = [{"role": "user", "content": "the fox ran"}]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target and its draft model."""
    folder = tmp_path_factory.mktemp("served")
    return save_chat(folder / "target"), save_chat(folder / "draft", layers=1, seed=1)


def loaded(folders: tuple[Path, Path]) -> Pair:
    """A pair of its own: a server has its pair for itself."""
    return draftwood.load(*folders, options=LoadOptions(dtype="float32", device="cpu", backend="torch", profile="none"))


@pytest.fixture(scope="session")
def pair(folders: tuple[Path, Path]) -> Pair:
    """The same models in Python."""
    return loaded(folders)


def make_service(pair: Pair, *, method: Method = METHOD, **options: Any) -> Service:
    return Service(pair, ServeOptions(**options), name="tiny", method=method)


@contextmanager
def serving(service: Service, keys: tuple[str, ...] = ()) -> Iterator[TestClient]:
    """A client of an application in this process."""
    with TestClient(make_app(service, keys), raise_server_exceptions=False) as client:
        yield client


@dataclass
class Live:
    """A server on a port."""

    service: Service
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def live_server(service: Service, keys: tuple[str, ...] = ()) -> Iterator[Live]:
    with listen("127.0.0.1", 0) as found:
        server = make_server(service, keys)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [found]})
        thread.start()
        until(lambda: server.started)
        try:
            yield Live(service, found.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()


def until(done: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until something is true; it fails the test if that takes too long."""
    end = monotonic() + seconds
    while not done():
        assert monotonic() < end, "waited in vain"
        sleep(0.005)


def chat(**fields: Any) -> dict[str, Any]:
    """The body of a chat."""
    return {"model": "tiny", "messages": MESSAGES, "max_tokens": 16, "seed": 1, **fields}


def completion(**fields: Any) -> dict[str, Any]:
    """The body of a completion."""
    return {"model": "tiny", "prompt": "the fox ran", "max_tokens": 16, "seed": 1, **fields}


def chunks(body: str) -> list[dict[str, Any]]:
    """The chunks of a stream, which ends with the mark of its end; comments are left out."""
    parts = [part for part in body.split("\n\n") if part and not part.startswith(":")]
    assert all(part.startswith("data: ") and "\n" not in part for part in parts)
    assert parts[-1] == "data: [DONE]"
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-1]]


def metric(client: TestClient, name: str) -> float:
    """The value of a metric, labels included in its name."""
    lines = client.get("/metrics").text.splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(f"draftwood:{name} ")), 0.0)
