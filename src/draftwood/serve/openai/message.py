"""The message of an answer: its reasoning, its content and its tool calls, while it grows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, Literal, TypeAlias, final
from uuid import uuid4

from draftwood.core.token_texts import TokenTexts
from draftwood.serve.decoding.jobs import TextDelta
from draftwood.serve.openai.formats import Thinking
from draftwood.serve.openai.reading import Arguments, CallReader, Kind, New, Part, Reading, Thought
from draftwood.serve.openai.tagged import HELD, Nesting, begun, blanks, is_object

_LONGEST: Final = 4096  # characters that are read at once, since what is read is cut off again and again
_BODY: Final = "<|message|>"
_ENDS: Final = ("<|end|>", "<|call|>", "<|return|>")
_HEADS: Final = ("<|start|>", "<|channel|>", "to=")  # a text that begins otherwise is content
_TO: Final = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")


@final
class ChannelReader:
    """Reads a text that grows, in channels as gpt-oss writes them (OpenAI's harmony format), as far as it is certain.

    Its messages have headers that say what they are. One to a function is a call; one to a function that is not known is
    content, and so is one without a header.

    Attributes:
        unread: text that is not certain yet.
        open: the arguments of the last call have not ended.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._kind: Literal["header", "thought", "content", "call"] = "content" if reading.continues else "header"
        self.unread, self.open = "", False
        self._call, self._pieces = Part(kind="call"), list[str]()  # the last one, and its arguments where it comes whole
        self._nesting = Nesting()
        self._found: list[New] = []

    def push(self, text: str, *, last: bool) -> list[New]:
        """What is new."""
        self.unread += text
        while self._read_header(last=last) if self._kind == "header" else self._read_body(last=last):
            pass
        found, self._found = self._found, []
        return found

    def _read_header(self, *, last: bool) -> bool:
        head, mark, rest = self.unread.partition(_BODY)
        inner = head.lstrip()
        begins = inner.startswith(_HEADS) or (not (mark or last) and any(one.startswith(inner) for one in _HEADS))
        said = HELD if begins and len(head) > HELD else 0  # no header is as long
        if not (inner or mark or said):
            return False
        if said or not begins:
            self._found.append(self.unread[:said])
            self.unread, self._kind = self.unread[said:], "content"
            return bool(self.unread)
        if not mark:
            self.unread = "" if last else self.unread  # a header that is cut says nothing
            return False
        self.unread, to, channels = rest, _TO.search(head), _CHANNEL.findall(head)
        if to is not None and to[1] in self._reading.schemas:
            self._kind, self._call = "call", Part(kind="call", name=to[1])
            self._pieces, self._nesting = [], Nesting()
            if not self._reading.whole:
                self._found.append(self._call)
                self.open = True
        else:
            thinks = channels[-1:] == ["analysis"] and self._reading.thinks is not None
            self._kind = "thought" if thinks else "content"
        return True

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
        else:
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
        self._found.append(Arguments(body))
        if self._nesting.read(body):
            self.open = False


Delta: TypeAlias = dict[str, Any]
"""What is new of a message, as OpenAI streams it: ``content``, ``reasoning_content`` or ``tool_calls``."""
_KINDS: Final[Mapping[type, Kind]] = {str: "text", Thought: "reasoning", Arguments: "call"}


@final
class AnswerReader:
    """Reads one text, and finds its parts as far as they are certain. How it is cut into pieces makes no difference.

    A piece is read once: what is certain is kept no longer as text to read, and what is not is short, or waits for its end.

    Attributes:
        parts: of the answer so far.
    """

    def __init__(self, reading: Reading) -> None:
        self._form, self._one = (form := reading.form), reading.one
        self._reader: CallReader | ChannelReader | None = None
        if form is not None:
            self._reader = ChannelReader(reading) if form.channels else CallReader(reading, form)
        self._thoughts = _Thoughts(reading.thinking, None if form is not None and form.channels else reading.thinks)
        self.parts: list[Part] = []
        self._calls = 0
        self._leaves_out: bool | None = None  # the last call; None before the first

    def read(self, text: str, *, last: bool = False) -> Iterator[New]:
        """What is new of the answer, for :meth:`take`; with ``last`` the text ends."""
        found: list[New] = []
        for at in range(0, max(1, len(text)), _LONGEST):
            ends = last and at + _LONGEST >= len(text)
            thought, rest = self._thoughts.push(text[at : at + _LONGEST], last=ends)
            found += [Thought(thought), *([rest] if self._reader is None else self._reader.push(rest, last=ends))]
        for kind, group in groupby(filter(self._keeps, found), type):
            new = list(group)
            yield from ["".join(map(str, new))] if kind is str else new

    def _keeps(self, new: New) -> bool:
        """Whether there is anything that is no part of a call that is left out."""
        if isinstance(new, Part):
            self._leaves_out = self._one and self._leaves_out is not None
        return bool(new) and not (self._leaves_out and _KINDS.get(type(new), "call") == "call")

    def take(self, new: New) -> Iterator[tuple[Part, str]]:
        """The part that grows by what is new, and its next piece; a part that begins comes with an empty one first."""
        kind = _KINDS.get(type(new), "call")
        if isinstance(new, Part) or not self.parts or self.parts[-1].kind != kind:
            part = new if isinstance(new, Part) else Part(kind=kind)
            part.index, self._calls = len(self.parts), self._calls + (kind == "call")
            part.id = part.id or (self._new_id() if kind == "call" else "")
            self.parts.append(part)
            yield part, ""
        if not isinstance(new, Part):
            self.parts[-1].pieces.append(new)
            yield self.parts[-1], new

    @property
    def in_call(self) -> bool:
        """Whether the arguments of the last call have not ended."""
        return self._reader is not None and self._reader.open and not self._leaves_out

    def push(self, text: str, *, last: bool = False) -> list[Delta]:
        """Read on; returns what is new as OpenAI streams it."""
        found = (self._delta(*grown) for new in self.read(text, last=last) for grown in self.take(new))
        return [delta for delta in found if delta is not None]

    def _delta(self, part: Part, piece: str) -> Delta | None:
        if part.kind != "call":
            return {"reasoning_content" if part.kind == "reasoning" else "content": piece} if piece else None
        said = {"function": {"arguments": piece}} if piece else called(part.id, part.name, "")
        return {"tool_calls": [{"index": self._calls - 1, **said}]}

    def reason(self, end: TextDelta) -> str | None:
        """Why the text ended: to call, where there are calls and all of them have ended."""
        called = end.finish_reason == "stop" and self._calls and not self.in_call
        return "tool_calls" if called else end.finish_reason

    def text(self, kind: Kind) -> str:
        """That of all parts of a kind."""
        return "".join(part.text for part in self.parts if part.kind == kind)

    def message(self) -> dict[str, Any]:
        calls = [called(part.id, part.name, part.text) for part in self.parts if part.kind == "call"]
        content, thought = self.text("text") or (None if calls else ""), self.text("reasoning")
        found: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        found |= {"reasoning_content": thought} if thought else {}
        return found | ({"tool_calls": calls} if calls else {})

    def _new_id(self) -> str:
        made = uuid4().hex  # Mistral's templates want nine letters
        return made[:9] if self._form is not None and self._form.mark == "[TOOL_CALLS]" else f"call_{made}"


def called(id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A call in a message."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


@final
class ThoughtTokens:
    """Counts the tokens of the reasoning of a text that grows, with its marks."""

    def __init__(self, reading: Reading, texts: TokenTexts) -> None:
        self._texts, self._thoughts, self._read = texts, _Thoughts(reading.thinking, reading.thinks), 0

    @property
    def count(self) -> int:
        return self._read if self._thoughts.begun else 0

    def push(self, tokens: Sequence[int]) -> None:
        """Count the next tokens of the text."""
        for token in tokens:
            if not self._thoughts.ended:
                self._thoughts.push(self._texts.text_of(token), last=False)
                self._read += 1


@final
class _Thoughts:
    """Splits the reasoning off a text that grows; it begins within it, with its mark, or without (None).

    Attributes:
        begun: there is one.
    """

    def __init__(self, marks: Thinking, thinks: bool | None) -> None:
        self._begin, self._end, _ = marks
        states: dict[bool | None, Literal["begins", "blank", "over"]] = {None: "over", False: "begins", True: "blank"}
        self._state: Literal["begins", "blank", "thinks", "ends", "over"] = states[thinks]
        self._held, self.begun = "", bool(thinks)

    @property
    def ended(self) -> bool:
        return self._state in ("ends", "over")

    def push(self, text: str, *, last: bool) -> tuple[str, str]:
        """What is new of the reasoning, and of what comes after it."""
        text, self._held, thought = self._held + text, "", ""
        if self._state == "begins":
            inner = text.lstrip()
            few = len(text) - len(inner) <= HELD
            if few and not inner.startswith(self._begin) and self._begin.startswith(inner) and not last:
                self._held = text
                return "", ""
            self.begun = few and inner.startswith(self._begin)
            self._state, text = ("blank", inner.removeprefix(self._begin)) if self.begun else ("over", text)
        if self._state == "blank" and (text := text.lstrip()):
            self._state = "thinks"
        if self._state == "thinks":
            thought, mark, rest = text.partition(self._end)
            if not mark and not last:
                size = len(thought) - begun(thought, self._end)
                self._held = thought[size:]
                return thought[:size], ""
            self._state, thought, text = "ends", thought[: len(thought) - blanks(thought, len(thought))], rest
        if self._state == "ends" and (text := text.lstrip()):
            self._state = "over"
        return thought, text
