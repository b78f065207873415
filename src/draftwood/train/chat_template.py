"""The fixed parts of a chat template."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from draftwood.core.errors import ConfigError

_MARKS = ("\x01", "\x02", "\x03")


@final
@dataclass(frozen=True)
class Template:
    """The fixed parts of a model's chats or texts, as token ids.

    Attributes:
        head: before the first user turn; before a plain text.
        to_answer: between a user turn and the answer.
        to_user: between an answer and the next user turn; empty if there are no turns.
        ends: tokens that end a turn, or a text.
    """

    head: list[int]
    to_answer: list[int]
    to_user: list[int]
    ends: frozenset[int]

    @property
    def has_turns(self) -> bool:
        """Whether the model writes chats; plain texts otherwise."""
        return bool(self.to_user)

    @staticmethod
    def of(tokenizer: Any, eos: Sequence[int]) -> Template:
        """The template of a tokenizer: of chats if it has a chat template, else of plain texts.

        Raises:
            ConfigError: a chat template that does not hold each message exactly once and unchanged, or plain texts that no
                token begins.
        """
        return _of_chats(tokenizer, eos) if getattr(tokenizer, "chat_template", None) else _of_texts(tokenizer, eos)


def _of_chats(tokenizer: Any, eos: Sequence[int]) -> Template:
    """Split from a chat with two user turns."""
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": mark} for role, mark in zip(roles, _MARKS, strict=True)]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    parts = re.split("|".join(_MARKS), text)
    if len(parts) != 4:
        raise ConfigError("the target's chat template does not hold every message once, so chats cannot be sampled")
    head, to_answer, to_user, again = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in parts)
    if not to_user or to_user[0] not in eos or to_answer != again:
        raise ConfigError("the target's chat template does not end an answer with the end-of-text token of its config")
    return Template(head, to_answer, to_user, frozenset(eos) | {to_answer[0]})


def _of_texts(tokenizer: Any, eos: Sequence[int]) -> Template:
    """What the tokenizer puts before a text, else its beginning-of-text token, else the end of the text before."""
    begin = tokenizer("")["input_ids"]
    if not begin:
        bos = tokenizer.bos_token_id
        begin = [bos] if bos is not None else list(eos[:1])
    if not begin:
        raise ConfigError(
            "the target has no chat template, and no beginning-of-text or end-of-text token that could begin its texts: "
            "name bos_token in its tokenizer_config.json"
        )
    return Template(begin, [], [], frozenset(eos))
