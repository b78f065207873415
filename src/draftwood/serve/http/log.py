"""The log on standard error: one line for every request, and errors with their cause."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias, final

LogFormat: TypeAlias = Literal["text", "json", "off"]
REQUESTS: Final = logging.getLogger("draftwood.serve.requests")
"""Takes one record for every request, with its fields in ``record.fields``. Prompts, texts and keys are never among them."""


@final
@dataclass(kw_only=True)
class Entry:
    """What the log says of a request, beyond its route and its answer's status.

    Attributes:
        id: of the request.
        counts: the tokens of its texts, as far as they are written; None where it wants none.
        error: the code of the error that it ended with.
        ignored: its fields that the server does not have.
    """

    id: str
    counts: Callable[[], Mapping[str, float]] | None = None
    error: str | None = None
    ignored: Sequence[str] = ()


ENTRY: Final[ContextVar[Entry | None]] = ContextVar("entry", default=None)
"""That of the present request; None outside of one, and in other threads."""


@final
class JsonLines(logging.Formatter):
    """One JSON object a line. A cause, with its traceback, is one text."""

    def format(self, record: logging.LogRecord) -> str:
        time, entry = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"), ENTRY.get()
        found: dict[str, Any] = {"time": time, "level": record.levelname.lower(), "logger": record.name}
        if entry is not None:
            found["id"] = entry.id
        if record.exc_info:
            found["cause"] = self.formatException(record.exc_info)
        return json.dumps(found | getattr(record, "fields", {"message": record.getMessage()}))


def start_log(kind: LogFormat) -> None:
    """Write the log of this process to standard error; ``off`` leaves its warnings and errors only."""
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if kind == "json" else text)
    logging.basicConfig(handlers=[handler])
    own = logging.getLogger("draftwood")
    own.handlers[:], own.propagate = [handler], False  # each record once, and no notes as while models were loaded
    own.setLevel(logging.WARNING)
    REQUESTS.setLevel(logging.WARNING if kind == "off" else logging.INFO)
