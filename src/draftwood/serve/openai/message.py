"""The message of an answer: its reasoning, its content and its tool calls, while it grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Literal, TypeAlias, final
from uuid import uuid4

from draftwood.core.token_texts import TokenTexts
from draftwood.serve.decoding.jobs import TextDelta
from draftwood.serve.openai.channels import ChannelReader
from draftwood.serve.openai.reading import Arguments, Call, CallReader, Part, Reading, Thought, begun

Delta: TypeAlias = dict[str, Any]
"""A part of a message, as OpenAI streams it: ``content``, ``reasoning_content`` or ``tool_calls``."""


@final
class AnswerReader:
    """Reads one text, and finds its parts as far as they are certain. How it is cut into pieces makes no difference.

    A piece is read once: what is certain is kept no longer as text to read.
    """

    def __init__(self, reading: Reading) -> None:
        self._form = reading.form
        self._thoughts = _Thoughts(reading)
        self._reader: CallReader | ChannelReader | None = None
        if reading.channels:
            self._reader = ChannelReader(reading)
        elif reading.form is not None:
            self._reader = CallReader(reading)
        self._thought: list[str] = []
        self._content: list[str] = []
        self._calls: list[Call] = []

    def parts(self, text: str, *, last: bool = False) -> Iterator[Part]:
        """What is new of the message; with ``last`` the text ends. A call begins with its name, and its arguments follow."""
        thought, rest = self._thoughts.push(text, last=last)
        found = [Thought(thought), *([rest] if self._reader is None else self._reader.push(rest, last=last))]
        for kind, parts in groupby(filter(None, found), type):
            for part in ["".join(map(str, parts))] if kind is str else parts:
                self._take(part)
                yield part

    def _take(self, part: Part) -> None:
        if isinstance(part, Call):
            part.id = part.id or self._new_id()
            self._calls.append(part)
        elif isinstance(part, Arguments):
            self._calls[-1].arguments.append(part)
        else:
            (self._thought if isinstance(part, Thought) else self._content).append(part)

    def push(self, text: str, *, last: bool = False) -> list[Delta]:
        """The same as OpenAI streams it."""
        return [self._delta(part) for part in self.parts(text, last=last)]

    def _delta(self, part: Part) -> Delta:
        if not isinstance(part, Call | Arguments):
            return {"reasoning_content" if isinstance(part, Thought) else "content": part}
        said = called(part.id, part.name, "") if isinstance(part, Call) else {"function": {"arguments": part}}
        return {"tool_calls": [{"index": len(self._calls) - 1, **said}]}

    def reason(self, end: TextDelta) -> str | None:
        """Why the text ended: to call, where there are calls and all of them have ended."""
        called = end.finish_reason == "stop" and self._calls and self._reader is not None and not self._reader.open
        return "tool_calls" if called else end.finish_reason

    def message(self) -> dict[str, Any]:
        """The message so far."""
        calls = [called(call.id, call.name, "".join(call.arguments)) for call in self._calls]
        content = "".join(self._content) or (None if calls else "")
        found: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        found |= {"reasoning_content": "".join(self._thought)} if self._thought else {}
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
        self._texts, self._open, self._begun = texts, reading.thinks is not None, bool(reading.thinks)
        self._marks = reading.thinking.begin.encode(), reading.thinking.end.encode()
        self._tail, self._read = b"", 0

    @property
    def count(self) -> int:
        """So far."""
        return self._read if self._begun else 0

    def push(self, tokens: Sequence[int]) -> None:
        """Count the next tokens of the text."""
        begin, end = self._marks
        for token in tokens if self._open else ():
            self._tail, self._read = self._tail + self._texts.bytes_of(token), self._read + 1
            if not self._begun:
                inner = self._tail.lstrip()
                self._begun, self._open = inner.startswith(begin), begin.startswith(inner[: len(begin)])
            if not self._open or (self._begun and end in self._tail):
                self._open = False
                return
            self._tail = self._tail[1 - len(end) :] if self._begun else self._tail


@final
class _Thoughts:
    """Splits the reasoning off a text that grows."""

    def __init__(self, reading: Reading) -> None:
        self._begin, self._end = reading.thinking
        thinks = None if reading.channels else reading.thinks
        states: dict[bool | None, Literal["begins", "blank", "over"]] = {None: "over", False: "begins", True: "blank"}
        self._state: Literal["begins", "blank", "thinks", "ends", "over"] = states[thinks]
        self._held = ""

    def push(self, text: str, *, last: bool) -> tuple[str, str]:
        """What is new of the reasoning, and of what comes after it."""
        text, self._held, thought = self._held + text, "", ""
        if self._state == "begins":
            inner = text.lstrip()
            if not inner.startswith(self._begin) and self._begin.startswith(inner) and not last:
                self._held = text
                return "", ""
            begins = inner.startswith(self._begin)
            self._state, text = ("blank", inner.removeprefix(self._begin)) if begins else ("over", text)
        if self._state == "blank" and (text := text.lstrip()):
            self._state = "thinks"
        if self._state == "thinks":
            thought, mark, rest = text.partition(self._end)
            if not mark and not last:
                size = len(thought) - begun(thought, self._end)
                self._held = thought[size:]
                return thought[:size], ""
            self._state, thought, text = "ends", thought.rstrip(), rest
        if self._state == "ends" and (text := text.lstrip()):
            self._state = "over"
        return thought, text
