"""Documents of the ``serve-`` benchmarks, and what they demand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, final

import torch

from benchmarks.record import machine_lines, plain, surroundings
from benchmarks.report import table
from benchmarks.serving.config import Served


@final
@dataclass(frozen=True, kw_only=True)
class Check:
    """Something that has to hold.

    Attributes:
        what: in words.
        found: what was found, in words.
        holds: whether it does.
    """

    what: str
    found: str
    holds: bool


def document(
    kind: str, served: Served, config: Any, load_before: float | None, checks: list[Check], results: Mapping[str, Any]
) -> dict[str, Any]:
    """A document of plain values, with its surroundings."""
    here = surroundings(torch.device("cpu"), load_before, ["httpx2", "schemathesis", "uvicorn"])
    settings = plain(asdict(served) | asdict(config))
    return {"format": 1, "kind": kind, "config": settings, **here, "checks": [asdict(c) for c in checks], **results}


def holds(found: Mapping[str, Any]) -> bool:
    """Whether all checks of a document hold."""
    return all(check["holds"] for check in found["checks"])


def report(title: str, found: Mapping[str, Any], *parts: str) -> str:
    """A report: head, checks, and further parts."""
    config = found["config"]
    model = config["target"] or "the bundled pair"
    shape = f" {config['shape']}" if config["shape"] else ""
    settings = f"method {config['method']}{shape}, backend {config['backend']}, {config['dtype']}"
    served = f"a running server at {config['url']}" if config["url"] else settings
    lines = machine_lines(dict(found), f"{model}, {served}")
    rows = [[check["what"], check["found"], "yes" if check["holds"] else "**NO**"] for check in found["checks"]]
    blocks = [f"# {title}", "\n".join(lines)]
    blocks += [table(["what has to hold", "found", "holds"], rows)] if rows else []
    return "\n\n".join([*blocks, *filter(None, parts)]) + "\n"
