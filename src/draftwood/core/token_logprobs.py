"""Log-probabilities that are reported with a text: what is wanted, and one token's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, final, get_args

from draftwood.core.checks import choice, integer, settings, short_repr
from draftwood.core.errors import ConfigError
from draftwood.core.unknown import known_fields

Of: TypeAlias = Literal["model", "sampled"]
MAX_TOP: Final = 20
"""Most likely tokens that are reported at a position; the bound of OpenAI's interface."""


@final
@known_fields("logprobs")
@dataclass(frozen=True, kw_only=True)
class LogprobSettings:
    """Which log-probabilities are reported with the tokens of a text.

    Attributes:
        top: how many of the likeliest tokens are listed at each position, from 0 to 20.
        of: ``model`` is the log-softmax of the target's own scores, before temperature, penalties, bias and truncation;
            ``sampled`` is the distribution that the token was drawn from, after all of these. At temperature 0 its token is
            certain: log 1 = 0.

    Raises:
        ConfigError: a value out of range.
    """

    top: int = 0
    of: Of = "model"

    def __post_init__(self) -> None:
        integer("top of logprobs", self.top, 0, MAX_TOP)
        choice("of, the kind of logprobs,", self.of, get_args(Of))


LogprobsLike: TypeAlias = int | LogprobSettings | Mapping[str, Any] | None
"""The number of likeliest tokens at each position, or settings; None for no log-probabilities."""


def logprob_settings(given: LogprobsLike) -> LogprobSettings | None:
    """The settings; None without log-probabilities.

    Raises:
        ConfigError: anything else, or what :class:`LogprobSettings` refuses.
    """
    if given is None:
        return None
    if isinstance(given, LogprobSettings | Mapping):
        return settings("logprobs", given, LogprobSettings)
    if isinstance(given, bool):
        raise ConfigError(
            f"logprobs is {short_repr(given)}: give how many of the likeliest tokens to list, 0 for none of them"
        )
    return LogprobSettings(top=integer("logprobs", given))


@final
@dataclass(frozen=True, kw_only=True)
class TokenLogprob:
    """A token's log-probability, and the likeliest tokens at its position.

    Attributes:
        token: token id.
        logprob: natural logarithm of its probability; minus infinity for a token of a prompt, or a forced last token, that
            the model excludes.
        top: the likeliest tokens and their log-probabilities, likeliest first; the token itself may be one of them. Tokens
            of probability zero are left out, so there may be fewer than requested.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
