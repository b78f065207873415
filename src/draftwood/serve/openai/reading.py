"""The tool calls in a text that grows, and what is around them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, TypeAlias, final

import regex

from draftwood.serve.openai.formats import THINK, Thinking, ToolFormat
from draftwood.serve.openai.tagged import HELD, Input, Nesting, Tags, begun, blanks, calls_of, is_object

_OBJECT: Final = re.compile(r"\s*+\{")
_SHOWN: Final = re.compile(r"\S")

Kind: TypeAlias = Literal["reasoning", "text", "call"]


@final
@dataclass(kw_only=True, eq=False)
class Part:
    """A part of an answer: reasoning, a text or a tool call, as far as it is written.

    Attributes:
        pieces: of its text; of a call those of its arguments, which are JSON.
        index: among the parts of the answer.
        id, name: of a call; the id is that of the text, if it gives one.
        logprobs: of a text, one for every token, where the request wants them.
    """

    kind: Kind
    pieces: list[str] = field(default_factory=list)
    index: int = 0
    id: str = ""
    name: str = ""
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Arguments(str):
    """A further piece of the arguments of the last call."""


class Thought(str):
    """A further piece of the reasoning."""


New: TypeAlias = str | Part | Arguments | Thought
"""What is new of an answer: a piece of a text, a call that begins, a piece of its arguments or of the reasoning."""


@final
@dataclass(frozen=True, kw_only=True)
class Reading:
    """How the answers to a chat are read.

    Attributes:
        thinks: whether an answer begins within the reasoning; None where reasoning is not split off.
        thinking: the marks of the reasoning.
        continues: an answer goes on with a message that the request has begun.
        form: of the calls; None where nothing is called.
        schemas: of the functions' arguments, by name. Without those that are required nothing is called.
        one: calls after the first one are left out.
        whole: calls come when they have ended. What never ends, or has arguments that are no object, is content.
        shown: special tokens whose names are part of what is read.
    """

    thinks: bool | None = None
    thinking: Thinking = THINK
    continues: bool = False
    form: ToolFormat | None = None
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    one: bool = False
    whole: bool = False
    shown: frozenset[int] = frozenset()


@final
class CallReader:
    """Reads the content and the calls of a text that grows, as far as they are certain.

    A call is certain where its function is known, or where it ends. What looks like a call and names no function is content.
    The time is in proportion to any text: what waits is short, or its end is looked for in new pieces only.

    Attributes:
        open: the arguments of the last call have not ended.
    """

    def __init__(self, reading: Reading, form: ToolFormat) -> None:
        self._reading, self._form = reading, form
        self._input = Input()
        self._at = 0  # the place behind which a call may begin
        self.open = self._said = False
        self._step: Callable[[], bool] = self._read_content  # reads on, and returns whether there may be more
        self._called = False
        self._names: Collection[str] | None = None  # of the functions that may be called here; None for all
        self._nesting = Nesting()  # of what is read on
        self._value: tuple[int, Nesting] | None = None  # whose end decides, and where it begins behind what is read
        self._found: list[New] = []

    def push(self, text: str, *, last: bool) -> list[New]:
        self._input.pieces.append(text)
        value, unread = self._value, len(self._input.text) - self._input.place
        if value is not None and not last and unread > value[0] + HELD and not value[1].read(text):
            return []
        self._input.text, self._input.last = "".join([self._input.text[self._input.place :], *self._input.pieces]), last
        self._at, self._input.place, self._input.pieces = max(0, self._at - self._input.place), 0, []
        while self._step():
            pass
        found, self._found = self._found, []
        return found

    def _drop(self, size: int) -> str:
        """The next characters, which are read."""
        begin, self._input.place = self._input.place, self._input.place + size
        self._value = self._value if not size else None
        return self._input.text[begin : self._input.place]

    def _say(self, end: int) -> None:
        """What comes before a place is content."""
        if end > self._input.place:
            self._said = True
            self._found.append(self._drop(end - self._input.place))

    def _read_content(self) -> bool:
        text, form, begin = self._input.text, self._form, self._input.place
        bare = form.unmarked and self._at <= begin and not self._said and bool(_OBJECT.match(text, begin, begin + HELD))
        mark = "" if bare else form.mark
        place = text.find(mark, max(self._at, begin))
        if place < 0:
            held = blanks(text, len(text)) if self._called else 0  # blanks after a call are none
            self._say(len(text) - (held if self._input.last else begun(text[begin:], mark)))
            return False
        self._say(place - blanks(text, place))
        self._names = self._reading.schemas if bare else None
        found = self._read_call(place + len(mark))
        if found is False:
            self._at, self._value = max(self._at, place + (len(mark) or 1)), None
        return found is not None

    def _read_call(self, at: int) -> bool | None:
        """Read a call, or a list of them that has ended; False if there is none, None if that is not certain yet."""
        text, form, end = self._input.text, self._form, at + HELD
        head = form.head.match(text, at, end, partial=True)
        if head is not None and head.partial:
            if not self._input.last and len(text) < end:
                return None
        elif head is not None and form.tags is not None:
            return self._read_tagged(at, head, form.tags)
        elif head is not None:
            given = head.groupdict()
            name = given.get("name") or given["bare"]
            if self._names is None or name in self._names:
                return self._read_head(Part(kind="call", name=name, id=given.get("id") or ""), head)
        start = _SHOWN.search(text, at, end)
        if form.tags is not None or start is None or start[0] not in "{[":
            return False
        value = self._read_value(at)
        if value.ends:
            return self._read_list(at, at + value.size)
        return False if self._input.last or value.ends is False else None

    def _read_head(self, call: Part, head: regex.Match[str]) -> bool | None:
        """Read a call up to its arguments, or with them where calls come whole."""
        begin, given = head.end(), head.groupdict()
        if self._reading.whole:
            value = self._read_value(begin)
            if value.ends is None and not self._input.last:
                return None
            if not value.ends or not is_object(self._input.text[begin : begin + value.size]):
                return False
        self._found.append(call)
        self._drop(begin - self._input.place)
        self._called = self.open = True
        self._nesting = Nesting()
        self._step = partial(self._read_arguments, "}" * (bool(given.get("name")) + bool(given.get("around"))))
        return True

    def _read_tagged(self, at: int, head: regex.Match[str], tags: Tags) -> bool | None:
        """Read a call whose arguments stand in tags, when it has ended."""
        text, form, reading = self._input.text, self._form, self._reading
        begin, name = head.end(), head["bare"]
        value = self._read_value(begin, tags)
        if value.ends is None and not self._input.last:
            return None
        end = begin + value.size
        schema = reading.schemas.get(name, {})
        found = tags.arguments_of(text[begin : end - len(tags.end)], schema) if value.ends else None
        written = json.dumps(found, ensure_ascii=False)
        if found is None or (not found and schema.get("required")) or not is_object(written):
            if not tags.quotes:  # all that begin within it fail alike, but for the last
                self._at = text.rfind(form.mark, at, end)
            return False
        return self._take([(name, written)], end)

    def _read_list(self, at: int, end: int) -> bool:
        """Read a value that has ended, with one call or several."""
        calls = calls_of(self._input.text[at:end], self._reading.schemas)
        known = self._names is None or all(name in self._names for name, _ in calls)
        if not calls or not known or (self._reading.whole and not all(is_object(arguments) for _, arguments in calls)):
            return False
        return self._take(calls, end)

    def _take(self, calls: list[tuple[str, str]], end: int) -> bool:
        """Take calls that end at a place, by names and arguments."""
        for name, arguments in calls:
            self._found += [Part(kind="call", name=name), Arguments(arguments)]
        self._drop(end - self._input.place)
        self._called, self._step = True, self._read_close
        return True

    def _read_value(self, at: int, tags: Tags | None = None) -> Nesting:
        """The JSON value, or what stands in tags, that begins at a place, as far as it has come."""
        place = at - self._input.place
        if self._value is None or self._value[0] != place:
            self._value = place, Nesting(tags=tags, never=self._form.mark.lstrip("["))
        self._value[1].read(self._input.text, at + self._value[1].size)
        return self._value[1]

    def _read_arguments(self, closers: str) -> bool:
        """Read the arguments of a call on, and then the objects around them, which end with these signs."""
        before, ends = self._nesting.size, self._nesting.read(self._input.text, self._input.place)
        text = self._drop(self._nesting.size - before)
        if self.open:
            self._found.append(Arguments(text))
        if ends:
            self._step = self._step if self.open and closers else self._read_close
            self.open, self._nesting = False, Nesting(closers)
        return ends

    def _read_close(self) -> bool:
        """What comes after a call: another one that shares its mark, or what closes them, also without the end of a list."""
        text, form = self._input.text, self._form
        shown = _SHOWN.search(text, self._input.place)
        self._drop((len(text) if shown is None else shown.start()) - self._input.place)
        if form.between and text.startswith(form.between, self._input.place):
            found = self._read_call(self._input.place + len(form.between))
            if found is not False:
                return bool(found)
        close = form.close.removeprefix("" if text.startswith("]", self._input.place) else "]")
        rest = text[self._input.place : self._input.place + len(close)]
        if close.startswith(rest) and (shown is None or rest != close) and not self._input.last:
            return False
        self._drop(len(rest) if close.startswith(rest) else 0)
        self._at, self._step = 0, self._read_content
        return True
