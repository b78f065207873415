"""The text of single tokens, to the byte: a token may hold part of a character only."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import cache
from typing import Any, Final, final

from draftwood.core.token_logprobs import TokenLogprob

LOWEST: Final = -9999.0
"""Stands for minus infinity, which JSON does not have; OpenAI's interface has the same number."""
_REPLACED: Final = "\ufffd"
_PARTS: Final = re.compile("[\udc80-\udcff]+")  # bytes that are no whole character, as surrogateescape decodes them
BYTE: Final = re.compile(r"<0x([0-9A-F]{2})>")  # as byte-fallback tokenizers write bytes


@final
class TokenTexts:
    """The texts of single tokens.

    A token's bytes are those that it adds to a text: the space before a word is part of it, and the bytes of all tokens,
    joined, are the text. Special tokens have the text of their name.

    Args:
        tokenizer: a tokenizer of ``transformers``; None where tokens have ids only.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = {} if tokenizer is None else tokenizer.added_tokens_decoder
        self._added = {token: entry.content for token, entry in added.items()}
        self._special = frozenset(() if tokenizer is None else tokenizer.all_special_ids)
        self._known: dict[int, bytes] = {}

    def bytes_of(self, token: int) -> bytes:
        """The UTF-8 bytes of a token, which need not be whole characters; none for an id without a token."""
        if token not in self._known:
            self._known[token] = self._bytes_of(token)
        return self._known[token]

    def is_special(self, token: int) -> bool:
        """Whether a token is left out of texts."""
        return token in self._special

    def text_of(self, token: int) -> str:
        """The text of a token, with U+FFFD in place of parts of characters."""
        return self.bytes_of(token).decode("utf-8", errors="replace")

    def marked(self, token: int) -> str:
        """The text of a token for readers: bytes of a part of a character are shown as ``<F0 9F>``."""
        text = self.bytes_of(token).decode("utf-8", errors="surrogateescape")
        return _PARTS.sub(lambda part: f"<{part[0].encode('utf-8', 'surrogateescape').hex(' ').upper()}>", text)

    def alone(self, token: int) -> str:
        """What a token is decoded to alone, which may lose the space before it; parts of characters as in :meth:`marked`."""
        text = self._decoded([token])
        return self.marked(token) if _REPLACED in text else text

    def escaped(self, token: int) -> str:
        """The text of a token, and ``bytes:\\xf0\\x9f`` for one with a part of a character, as in OpenAI's interface."""
        data = self.bytes_of(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + data.decode("ascii", errors="backslashreplace")

    def to_json(self, entries: Iterable[TokenLogprob | None]) -> list[dict[str, Any] | None]:
        """Plain values for JSON: ``token_id``, ``token`` (its text), ``logprob``, and ``top`` with the same three."""
        return [
            None if one is None else {**self._entry(one.token, one.logprob), "top": [self._entry(*each) for each in one.top]}
            for one in entries
        ]

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text = {} if self._tokenizer is None else {"token": self.text_of(token)}
        return {"token_id": token, **text, "logprob": max(logprob, LOWEST)}

    def _bytes_of(self, token: int) -> bytes:
        if token in self._added:
            return str(self._added[token]).encode()
        name = None if self._tokenizer is None else self._tokenizer.convert_ids_to_tokens(token)
        if name is None:
            return b""
        text = self._decoded([token])
        if _REPLACED in text:  # part of a character, unless the token is this very one
            if found := BYTE.fullmatch(name):
                return bytes.fromhex(found[1])
            if byte_letters().keys() >= set(name):
                return bytes(byte_letters()[letter] for letter in name)
        # A token alone may lose the space before it, so its text is what a second one adds.
        return self._decoded([token, token])[len(text) :].encode()

    def _decoded(self, tokens: list[int]) -> str:
        if (backend := getattr(self._tokenizer, "backend_tokenizer", None)) is not None:  # several times as fast
            return str(backend.decode(tokens, skip_special_tokens=False))
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))


@cache
def byte_letters() -> dict[str, int]:
    """The letter that byte-level tokenizers write for each byte: the byte's own where it is visible in Latin-1."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def tokens_digest(tokens: Iterable[tuple[int, str]]) -> str:
    """Digest (16 hexadecimal digits) of a vocabulary: numbers and tokens."""
    return hashlib.sha256("\n".join(f"{index} {token}" for index, token in sorted(tokens)).encode()).hexdigest()[:16]
