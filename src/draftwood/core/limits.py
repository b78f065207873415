"""The limits of a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from draftwood.core.checks import flag, integer, setting, several
from draftwood.core.errors import ConfigError
from draftwood.core.unknown import known_fields

FinishReason: TypeAlias = Literal["stop", "length"]
"""Why a text ended."""


@final
@known_fields("limits")
@dataclass(frozen=True, kw_only=True)
class Limits:
    """When a text ends.

    Raises:
        ConfigError: a value out of range.
    """

    max_new_tokens: int = setting(200, "the most tokens to generate")
    stop: tuple[str, ...] = setting((), "end before this text; can be repeated")
    stop_token_ids: tuple[int, ...] = setting((), "end after this token; can be repeated")
    ignore_eos: bool = setting(False, "continue after the end-of-text token")

    def __post_init__(self) -> None:
        several("stop", self.stop, str, "texts")
        several("stop_token_ids", self.stop_token_ids, int, "token ids")
        integer("max_new_tokens", self.max_new_tokens, 1)
        if bad := [token for token in self.stop_token_ids if token < 0]:
            raise ConfigError(f"stop_token_ids holds {bad[0]}, and token ids begin at 0: leave it out")
        flag("ignore_eos", self.ignore_eos)
        if any(not text for text in self.stop):
            raise ConfigError("stop holds an empty text: it would end everything at once; leave it out")
