"""Chats: messages, written by the model's own chat template."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal, final

from draftwood.core.checks import flag, short_repr
from draftwood.core.errors import ConfigError
from draftwood.engine.messages import SYSTEM, Message, checked, joined, with_thoughts
from draftwood.engine.special_names import SpecialNames
from draftwood.loading.outline import NO_TEMPLATE

MAX_NEW_TOKENS: Final = 1024
"""Most tokens of an answer. An answer should end by itself, and this is long for one."""
_MARK = "\x02"  # no template writes it
_HI: Final = {"role": "user", "content": "Hi"}
_FIELD: Final = re.compile(r"""message(\.tools\b|\[['"]tools['"]\])""")  # as Phi-4-mini's template has it
_PARTS: Final = re.compile(r"""\[['"]type['"]\] == ['"]thinking['"]""")  # as those of Ministral 3 and Magistral
_ORDER: Final = re.compile(
    r"""(\{\{-?)\s*raise_exception\((['"])(?:(?!\2).)*(?:alternate|Assistant message must have)(?:(?!\2).)*\2\)\s*(-?\}\})"""
)
"""How templates refuse what they could write: two messages of one role in a row, and one that is empty."""


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
        self._written: dict[tuple[str, ...], bool] = {}

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
        own = self._sources[bool(tools)]
        given = self._adapted(checked(messages, continues=continues), own)
        functions, signs = list(tools), dict[str, str]()
        if not flag("special_tokens_in_content", special_tokens):
            (given, functions), signs = self._names.hidden((given, functions))
        values = self._checked(variables) | ({"tools": functions} if functions else {})
        try:
            text = self._text(given, values, answer=not continues, continues=continues)
        except ConfigError:
            values["chat_template"] = _ORDER.sub(r"\1 '' \3", own)
            if values["chat_template"] == own or not self._reads_roles(values):
                raise
            text = self._text(given, values, answer=not continues, continues=continues)
        return self._names.encode(text, signs) if signs else self._ids(text)

    @cached_property
    def _names(self) -> SpecialNames:
        return SpecialNames(self._tokenizer)

    def reads(self, name: str) -> bool:
        """Whether the template holds a word; of several, the usual one or that for tools."""
        return any(name in source for source in self._sources)

    @cached_property
    def shows_tools(self) -> Literal["template", "field", "text"]:
        """What shows functions: the template, a field of the system's message, as a text, or a text of the system."""
        if self.reads("tools") and self._differs(lambda text: ([_HI], {"tools": [_function(text)]})):
            return "template"
        return "field" if any(map(_FIELD.search, self._sources)) else "text"

    @property
    def source(self) -> str:
        """The usual template; empty where there is none."""
        return self._sources[0]

    @cached_property
    def _sources(self) -> tuple[str, str]:
        """The templates of chats without tools and with tools."""
        return self._template(None), self._template([{}])

    def _template(self, tools: list[Any] | None) -> str:
        if not getattr(self._tokenizer, "chat_template", None):
            return ""
        try:
            return str(self._tokenizer.get_chat_template(tools=tools))
        except ValueError:  # several, and none for this
            return ""

    def _adapted(self, messages: Sequence[Message], source: str) -> list[Message]:
        """The messages in the roles of a template.

        Raises:
            ConfigError: tools in the messages, of which the template writes nothing.
        """
        for i, message in enumerate(messages):
            of_tool = message["role"] == "tool" and "tools" not in source
            if (of_tool or "tool_calls" in message) and "tool_calls" not in source:
                what = "is the answer of a tool" if message["role"] == "tool" else "holds tool_calls"
                raise ConfigError(
                    f"messages[{i}] {what}, but the target's chat template writes no tool calls: leave it out, write it as "
                    "a user's message, or take a model that uses tools"
                )
        known = "developer" in source
        found = [{**one, "role": "system"} if one["role"] == "developer" and not known else one for one in messages]
        found = with_thoughts(found) if _PARTS.search(source) and "reasoning_content" not in source else found
        roles = [one["role"] for one in found]
        if all(self._writes(role, roles[:place]) for place, role in enumerate(roles) if role in SYSTEM):
            return found
        return joined(found, first=roles[0] in SYSTEM and self._writes(roles[0], []))

    def _writes(self, role: str, before: Sequence[str]) -> bool:
        """Whether the template writes a text of the system behind such roles; some refuse it, or leave it out."""
        key = (role, *(before[:1] if {*before} <= {*SYSTEM} else ("user", "assistant")))
        if key not in self._written:
            chat = [{"role": one, "content": "Hi"} for one in (*key[1:], "user")]
            self._written[key] = self._differs(lambda text: ([*chat[:-1], {"role": role, "content": text}, chat[-1]], {}))
        return self._written[key]

    def _reads_roles(self, values: dict[str, Any]) -> bool:
        """Whether the template reads the roles of messages; one of turns may infer them from their order."""
        return self._differs(lambda text: ([_HI, {**_HI, "role": {"yes": "user", "no": "assistant"}[text]}, _HI], values))

    def _differs(self, chat: Callable[[str], tuple[Sequence[Message], dict[str, Any]]]) -> bool:
        """Whether a text in a chat and its values changes what the template writes, without an error."""
        try:
            return len({self._text(*chat(text), answer=True) for text in ("yes", "no")}) == 2
        except ConfigError:
            return False

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
        try:
            _, found, after = self._text([_HI, {"role": "assistant", "content": _MARK}], {}, answer=False).rpartition(_MARK)
        except ConfigError:  # a template with other roles
            return ()
        first = self._ids(after.lstrip())[:1] if found else []
        special = self._tokenizer.added_tokens_decoder
        ends = [token for token in first if token < self._vocab and token in special and special[token].special]
        inner = "<|end|>" if self.reads("<|channel|>") else ""  # in channels it ends thoughts too
        return tuple(token for token in ends if special[token].content != inner)

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


def _function(name: str) -> dict[str, Any]:
    """A function as templates read it."""
    parameters = {"type": "object", "properties": {"a": {"type": "string", "description": "-"}}, "required": ["a"]}
    return {"type": "function", "function": {"name": name, "description": "-", "parameters": parameters}}
