"""Messages of chats, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from draftwood.core.checks import short_repr
from draftwood.core.errors import ConfigError
from draftwood.engine.arguments import check_text

Message: TypeAlias = Mapping[str, Any]
"""A ``role``, a ``content``, and other fields that the chat template reads."""
SYSTEM: Final = ("system", "developer")
ROLES: Final = (*SYSTEM, "user", "assistant", "tool")
_MEDIA: Final = {"image": "images", "audio": "audio", "video": "videos", "file": "files"}  # by words of a part's type


def checked(messages: object, *, continues: bool = False) -> list[dict[str, Any]]:
    """The messages of a chat, with their contents as texts and without fields that say nothing.

    The last one must not be the assistant's, unless it is the one that the answer continues.

    Raises:
        ConfigError: names the message and what is wrong with it.
    """
    wanted = 'a list of messages such as [{"role": "user", "content": "Hello"}]'
    if not isinstance(messages, list | tuple):
        raise ConfigError(f"messages is {short_repr(messages)}: give {wanted}")
    if not messages:
        raise ConfigError(f"messages is empty: give {wanted}")
    found = [_message(f"messages[{i}]", message) for i, message in enumerate(messages)]
    ends = found[-1]["role"] == "assistant" and "tool_responses" not in found[-1]  # in which results follow calls
    if ends and not continues:
        why = "the last message is the assistant's, and its answer comes next: end with a user's message, or set "
        raise ConfigError(f"{why}continue_final_message to continue it")
    if continues and not ends:
        raise ConfigError("continue_final_message is True, but the last message is no assistant's: leave it out")
    return found


def joined(messages: Sequence[Message], *, first: bool) -> list[Message]:
    """Messages in which texts of the system begin the user's next message, as the template of Gemma 3 has it.

    Args:
        first: those at the beginning of the chat stay the system's, as one message.
    """
    found: list[Message] = []
    for one in messages:
        ends = not found or found[-1]["role"] not in SYSTEM or (first and len(found) == 1 and one["role"] == "user")
        if ends or one["role"] not in (*SYSTEM, "user"):
            found.append(one)
        else:
            role = found[-1]["role"] if one["role"] in SYSTEM else "user"
            found[-1] = {**one, "role": role, "content": f"{found[-1]['content']}\n\n{one['content']}"}
    return [*found[:first], *({**one, "role": "user"} if one["role"] in SYSTEM else one for one in found[first:])]


def with_thoughts(messages: Sequence[Message]) -> list[Message]:
    """Messages whose thoughts are parts of their contents, as templates of Mistral's thinking models read them."""
    found: list[Message] = []
    for one in messages:
        thought = one["role"] == "assistant" and (one.get("reasoning_content") or one.get("reasoning"))
        said = [{"type": "text", "text": one["content"]}] if one["content"] else []
        found.append({**one, "content": [{"type": "thinking", "thinking": thought}, *said]} if thought else one)
    return found


def _message(name: str, message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not all(isinstance(field, str) for field in message):
        raise ConfigError(f"{name} is {short_repr(message)}: give a mapping with role and content")
    role, content = message.get("role"), message.get("content")
    content = "" if content is None and role == "assistant" else content  # as one with tool calls alone has it
    if role is None or content is None:
        raise ConfigError(f"{name} has no {'role' if role is None else 'content'}: give a mapping with role and content")
    if role not in ROLES:
        raise ConfigError(f"{name} has role {short_repr(role)}: give one of {', '.join(ROLES)}")
    given = {field: value for field, value in message.items() if value is not None and (field, value) != ("tool_calls", [])}
    if "tool_calls" in given and role != "assistant":
        raise ConfigError(f"{name} has tool_calls and the role {role}, but only the assistant calls tools: leave them out")
    return {**given, "content": _content(name, content)}


def _content(name: str, content: object) -> str:
    """The text of a content; parts of text are joined by line breaks."""
    if isinstance(content, str):
        return check_text(f"content of {name}", content)
    if not isinstance(content, list | tuple):
        raise ConfigError(f"the content of {name} is {short_repr(content)}: give a text, or a list of parts of type text")
    return "\n".join(_part(name, i, part) for i, part in enumerate(content))


def _part(name: str, number: int, part: object) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or kind is None:
        raise ConfigError(f'part {number} of {name} is {short_repr(part)}: give {{"type": "text", "text": ...}}')
    if kind != "text":
        what = next((what for word, what in _MEDIA.items() if word in str(kind)), None)
        why = "takes texts only" if what is None else f"takes no {what}"
        raise ConfigError(f"{name} holds a part of type {short_repr(kind)}, but this model {why}: leave it out")
    if not isinstance(part.get("text"), str):
        raise ConfigError(f"part {number} of {name} holds the text {short_repr(part.get('text'))}: give a text")
    return check_text(f"part {number} of {name}", part["text"])
