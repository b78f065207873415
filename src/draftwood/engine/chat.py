"""Chats: messages, written by the model's own chat template; names of special tokens in them are text."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any, Final, TypeVar, final
from uuid import uuid4

from tokenizers import AddedToken, Tokenizer

from draftwood.core.checks import flag, short_repr
from draftwood.core.errors import ConfigError
from draftwood.engine.messages import Message, checked
from draftwood.loading.templates import NO_TEMPLATE

T = TypeVar("T")
MAX_NEW_TOKENS: Final = 1024
"""Most tokens of an answer. An answer should end by itself, and this is long for one."""
_MARK = "\x02"  # no template writes it
_FIELD: Final = re.compile(r"""message(\.tools\b|\[['"]tools['"]\])""")  # as Phi-4-mini's template has it
_PRIVATE: Final = 0xE000  # characters for private use: templates change none, and strip none


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
        given = self._adapted(checked(messages, continues=continues), self._sources[bool(tools)])
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
        """Whether the template holds a word; of several, the usual one or that for tools."""
        return any(name in source for source in self._sources)

    @property
    def reads_tools_of_messages(self) -> bool:
        """Whether it reads tools in a field of the system message, as a text."""
        return any(map(_FIELD.search, self._sources))

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
        if "developer" in source:
            return list(messages)
        found = [{**one, "role": "system"} if one["role"] == "developer" else one for one in messages]
        return found if self._writes_system or all(one["role"] != "system" for one in found) else _joined(found)

    @cached_property
    def _writes_system(self) -> bool:
        """Whether the template writes the messages of the system; some refuse them, or leave them out."""
        user = {"role": "user", "content": "Hi"}
        try:
            texts = {self._text([{"role": "system", "content": text}, user], {}, answer=True) for text in ("yes", "no")}
        except ConfigError:
            return False
        return len(texts) == 2

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


@final
class SpecialNames:
    """The names of a tokenizer's special tokens, in contents and in what a template writes around them.

    In contents names are replaced by signs before the template runs, so names in its text are its own. A copy of the
    tokenizer that reads special tokens under other names only encodes the text. So contents are plain text as a whole.

    Args:
        tokenizer: a tokenizer of ``transformers``; None where a model is used with token ids only.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = {} if tokenizer is None else tokenizer.added_tokens_decoder
        self._tokens = {entry.content: (token, entry) for token, entry in added.items() if entry.special and entry.content}
        longest_first = sorted(self._tokens, key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        marks = [name for name in self._tokens if not name[0].isalnum()]  # else common words would begin one
        self._beginnings = {name[:end] for name in marks for end in range(1, len(name))}

    def hidden(self, messages: T) -> tuple[T, dict[str, str]]:
        """Messages with signs in place of names in all texts but roles, and what each sign stands for.

        So is the beginning of a name where a text ends: what the template writes next could complete it.
        """
        key, signs = _private(uuid4().hex), dict[str, str]()

        def sign(text: str) -> str:
            return signs.setdefault(text, key + chr(0xF0000 + len(signs)))

        def hide(text: str) -> str:
            text = self._names.sub(lambda found: sign(found[0]), text)
            bare = text.rstrip()  # as templates may do
            ends = [bare[-size:] for size in range(1, min(len(bare), self._longest) + 1)]
            if found := max((end for end in ends if end in self._beginnings), key=len, default=""):
                return bare[: -len(found)] + sign(found) + text[len(bare) :]
            return text

        return _mapped(messages, hide), {sign: text for text, sign in signs.items()}

    def encode(self, text: str, signs: Mapping[str, str]) -> list[int]:
        """Token ids of a template's text, with what the signs stand for as plain text.

        Raises:
            ConfigError: the tokenizer cannot encode a name as text.
        """
        copy, aliases = self._copy
        text = self._names.sub(lambda found: aliases[found[0]], text)
        for sign, hidden in signs.items():
            text = text.replace(sign, hidden).replace(json.dumps(sign)[1:-1], hidden)
        ids = copy.encode(text, add_special_tokens=False).ids
        tokens = {copy.token_to_id(alias): self._tokens[name][0] for name, alias in aliases.items()}
        control = {self._tokens[name][0]: name for name in signs.values() if name in self._tokens}
        if found := control.keys() & set(ids) - {self._tokenizer.unk_token_id}:
            raise _refused(control[min(found)])
        return [tokens.get(token, token) for token in ids]

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._beginnings), default=0)

    @cached_property
    def _copy(self) -> tuple[Tokenizer, dict[str, str]]:
        """A tokenizer that reads special tokens by their aliases, and the alias of each name. Aliases are random."""
        if (backend := getattr(self._tokenizer, "backend_tokenizer", None)) is None:
            raise _refused(min(self._tokens))
        copy, key = deepcopy(backend), _private(uuid4().hex)
        copy.no_truncation()
        copy.no_padding()
        copy.encode_special_tokens = True
        aliases = {name: key + chr(0xF0000 + place) for place, name in enumerate(self._tokens)}
        entries = [(aliases[name], entry) for name, (_, entry) in self._tokens.items()]
        copy.add_tokens(
            [AddedToken(alias, lstrip=one.lstrip, rstrip=one.rstrip, normalized=False) for alias, one in entries]
        )
        return copy, aliases


def _joined(messages: Sequence[Message]) -> list[Message]:
    """Messages in which texts of the system begin the user's next message, as the template of Gemma 3 has it."""
    found: list[Message] = []
    for one in messages:
        if found and found[-1]["role"] == "system" and one["role"] in ("system", "user"):
            found[-1] = {**one, "content": f"{found[-1]['content']}\n\n{one['content']}"}
        else:
            found.append(one)
    return [{**one, "role": "user"} if one["role"] == "system" else one for one in found]


def _private(digits: str) -> str:
    """Hexadecimal digits as characters for private use."""
    return "".join(chr(_PRIVATE + int(digit, 16)) for digit in digits)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A value of JSON with all texts changed but those of roles."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        kept = {key for key, each in value.items() if key == "role" and isinstance(each, str)}
        return {change(key): each if key in kept else _mapped(each, change) for key, each in value.items()}
    return [_mapped(each, change) for each in value] if isinstance(value, list | tuple) else value


def _refused(name: str) -> ConfigError:
    return ConfigError(
        f"the messages hold {short_repr(name)}, a special token that the tokenizer cannot write as text: leave it out, or "
        "allow it with special_tokens_in_content"
    )
