"""Chats: messages, written by the model's own chat template."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, final

from draftwood.core.checks import flag, short_repr
from draftwood.core.errors import ConfigError
from draftwood.engine.contents import SpecialNames
from draftwood.engine.messages import Message, checked
from draftwood.loading.templates import NO_TEMPLATE

MAX_NEW_TOKENS: Final = 1024
"""Most tokens of an answer. An answer should end by itself, and this is long for one."""
_MARK = "\x02"  # no template writes it


@final
class ChatTemplate:
    """The chat template of a tokenizer.

    Args:
        tokenizer: a tokenizer of ``transformers``; None where a model is used with token ids only.
        vocab: size of the model's vocabulary.
    """

    def __init__(self, tokenizer: Any, vocab: int) -> None:
        self._tokenizer = tokenizer
        self._vocab = vocab

    def encode(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        continues: bool = False,
        special_tokens: bool = False,
    ) -> list[int]:
        """Token ids of the messages and the beginning of an answer.

        The template writes the special tokens itself, so the tokenizer adds none.

        Args:
            messages: the chat.
            variables: further values that the template reads.
            tools: functions that the answer may call, for a template that reads them.
            continues: the last message is the assistant's, and the answer continues it.
            special_tokens: names of special tokens in contents become these tokens; else they are text.

        Raises:
            ConfigError: messages or variables that are not valid, no chat template, or one that refuses these messages.
        """
        given = self._adapted(checked(messages, continues=continues))
        functions, signs = list(tools), dict[str, str]()
        if not flag("special_tokens_in_content", special_tokens):
            (given, functions), signs = self._names.hidden((given, functions))
        values = self._checked(variables) | ({"tools": functions} if functions else {})
        text = self._text(given, values, answer=not continues, continues=continues)
        return self._names.encode(text, signs) if signs else self._ids(text)

    @cached_property
    def _names(self) -> SpecialNames:
        return SpecialNames(self._tokenizer)

    def reads(self, name: str) -> bool:
        """Whether the template holds a word."""
        return name in self._source

    @cached_property
    def _source(self) -> str:
        """The template that is used; empty where there is none, or several without a usual one."""
        if not getattr(self._tokenizer, "chat_template", None):
            return ""
        try:
            return str(self._tokenizer.get_chat_template())
        except ValueError:
            return ""

    def _adapted(self, messages: Sequence[Message]) -> list[Message]:
        """The messages in the roles of the template.

        Raises:
            ConfigError: tools in the messages, of which the template writes nothing.
        """
        for i, message in enumerate(messages):
            if (message["role"] == "tool" or "tool_calls" in message) and not self.reads("tool_calls"):
                what = "is the answer of a tool" if message["role"] == "tool" else "holds tool_calls"
                raise ConfigError(
                    f"messages[{i}] {what}, but the target's chat template writes no tool calls: leave it out, write it as "
                    "a user's message, or take a model that uses tools"
                )
        if self.reads("developer"):
            return list(messages)
        return [{**one, "role": "system"} if one["role"] == "developer" else one for one in messages]

    def _checked(self, variables: Mapping[str, Any] | None) -> dict[str, Any]:
        if variables is None or variables == {}:
            return {}
        if not isinstance(variables, Mapping) or not all(isinstance(name, str) for name in variables):
            given = short_repr(variables)
            raise ConfigError(f"chat_template_kwargs is {given}: map names that the chat template reads to values")
        own = inspect.signature(self._tokenizer.apply_chat_template).parameters
        reserved = {"self", "messages", *own, *self._tokenizer.SPECIAL_TOKENS_ATTRIBUTES}
        if found := sorted(reserved & variables.keys()):
            raise ConfigError(
                f"chat_template_kwargs holds {found[0]!r}, which is not for settings of the chat template: leave it out"
            )
        return dict(variables)

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The special token that the template writes after an answer, if there is one."""
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": _MARK}]
        try:
            _, found, after = self._text(messages, {}, answer=False).rpartition(_MARK)
        except ConfigError:  # a template with other roles
            return ()
        first = self._ids(after.lstrip())[:1] if found else []
        special = self._tokenizer.added_tokens_decoder
        return tuple(token for token in first if token < self._vocab and token in special and special[token].special)

    def _text(
        self, messages: Sequence[Message], variables: Mapping[str, Any], *, answer: bool, continues: bool = False
    ) -> str:
        if not getattr(self._tokenizer, "chat_template", None):
            raise ConfigError(f"the target's tokenizer {NO_TEMPLATE}")
        try:
            text = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=answer, continue_final_message=continues, **variables
            )
        except Exception as error:  # templates are programs, which raise errors of any class
            if str(error).startswith("continue_final_message is set"):  # and goes on with the whole chat
                raise ConfigError(
                    "the target's chat template does not write the last message as it is, so nothing can continue it: send "
                    "a chat that ends with a user's message"
                ) from None
            reason = " ".join(str(error).split())
            raise ConfigError(f"the target's chat template refuses these messages: {reason}") from error
        if not text:
            raise ConfigError("the target's chat template writes nothing for these messages: give others")
        return str(text)

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
