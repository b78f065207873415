"""Servers: started in a process of their own, or running already."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import IO, Final, final

import httpx2

from benchmarks.serving.config import Served
from benchmarks.start.process import memory
from draftwood.core.errors import ConfigError

START_SECONDS: Final = 180.0  # of loading
END_SECONDS: Final = 60.0
HOST: Final = "127.0.0.1"


@final
@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that takes requests.

    Attributes:
        url: its address, without ``/v1``.
        model: the model's name in requests.
        process: the number of its process; None if it was not started here.
        chats: whether the model has a chat template.
    """

    url: str
    model: str
    process: int | None = None
    chats: bool = False

    def memory(self) -> int | None:
        """Bytes of resident memory; None where the system does not tell."""
        return None if self.process is None else memory(Path(f"/proc/{self.process}/status"))["held"]


@contextmanager
def serving(served: Served, *more: str) -> Iterator[Server]:
    """The server of a benchmark; ends with the context if it was started here.

    Args:
        served: models, or the address of a running server.
        more: further options of the command.

    Raises:
        ConfigError: it does not start, or does not answer.
    """
    if served.url is not None:
        yield running(served.url)
        return
    with launched([sys.executable, "-m", "draftwood", "serve", *model_options(served), *more]) as found:
        yield found


def model_options(served: Served) -> list[str]:
    """The options of ``draftwood`` for these models."""
    options = ["--profile", "none", "--dtype", served.dtype, "--backend", served.backend, "--method", served.method]
    for name, value in (("--target", served.target), ("--draft", served.draft), ("--shape", served.shape)):
        options += [] if value is None else [name, value]
    return options


def running(url: str, process: int | None = None) -> Server:
    """A server that takes requests already.

    Raises:
        ConfigError: nothing answers there.
    """
    url = url.rstrip("/").removesuffix("/v1")
    try:
        served = httpx2.get(f"{url}/v1/models", timeout=10).raise_for_status().json()["data"][0]
        found = Server(url=url, model=served["id"], process=process, chats=bool(served.get("chat_template")))
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"url is {url!r}, but no server with a model answers there ({error}): give its address") from None
    return found


@contextmanager
def launched(command: Sequence[str]) -> Iterator[Server]:
    """Run a program that takes ``--host`` and ``--port``, and wait until its ``/health`` is 200.

    Raises:
        ConfigError: it ends before, or takes too long; says its last line.
    """
    port = free_port()
    with TemporaryDirectory(prefix="draftwood-bench-") as folder, (Path(folder) / "log").open("w+") as log:
        process = subprocess.Popen(
            [*command, "--host", HOST, "--port", str(port)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            _wait(process, f"http://{HOST}:{port}", log)
            yield running(f"http://{HOST}:{port}", process.pid)
        finally:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_port() -> int:
    """A port of this machine at which nobody listens."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        return int(free.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], url: str, log: IO[str]) -> None:
    end = monotonic() + START_SECONDS
    while process.poll() is None and monotonic() < end:
        try:
            if httpx2.get(f"{url}/health", timeout=10).status_code == 200:
                return
        except httpx2.HTTPError:
            pass
        sleep(0.2)
    log.seek(0)
    last = (log.read().strip().splitlines() or [f"exit status {process.poll()}"])[-1]
    raise ConfigError(f"the server does not start ({last})")
