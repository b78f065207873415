"""Names of special tokens in the contents of chats are text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cached_property
from typing import Any, Final, TypeVar, final
from uuid import uuid4

from tokenizers import AddedToken, Tokenizer

from draftwood.core.checks import short_repr
from draftwood.core.errors import ConfigError

T = TypeVar("T")
_PRIVATE: Final = 0xE000  # characters for private use: templates change none, and strip none


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
        self._longest = max(map(len, self._beginnings), default=0)

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
