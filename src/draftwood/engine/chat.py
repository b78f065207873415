"""Chats: messages, checked and written by the model's own chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, TypeAlias, final

from draftwood.core.arguments import check_text
from draftwood.core.checks import flag, shown
from draftwood.core.errors import ConfigError
from draftwood.engine.contents import SpecialNames

Message: TypeAlias = Mapping[str, Any]
"""A ``role``, a ``content``, and other fields that the chat template reads."""
ROLES: Final = ("system", "developer", "user", "assistant", "tool")
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

    def encode(self, messages: Sequence[Message], *, special_tokens: bool = False) -> list[int]:
        """Token ids of the messages and the beginning of an answer.

        The template writes the special tokens itself, so the tokenizer adds none.

        Args:
            messages: the chat.
            special_tokens: names of special tokens in contents become these tokens; else they are text.

        Raises:
            ConfigError: messages that are not valid, no chat template, or one that refuses these messages.
        """
        written: Sequence[Message] = checked(messages)
        if flag("special_tokens_in_content", special_tokens):
            return self._ids(self._text(written, answer=True))
        hidden, signs = self._names.hidden(written)
        text = self._text(hidden, answer=True)
        return self._names.encode(text, signs) if signs else self._ids(text)

    @cached_property
    def _names(self) -> SpecialNames:
        return SpecialNames(self._tokenizer)

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The special token that the template writes after an answer, if there is one."""
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": _MARK}]
        try:
            _, found, after = self._text(messages, answer=False).rpartition(_MARK)
        except ConfigError:  # a template with other roles
            return ()
        first = self._ids(after.lstrip())[:1] if found else []
        special = self._tokenizer.added_tokens_decoder
        return tuple(token for token in first if token < self._vocab and token in special and special[token].special)

    def _text(self, messages: Sequence[Message], *, answer: bool) -> str:
        if not getattr(self._tokenizer, "chat_template", None):
            raise ConfigError(
                "the target's tokenizer has no chat template, so it is no chat model: take a chat model, or generate for a "
                "plain text"
            )
        try:
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=answer)
        except Exception as error:  # templates are programs, which raise errors of any class
            reason = " ".join(str(error).split())
            raise ConfigError(f"the target's chat template refuses these messages: {reason}") from error
        if not text:
            raise ConfigError("the target's chat template writes nothing for these messages: give others")
        return str(text)

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def checked(messages: object) -> list[dict[str, Any]]:
    """The messages of a chat, with their contents as texts. The last one must not be the assistant's.

    Raises:
        ConfigError: names the message and what is wrong with it.
    """
    wanted = 'a list of messages such as [{"role": "user", "content": "Hello"}]'
    if not isinstance(messages, list | tuple):
        raise ConfigError(f"messages is {shown(messages)}: give {wanted}")
    if not messages:
        raise ConfigError(f"messages is empty: give {wanted}")
    found = [_message(f"messages[{i}]", message) for i, message in enumerate(messages)]
    if found[-1]["role"] == "assistant":
        raise ConfigError("the last message is the assistant's, and its answer comes next: end with a user's message")
    return found


def _message(name: str, message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ConfigError(f"{name} is {shown(message)}: give a mapping with role and content")
    if missing := [field for field in ("role", "content") if message.get(field) is None]:
        raise ConfigError(f"{name} has no {missing[0]}: give a mapping with role and content")
    if message["role"] not in ROLES:
        raise ConfigError(f"{name} has role {shown(message['role'])}: give one of {', '.join(ROLES)}")
    return {**message, "content": _content(name, message["content"])}


def _content(name: str, content: object) -> str:
    """The text of a content; parts of text are joined by line breaks."""
    if isinstance(content, str):
        return check_text(f"content of {name}", content)
    if not isinstance(content, list | tuple):
        raise ConfigError(f"the content of {name} is {shown(content)}: give a text, or a list of parts of type text")
    return "\n".join(_part(f"part {i} of {name}", part) for i, part in enumerate(content))


def _part(name: str, part: object) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or kind is None:
        raise ConfigError(f'{name} is {shown(part)}: give {{"type": "text", "text": ...}}')
    if kind != "text":
        raise ConfigError(f"{name} has type {shown(kind)}, but the target reads text only: leave it out")
    if not isinstance(part.get("text"), str):
        raise ConfigError(f"{name} holds the text {shown(part.get('text'))}: give a text")
    return check_text(name, part["text"])
