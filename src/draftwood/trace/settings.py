"""What a trace keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from draftwood.core.checks import integer, setting, settings
from draftwood.core.unknown import known_fields


@final
@known_fields("trace")
@dataclass(frozen=True, kw_only=True)
class TraceSettings:
    """The bounds of a trace.

    Attributes:
        tokens: the likeliest tokens of each distribution that are kept.
        rounds: the rounds of a text that are kept, the first ones.

    Raises:
        ConfigError: a number below 1.
    """

    tokens: int = setting(8, "likeliest tokens of each distribution that are kept")
    rounds: int = setting(500, "rounds that are kept, the first ones")

    def __post_init__(self) -> None:
        for name in ("tokens", "rounds"):
            integer(f"{name} of a trace", getattr(self, name), 1)


TraceLike: TypeAlias = bool | TraceSettings | Mapping[str, Any]
"""True, or the bounds of the trace; False for no trace."""


def trace_settings(given: TraceLike) -> TraceSettings | None:
    """The bounds of a trace; None without one.

    Raises:
        ConfigError: anything else, or what :class:`TraceSettings` refuses.
    """
    if isinstance(given, bool):
        return TraceSettings() if given else None
    return settings("trace", given, TraceSettings)
