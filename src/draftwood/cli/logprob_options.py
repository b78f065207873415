"""The options for log-probabilities, of every command that writes JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from draftwood.core.checks import setting
from draftwood.core.errors import ConfigError
from draftwood.core.token_logprobs import LogprobSettings, Of


@final
@dataclass(frozen=True, kw_only=True)
class LogprobOptions:
    """Log-probabilities in JSON output.

    Raises:
        ConfigError: a number out of range, or a kind without a number.
    """

    logprobs: int | None = setting(
        None, "in JSON: every token's log-probability, and so many of the likeliest tokens, 0 to 20"
    )
    logprobs_of: Of | None = setting(
        None, "whose they are: the model's own (the default), or of the distribution sampled from"
    )

    def __post_init__(self) -> None:
        if self.logprobs is None and self.logprobs_of is not None:
            raise ConfigError(f"--logprobs-of {self.logprobs_of} belongs to --logprobs N, which is missing")
        _ = self.wanted

    @property
    def wanted(self) -> LogprobSettings | None:
        """The settings of the requests; None without log-probabilities."""
        return None if self.logprobs is None else LogprobSettings(top=self.logprobs, of=self.logprobs_of or "model")

    def check_json(self, as_json: bool, how: str) -> None:
        """Refuse log-probabilities where the output is plain text; ``how`` says which option makes it JSON."""
        if self.logprobs is not None and not as_json:
            raise ConfigError(f"--logprobs {self.logprobs} is for JSON, and this output is plain text: add {how}")
