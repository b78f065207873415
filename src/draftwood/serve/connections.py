"""Connections whose clients may send no more and read on."""

from __future__ import annotations

from typing import Any, Final, final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from draftwood.serve.settings import KEEP_ALIVE_SECONDS

_FIRST_SECONDS: Final = 0.05  # from the first interim answer to the second one; the time doubles each time


@final
class Connection(H11Protocol):
    """A connection that answers a client that has closed its own side.

    A client that has gone looks the same until it is written to. Then its system resets the connection, and the next write
    fails. So the client gets interim answers (``100 Continue``) until its answer begins, which every client skips. The parts
    of a stream do the same. Clients of HTTP 1.0 know no interim answers, and count as gone.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._half_closed = False

    def eof_received(self) -> bool:  # type: ignore[override]  # which asyncio wants
        """Called when the client sends no more; returns whether the connection stays open."""
        cycle = self.cycle
        self._half_closed = (
            cycle is not None
            and not cycle.response_complete
            and not cycle.more_body
            and cycle.scope["http_version"] == "1.1"
        )
        if self._half_closed:
            self._write_interim(_FIRST_SECONDS)
        return self._half_closed

    def _write_interim(self, seconds: float) -> None:
        """An interim answer now, and the next one after so many seconds, until the answer begins or the client has gone."""
        if self.transport.is_closing() or self.cycle.response_started:
            return
        interim = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
        self.transport.write(self.conn.send(interim) or b"")
        self.loop.call_later(seconds, self._write_interim, min(2 * seconds, KEEP_ALIVE_SECONDS))

    def on_response_complete(self) -> None:
        """The last answer is followed by the end of the connection."""
        super().on_response_complete()
        if self._half_closed and self.cycle.response_complete:
            self.transport.close()
