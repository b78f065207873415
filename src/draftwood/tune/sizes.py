"""The extent of the measurements of ``draftwood tune``; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from draftwood.core.checks import integer, number, setting
from draftwood.core.errors import ConfigError
from draftwood.sampling.settings import Sampling


@final
@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The extent of the measurements.

    Raises:
        ConfigError: a value out of range.
    """

    minutes: float = setting(2.5, "minutes to measure; more minutes make the figures more certain")
    temperature: tuple[float, ...] = setting((0.0, 0.6, 1.0), "measure at this temperature; can be repeated")
    prompts: int = setting(6, "the most prompts to continue")
    max_new_tokens: int = setting(48, "new tokens per prompt")
    seed: int = setting(0, "seed of texts and orders")

    def __post_init__(self) -> None:
        for name in ("prompts", "max_new_tokens"):
            integer(name, getattr(self, name), 1)
        if number("minutes", self.minutes) <= 0:
            raise ConfigError(f"minutes is {self.minutes}: give a number above 0")
        if not self.temperature:
            raise ConfigError("no temperature was given: name at least one")
        for value in self.temperature:
            Sampling(temperature=value)
