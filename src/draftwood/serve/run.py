"""The process: a port, signals, and an orderly end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final, TypeAlias, final

import uvicorn

from draftwood.core.errors import ConfigError
from draftwood.serve.app import make_app
from draftwood.serve.document import UNREAD_SECONDS
from draftwood.serve.registry import Registry

Say: TypeAlias = Callable[[str], object]
_ENDING_SECONDS: Final = 60  # for the last round and the last chunks, after the texts were cut


@final
class Server(uvicorn.Server):
    """Ends in order: no new requests, then the texts' own ends within the given seconds, then the rest as they are.

    ``say`` is called with a sentence about what the end waits for.
    """

    def __init__(self, config: uvicorn.Config, registry: Registry, say: Say) -> None:
        super().__init__(config)
        self._registry, self._say, self._signals = registry, say, 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second one ends all texts as they are, the third one waits for nothing.

        None is noted for the end, where uvicorn would raise it again: the exit status of the process is 0.
        """
        self._signals += 1
        self.should_exit = True
        self.force_exit = self._signals > 2
        if self._signals > 1:
            self._registry.cut()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        count, drain = self._registry.texts, self._registry.options.drain
        what = f"{count} unfinished text{'' if count == 1 else 's'} may end within {drain:g} s (--drain)"
        self._say(f"Stopping: {what}; Ctrl-C ends them at once." if count else "Stopping: no text is unfinished.")
        self._registry.drain()
        cut = asyncio.get_running_loop().call_later(drain, self._registry.cut)
        await super().shutdown(sockets)
        cut.cancel()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; raises a ConfigError if the address is in use, or not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        found = socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=both)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}, port {port}: {error.strerror}; give another --host or --port") from None
    unread = getattr(socket, "TCP_USER_TIMEOUT", None)  # else a client that never reads keeps its connection
    if unread is not None:
        found.setsockopt(socket.IPPROTO_TCP, unread, int(2000 * UNREAD_SECONDS))  # ms; accepted sockets inherit it
    return found


def make_server(registry: Registry, keys: Sequence[str] = (), say: Say = lambda sentence: None) -> Server:
    """A server that runs on a socket of :func:`listen`."""
    config = uvicorn.Config(
        make_app(registry, keys),
        http="h11",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=round(registry.options.drain) + _ENDING_SECONDS,
    )
    return Server(config, registry, say)


def serve(registry: Registry, keys: Sequence[str], say: Say) -> None:
    """Serve until a signal comes; ``say`` is called with sentences about begin and end. Raises as :func:`listen`."""
    host = registry.options.host
    with listen(host, registry.options.port) as found:
        shown = f"[{host}]" if ":" in host else host
        names = ", ".join(registry.names)
        say(f"Serving {names} at http://{shown}:{found.getsockname()[1]}/v1")
        make_server(registry, keys, say).run(sockets=[found])
