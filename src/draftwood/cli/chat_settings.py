"""The options of ``draftwood chat`` that ``draftwood generate`` does not have."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, final

from draftwood.cli.grammar_options import GrammarOptions
from draftwood.cli.settings import Seed, Settings
from draftwood.core.checks import is_unicode, short_repr
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.core.settings import LoadOptions, Method
from draftwood.sampling.settings import Sampling

if TYPE_CHECKING:
    from draftwood.api import Pair


@final
@dataclass(frozen=True, kw_only=True)
class ChatModels:
    """The models: hub names or folders."""

    target: str = field(default="smollm2", metadata={"help": "chat model that answers"})
    draft: str | None = field(default=None, metadata={"help": "small model that drafts, with the target's tokenizer"})


@final
@dataclass(frozen=True, kw_only=True)
class ChatLength:
    """The length of an answer; None is the model's own."""

    max_new_tokens: int | None = field(
        default=None, metadata={"help": "the most tokens of an answer; default: the model's own, else 1024"}
    )


@final
@dataclass(frozen=True, kw_only=True)
class ChatDisplay:
    """The system prompt, the chat template, what messages may hold, and the display.

    Raises:
        ConfigError: a system prompt that is no Unicode text, values that are no JSON object, or ``compare`` with ``quiet``.
    """

    system: str | None = field(default=None, metadata={"help": "system prompt; default: that of the chat template, if any"})
    special_tokens_in_content: bool = field(
        default=False, metadata={"help": "names of special tokens in messages become these tokens, not text"}
    )
    chat_template_kwargs: str | None = field(
        default=None, metadata={"help": 'JSON object of values that the chat template reads: {"enable_thinking": false}'}
    )
    show: bool = field(
        default=False, metadata={"help": "mark drafted tokens (cyan, or in ⟦ ⟧) and the target's own (yellow)"}
    )
    compare: bool = field(default=False, metadata={"help": "with a MESSAGE: answer by plain decoding too, and compare"})
    quiet: bool = field(default=False, metadata={"help": "write the answers only, without their speed"})

    def __post_init__(self) -> None:
        if self.system is not None and not is_unicode(self.system):
            raise ConfigError("the system prompt is not UTF-8 text: convert it, for example with iconv -t utf-8")
        if self.compare and self.quiet:
            raise ConfigError("--compare shows two speeds, and --quiet shows none: leave out one of them")
        _ = self.variables

    @property
    def variables(self) -> dict[str, Any] | None:
        """The values for the chat template; None if none were given."""
        if self.chat_template_kwargs is None:
            return None
        with suppress(ValueError, RecursionError):
            if isinstance(found := json.loads(self.chat_template_kwargs), dict):
                return found
        given = short_repr(self.chat_template_kwargs)
        raise ConfigError(f'chat_template_kwargs is {given}: give a JSON object such as {{"enable_thinking": false}}')


SECTIONS: dict[str, tuple[type[Any], ...]] = {
    "Models": (ChatModels, LoadOptions),
    "Drafting": (Method,),
    "Grammar": (GrammarOptions,),
    "Sampling": (Sampling, Seed),
    "Length": (ChatLength, Limits),
    "Chat": (ChatDisplay,),
}


def limits_of(pair: Pair, settings: Settings) -> Limits:
    """The limits of an answer: the chat's own, with what was given."""
    given = {f.name: getattr(settings.limits, f.name) for f in fields(Limits) if f.name in settings.given}
    return replace(pair.chat_limits, **given)


def before(system: str | None) -> list[dict[str, Any]]:
    """The messages before a chat."""
    return [] if system is None else [{"role": "system", "content": system}]
