"""The text of tokens as they come: no character is broken, and none waits that is complete."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, final

BROKEN: Final = "\ufffd"
"""What decoders write for bytes that are no character, such as the beginning of one."""
_JOIN: Final = 6  # tokens before a text that decide whether its first word begins with a space
_WINDOW: Final = 32  # the most tokens that are decoded again with a new one
_BYTES: Final = 3  # the most bytes of a character that lacks some; decoders write up to one sign for each


def overlap(text: str, mark: str) -> int:
    """Length of the longest ending of a text that begins a mark, and is not the whole of it."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)


@final
class Detokenizer:
    """Text of a growing list of tokens; incomplete characters are held back.

    Args:
        tokenizer: a tokenizer of ``transformers``.
        before: the token ids before the text. If they end inside a character, the text begins with the whole of it.
        shown: special tokens whose names are part of the text; others are left out.

    Attributes:
        held: what is held back, as it would end the text.
    """

    def __init__(self, tokenizer: Any, before: Sequence[int] = (), shown: frozenset[int] = frozenset()) -> None:
        self._tokenizer = tokenizer
        special = [token for token, entry in getattr(tokenizer, "added_tokens_decoder", {}).items() if entry.special]
        self._left_out, self._shows = frozenset(special) - shown, bool(shown)
        self._ids = [token for token in before[-_JOIN:] if token not in self._left_out]
        self._done = len(self._ids)  # after these tokens every character is complete
        self._context = 0  # decoding starts here, for correct joins between tokens
        self._before = self._decode(self._ids)  # what is given out of the text of the tokens from the context on
        self.held = ""

    def push(self, ids: Sequence[int], *, last: bool = False) -> str:
        """The new text; with ``last`` nothing is held back. How calls divide the tokens makes no difference to it."""
        ids = [token for token in ids if token not in self._left_out]
        now = self._decode([*self._ids[self._context :], *ids])
        if self._done < len(self._ids) or BROKEN in now[len(self._before) :]:  # a decoder may give up what came before too
            new = "".join(self._add([token], None) for token in ids)
        else:
            new = self._add(ids, now)
        if last:
            new, self.held = new + self.held, ""
        return new

    def _add(self, ids: Sequence[int], decoded: str | None) -> str:
        """The new text of tokens; ``decoded`` is that of all tokens from the context on, where it is known."""
        self._ids.extend(ids)
        now = self._decode(self._ids[self._context :]) if decoded is None else decoded
        if not now.startswith(self._before):
            if self._before.endswith(BROKEN):
                self._before = self._before.rstrip(BROKEN)
            elif BROKEN in now:
                self._context, self._before = self._done, ""
                now = self._decode(self._ids[self._context :])
        certain = max(len(now.rstrip(BROKEN)), len(now) - _BYTES, len(self._before))
        new, self.held = now[len(self._before) : certain], now[certain:]
        self._before = now[:certain]
        if not now.endswith(BROKEN):
            self._advance(moves=bool(new))
        elif len(self._ids) - self._done > _WINDOW:
            new += self._give_up()
        return new

    def _give_up(self) -> str:
        """Many bytes made no character; only the last ones may still begin one. Returns what was held back of the others."""
        self._context = self._done = len(self._ids) - _BYTES
        now = self._decode(self._ids[self._context :])
        certain = max(0, len(self.held) - len(now))
        new, self.held = self.held[:certain], self.held[certain:]
        self._before = now[: len(now) - len(self.held)]
        return new

    def _advance(self, *, moves: bool) -> None:
        """All characters are complete. The context moves on, unless tokens have no text."""
        first, self._done = self._done, len(self._ids)
        if moves and self._done - self._context > _WINDOW:
            self._context, self._before = first, self._decode(self._ids[first:])

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=not self._shows, clean_up_tokenization_spaces=False)
        return text


@final
class Marks:
    """Which parts of a text were drafted, as its pieces come.

    A character belongs to the token that completes it, and one that stays broken to the last token.

    Args:
        tokenizer, before, shown: as for :class:`Detokenizer`.
    """

    def __init__(self, tokenizer: Any, before: Sequence[int], shown: frozenset[int] = frozenset()) -> None:
        self._words = Detokenizer(tokenizer, before, shown)
        self._coming: deque[tuple[int, bool]] = deque()  # characters of each token that no piece has had, and its mark

    def take(self, tokens: Sequence[int], drafted: int, text: str, *, last: bool) -> list[tuple[str, bool]]:
        """The text of a piece in parts, one for each token that has text in it, and whether the token was drafted.

        Joined the parts are the text, which may lag behind the tokens; a stop text cuts it.

        Args:
            tokens: the new tokens.
            drafted: how many of them, from the first on, were drafted.
            text: what the piece has of the text.
            last: the text ends here.
        """
        for place, token in enumerate(tokens):
            ends = last and place == len(tokens) - 1
            self._coming.append((len(self._words.push([token], last=ends)), place < drafted))
        found, start = [], 0
        while start < len(text):
            size, mark = self._coming.popleft()
            if (part := text[start : start + size]) != "":
                found.append((part, mark))
            if size > len(part):
                self._coming.appendleft((size - len(part), mark))
            start += size
        return found
