"""The options of a grammar and of log-probabilities, and what they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, final

from draftwood.core.checks import setting
from draftwood.core.errors import ConfigError
from draftwood.core.token_logprobs import LogprobSettings, Of
from draftwood.grammar.grammar import Grammar


@final
@dataclass(frozen=True, kw_only=True)
class GrammarOptions:
    """A grammar that texts follow; at most one is given."""

    json_schema: Path | None = setting(None, "write JSON that follows the schema in a file")
    json_object: bool = setting(False, "write a JSON object")
    regex: str | None = setting(None, "write text that this pattern matches as a whole")
    grammar: Path | None = setting(None, "write text of the Lark grammar in a file")


def with_grammar(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, where a :class:`Grammar` under the name ``grammar`` replaces the one that was given."""
    names = [f.name for f in fields(GrammarOptions)]
    wanted = [name for name in names if options.get(name) not in (None, False)]
    if len(wanted) > 1:
        flags = [f"--{name.replace('_', '-')}" for name in wanted]
        raise ConfigError(f"{' and '.join(flags)} were given, but a text follows one grammar: leave one out")
    rest = {name: value for name, value in options.items() if name not in names}
    return {**rest, "grammar": _grammar(wanted[0], options[wanted[0]])} if wanted else rest


def _grammar(option: str, value: Any) -> Grammar:
    if option == "json_object":
        return Grammar.json_object()
    if option == "regex":
        return Grammar.regex(value)
    try:
        text = Path(value).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--{option.replace('_', '-')} {value} cannot be read as UTF-8 text: {error}") from error
    return Grammar.json_schema(text) if option == "json_schema" else Grammar.lark(text)


@final
@dataclass(frozen=True, kw_only=True)
class LogprobOptions:
    """Log-probabilities in JSON output."""

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
