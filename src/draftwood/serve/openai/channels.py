"""Texts in channels, as gpt-oss writes them (OpenAI's harmony format): messages with headers that say what they are."""

from __future__ import annotations

import re
from typing import Final, Literal, final

from draftwood.serve.openai.nesting import Nesting
from draftwood.serve.openai.reading import Arguments, Call, Part, Reading, Thought, begun, is_object

_BODY: Final = "<|message|>"
_ENDS: Final = ("<|end|>", "<|call|>", "<|return|>")
_HEADS: Final = ("<|start|>", "<|channel|>", "to=")  # a text that begins otherwise is content
_TO: Final = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")


@final
class ChannelReader:
    """Reads the messages of a text that grows, as far as they are certain.

    A message to a function is a call; one to a function that is not known is content. So is a message without a header.

    Attributes:
        unread: text that is not certain yet.
        open: the arguments of the last call have not ended.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._kind: Literal["header", "thought", "content", "call", "none"] = "content" if reading.continues else "header"
        self.unread, self.open = "", False
        self._call, self._pieces = Call(name=""), list[str]()  # the last one, and its arguments where it comes whole
        self._count = 0  # of calls, those that are left out included
        self._nesting = Nesting()
        self._found: list[Part] = []

    def push(self, text: str, *, last: bool) -> list[Part]:
        """What is new."""
        self.unread += text
        while self._read_header(last=last) if self._kind == "header" else self._read_body(last=last):
            pass
        found, self._found = self._found, []
        return found

    def _read_header(self, *, last: bool) -> bool:
        head, mark, rest = self.unread.partition(_BODY)
        if not (inner := head.lstrip()) and not mark:
            return False
        if not inner.startswith(_HEADS) and (mark or last or not any(one.startswith(inner) for one in _HEADS)):
            self._kind = "content"
            return bool(self.unread)
        if not mark:
            self.unread = "" if last else self.unread  # a header that is cut says nothing
            return False
        self.unread, to, channels = rest, _TO.search(head), _CHANNEL.findall(head)
        if to is not None and to[1] in self._reading.names:
            self._begin(Call(name=to[1]))
        else:
            thinks = channels[-1:] == ["analysis"] and self._reading.thinks is not None
            self._kind = "thought" if thinks else "content"
        return True

    def _begin(self, call: Call) -> None:
        self._count += 1
        kept = self._count == 1 or not self._reading.one
        self._kind, self._call, self._pieces, self._nesting = ("call" if kept else "none"), call, [], Nesting()
        if kept and not self._reading.whole:
            self._found.append(call)
            self.open = True

    def _read_body(self, *, last: bool) -> bool:
        """Read on to the end of a message; true if there is more."""
        text = self.unread
        end, mark = min(((at, mark) for mark in (*_ENDS, _HEADS[0]) if (at := text.find(mark)) >= 0), default=(-1, ""))
        if end < 0:
            held = 0 if last else max(begun(text, mark) for mark in (*_ENDS, _HEADS[0]))
            end = len(text) - held
        body = text[:end]
        if self._kind == "call":
            self._read_arguments(body, ended=bool(mark) or last)
        elif body and self._kind != "none":
            self._found.append(Thought(body) if self._kind == "thought" else body)
        self.unread = text[end + (len(mark) if mark in _ENDS else 0) :]
        if mark:
            self._kind = "header"
        return bool(mark) and bool(self.unread)

    def _read_arguments(self, body: str, *, ended: bool) -> None:
        if self._reading.whole:
            self._pieces.append(body)
            if ended and (written := "".join(self._pieces)):
                self._found += [self._call, Arguments(written)] if is_object(written) else [written]
            return
        if body:
            self._found.append(Arguments(body))
        if self._nesting.end(body) is not None:
            self.open = False
