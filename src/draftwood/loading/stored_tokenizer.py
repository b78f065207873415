"""A tokenizer and its chat template without ``transformers``, whose modules are slow to import.

Those of folders are kept in the user's cache, as ``transformers`` makes them.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NoReturn, final

from tokenizers import AddedToken, Tokenizer

from draftwood.core.files import replacing
from draftwood.hardware.machine import cache_folder, version_of
from draftwood.loading.checkpoint import CONFIG

_LOG = logging.getLogger(__name__)
_FILES: Final = (CONFIG, "*token*", "vocab*", "merges.txt", "*.model", "chat_template*", "*.tiktoken")
"""Patterns of the files that make a tokenizer."""
_NAMES: Final = ("bos_token", "eos_token", "unk_token", "pad_token")
_MORE: Final = re.compile(r"namespace|dict|tojson|strftime_now|{%-?\s*(end)?generation")
"""Names that ``transformers`` gives to templates, some in place of jinja's own."""
_ALIASES: Final = {"reasoning_content", "thinking", "reasoning"}  # of each other, in templates


@final
class StoredTokenizer:
    """Texts, tokens and chats as a tokenizer of ``transformers`` has them. Anything else is done by :attr:`whole`.

    Args:
        backend: the tokenizer; it neither truncates nor pads, and adds no special tokens.
        special: its special tokens with a meaning, by the name of ``transformers``; None for those that it lacks.
        chat_template: the template, which may be replaced; None without one.
        make: makes the same tokenizer of ``transformers``.
    """

    infill_tokens: tuple[str, ...] | None = None
    """Those before the prefix, the suffix and the middle, where a file says them."""
    SPECIAL_TOKENS_ATTRIBUTES: Final = (*_NAMES, "sep_token", "cls_token", "mask_token")

    def __init__(
        self, backend: Tokenizer, special: Mapping[str, str | None], chat_template: str | None, make: Callable[[], Any]
    ) -> None:
        self.backend_tokenizer, self.chat_template, self._make = backend, chat_template, make
        self.special_tokens_map = {name: token for name in _NAMES if (token := special.get(name)) is not None}
        for name in _NAMES:
            token = special.get(name)
            setattr(self, name, token)
            setattr(self, f"{name}_id", None if token is None else backend.token_to_id(token))

    @cached_property
    def whole(self) -> Any:
        """The tokenizer of ``transformers``; made at the first use."""
        return self._make()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of an object that is being made, or copied
            raise AttributeError(name)
        return getattr(self.whole, name)

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size())

    def __call__(self, text: Any, **settings: Any) -> Any:
        if isinstance(text, str) and settings.keys() <= {"add_special_tokens"}:
            found = self.backend_tokenizer.encode(text, **settings)
            return _Encoding(input_ids=found.ids, attention_mask=found.attention_mask)
        return self.whole(text, **settings)

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **settings: Any) -> Any:
        """The text of tokens, or the texts of lists of tokens."""
        plain = not any(settings.values()) and isinstance(token_ids, list) and all(type(one) is int for one in token_ids)
        if not plain:
            return self.whole.decode(token_ids, skip_special_tokens=skip_special_tokens, **settings)
        return self.backend_tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def get_vocab(self) -> dict[str, int]:
        """The numbers of all tokens."""
        found: dict[str, int] = self.backend_tokenizer.get_vocab(with_added_tokens=True)
        return found

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """Added tokens by their numbers."""
        found: dict[int, AddedToken] = self.backend_tokenizer.get_added_tokens_decoder()
        return found

    def get_chat_template(self, chat_template: str | None = None, tools: Any = None) -> str:
        """The template that is used: the given one, or the tokenizer's own."""
        own = self.chat_template if chat_template is None else chat_template
        return own if isinstance(own, str) else str(self.whole.get_chat_template(own, tools))

    def apply_chat_template(
        self, conversation: Any, tools: Any = None, documents: Any = None, chat_template: str | None = None,
        add_generation_prompt: bool = False, continue_final_message: Any = False, tokenize: bool = True,
        padding: Any = False, truncation: bool = False, max_length: int | None = None, return_tensors: Any = None,
        return_dict: bool = True, return_assistant_tokens_mask: bool = False, tokenizer_kwargs: Any = None,
        sanitize_control_tokens: bool = False, **variables: Any,
    ) -> Any:  # fmt: skip
        """The text or the tokens of a chat, as ``transformers`` makes them."""
        passed = dict(locals())
        given = {
            name: value for name, value in passed.items() if value and name not in ("self", "conversation", "variables")
        }
        template = self.chat_template
        simple = isinstance(template, str) and not _MORE.search(template) and _is_chat(conversation) and not variables
        if not simple or given.keys() - {"add_generation_prompt", "return_dict"}:
            self.whole.chat_template = template
            return self.whole.apply_chat_template(
                conversation, **{**given, "tokenize": tokenize, "return_dict": return_dict}, **variables
            )
        more = {"tools": None, "documents": None, "add_generation_prompt": add_generation_prompt}
        return _compiled(template).render(messages=conversation, **more, **self.special_tokens_map)


class _Encoding(dict[str, list[int]]):
    """A tokenized text, whose parts are attributes too."""

    def __getattr__(self, name: str) -> list[int]:
        if name in self:
            return self[name]
        raise AttributeError(name)


def _is_chat(messages: Any) -> bool:
    """Whether these are messages of texts alone, without thoughts."""
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(type(one) is dict and not _ALIASES & one.keys() for one in messages)
        and all(type(part) is str for one in messages for item in one.items() for part in item)
    )


@cache
def _compiled(template: str) -> Any:
    """A template in the sandbox and with the settings of ``transformers``."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    found = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    found.globals["raise_exception"] = refuse
    return found.from_string(template)


def kept_tokenizer(folder: Path, load: Callable[[], Any]) -> Any:
    """The tokenizer of a folder.

    Args:
        load: makes it by ``transformers``; called if these files with this version of ``transformers`` are new here, or the
            tokenizer is of a kind that is not kept.
    """
    path = cache_folder() / "tokenizers" / f"{_digest(folder)}.json"
    try:
        return _stored(json.loads(path.read_text(encoding="utf-8")), load)
    except FileNotFoundError:
        pass
    except Exception as error:  # of a damaged file, which is replaced
        _LOG.debug("%s cannot be read: %s", path, error)
    made = load()
    if (values := _values(made)) is None:
        return made
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, path.with_name(f"{path.name}.{os.getpid()}")) as part:
            part.write_text(json.dumps(values), encoding="utf-8")
    except OSError as error:
        _LOG.debug("%s cannot be written: %s", path, error)
    return _stored(values, lambda: made)


def _stored(values: dict[str, Any], whole: Callable[[], Any]) -> StoredTokenizer:
    return StoredTokenizer(Tokenizer.from_str(values["tokenizer"]), values["special"], values["template"], whole)


def _digest(folder: Path) -> str:
    found = sha256(f"{version_of('transformers')} {version_of('tokenizers')}".encode())
    for path in sorted({path for pattern in _FILES for path in folder.glob(pattern) if path.is_file()}):
        found.update(f"{path.name} {path.stat().st_size} ".encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:32]


def _values(made: Any) -> dict[str, Any] | None:
    """What a :class:`StoredTokenizer` is made of; None for a tokenizer that does more than that."""
    backend: Any = getattr(made, "backend_tokenizer", None)
    template = getattr(made, "chat_template", None)
    special = {name: token for name, token in made.special_tokens_map.items() if isinstance(token, str)}
    whole = (
        not isinstance(backend, Tokenizer)
        or not isinstance(template, str | None)
        or special.keys() - set(_NAMES)
        or made.clean_up_tokenization_spaces
        or getattr(made, "split_special_tokens", False)
    )
    if whole:
        return None
    text = Tokenizer.from_str(backend.to_str())
    text.no_padding()
    text.no_truncation()
    return {"tokenizer": text.to_str(), "special": special, "template": template}
