"""The tokens that two vocabularies have in common, and texts of the one in tokens of the other."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final, final

from draftwood.core.draft_kind import DraftKind
from draftwood.core.errors import PairingError
from draftwood.core.token_texts import BYTE, TokenTexts
from draftwood.sampling.rows import Row

SHORTEST: Final = 64
"""Characters of a part that is tokenized by itself."""
LONGEST: Final = 1024
"""The same, where no blank comes before."""
_BREAK = re.compile(r"(?<=\S)(?= )")


def _numbers(tokenizer: Any, texts: TokenTexts) -> dict[bytes, int]:
    """The tokens of a vocabulary by their texts; a token for a byte stands behind others of the same text."""
    names = sorted(tokenizer.get_vocab().items(), key=lambda item: (BYTE.fullmatch(item[0]) is not None, item[1]))
    found: dict[bytes, int] = {}
    for _, token in names:
        found.setdefault(texts.bytes_of(token), token)
    found.pop(b"", None)
    return found


def _prefixes(tokenizer: Any, texts: TokenTexts) -> bool:
    """Whether a tokenizer writes a blank before a text, as SentencePiece often does."""
    first = tokenizer("a", add_special_tokens=False)["input_ids"][:1]  # none where it has no such letter
    return any(texts.bytes_of(token).startswith(b" ") for token in first)


@final
class SharedTokens:
    """The tokens that two vocabularies have as the same text, byte for byte.

    Args:
        target, draft: tokenizers of ``transformers``.
        names: of both models, for errors.

    Attributes:
        map: the draft's numbers of the shared tokens, by the target's.
        kind: of a draft by these tokens.
        begin: what the draft's tokenizer writes before a text.
        names: as given.

    Raises:
        PairingError: there is none.
    """

    def __init__(self, target: Any, draft: Any, names: tuple[str, str]) -> None:
        self.names, self._draft = names, draft
        self._texts, own = TokenTexts(target), TokenTexts(draft)
        ours, theirs = _numbers(target, self._texts), _numbers(draft, own)
        both = sorted((number, ours[text]) for text, number in theirs.items() if text in ours)
        if not both:
            raise self.refused("no token of its vocabulary is one of the target's")
        self.kind = DraftKind(name="intersection", shared=len(both) / len(theirs))
        self.map = {target_id: draft_id for draft_id, target_id in both}
        self._others = dict[int, int]()
        self._bos, bos = target.bos_token_id, draft.bos_token_id
        self.begin = [] if bos is None or draft("a")["input_ids"][:1] != [bos] else [int(bos)]
        self._blank, self._own_blank = _prefixes(target, self._texts), _prefixes(draft, own)
        self._nothing = next((int(end) for end in (bos, draft.eos_token_id) if end is not None), 0)

    def refused(self, why: str) -> PairingError:
        """The error of a pair that shares too little."""
        target, draft = self.names
        return PairingError(
            f"{draft!r} cannot draft for {target!r}: it has another tokenizer, and {why}. Take a draft with the target's "
            "tokenizer, or with one that is more like it"
        )

    def bytes_of(self, token: int, *, first: bool) -> bytes:
        """The text of a target's token; none of its beginning of text, nor of the blank that its tokenizer writes there."""
        if first and token == self._bos:
            return b""
        text = self._texts.bytes_of(token)
        return text.removeprefix(b" ") if first and self._blank else text

    def encode(self, text: str, *, first: bool) -> list[int]:
        """The draft's tokens of a part of a text."""
        text = text if first or not self._own_blank else text.removeprefix(" ")
        found: list[int] = self._draft(text, add_special_tokens=False)["input_ids"] if text else []
        return found

    def number(self, token: int) -> int:
        """The draft's number of a target's token; of one that it does not have, that of the end of its text."""
        if token in self.map:
            return self.map[token]
        if token not in self._others:
            text = self._texts.bytes_of(token).decode(errors="replace")
            self._others[token] = [self._nothing, *self.encode(text, first=False)][-1]
        return self._others[token]

    def whole(self, tokens: list[int]) -> list[int]:
        """Tokens that some network reads: at least one."""
        return tokens or [self._nothing]


@final
class CopiedText:
    """A row's text in the draft's tokens, which depend on the text alone and not on how it came.

    It is tokenized in parts that end before a blank, so that only the last one is tokenized again. Bytes at its end that are
    no whole character wait for the others; until then their tokens are mapped one by one, as far as both have them.

    Args:
        shared: the tokens of both.

    Attributes:
        row: what the draft's runner has for the row.
    """

    def __init__(self, shared: SharedTokens) -> None:
        self.row = Row(tokens=[])
        self._shared, self._seen, self._first = shared, 0, True
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._ready: list[int] = list(shared.begin)
        self._open = ""  # text of the last part
        self._part, self._tail = "", list[int]()  # text and tokens behind it, which end inside a character

    def read(self, tokens: Sequence[int]) -> list[int]:
        """The text's tokens, where the target has these; they are not those of :attr:`row` yet."""
        for token in tokens[self._seen :]:
            data = self._shared.bytes_of(token, first=self._first)
            self._first = self._first and not data
            self._part += self._decoder.decode(data)
            self._tail.append(token)
            if not self._decoder.getstate()[0]:
                self._open, self._part, self._tail = self._open + self._part, "", []
        self._seen = len(tokens)
        while end := _part_end(self._open):
            self._ready += self._encoded(self._open[:end])
            self._open = self._open[end:]
        tail = [self._shared.map[token] for token in takewhile(self._shared.map.__contains__, self._tail)]
        return self._shared.whole([*self._ready, *self._encoded(self._open), *tail])

    def _encoded(self, text: str) -> list[int]:
        return self._shared.encode(text, first=len(self._ready) == len(self._shared.begin))


def _part_end(text: str) -> int:
    """Where the first part of a text ends; 0 if it may go on."""
    if (found := _BREAK.search(text, SHORTEST, LONGEST)) is not None:
        return found.start()
    return LONGEST if len(text) >= LONGEST else 0
