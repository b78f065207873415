"""The tool calls in a text that grows, and what is around them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, TypeAlias, final

from draftwood.serve.openai.formats import THINK, Thinking, ToolFormat
from draftwood.serve.openai.tagged import Nesting, Tags, is_object

_OBJECT: Final = re.compile(r"\s*\{")
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
        channels: answers are in channels.
        continues: an answer goes on with a message that the request has begun.
        form: of the calls; None where nothing is called.
        names: of the functions.
        schemas: of the functions' arguments, by name.
        needing: functions with required arguments: without any, nothing is called.
        one: calls after the first one are left out.
        whole: calls come when they have ended. What never ends, or has arguments that are no object, is content.
        shown: special tokens whose names are part of what is read.
    """

    thinks: bool | None = None
    thinking: Thinking = THINK
    channels: bool = False
    continues: bool = False
    form: ToolFormat | None = None
    names: frozenset[str] = frozenset()
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    needing: frozenset[str] = frozenset()
    one: bool = False
    whole: bool = False
    shown: frozenset[int] = frozenset()


def begun(text: str, mark: str) -> int:
    """The length of the end of a text that may be the beginning of a mark, and of the blanks before it."""
    size = next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)
    return len(text) - len(text[: len(text) - size].rstrip())


@final
class CallReader:
    """Reads the content and the calls of a text that grows, as far as they are certain.

    A call is certain where its function is known, or where it ends. What looks like a call and names no function is content.

    Attributes:
        unread: text that is not certain yet.
        open: the arguments of the last call have not ended.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.unread, self._at = "", 0  # and the place in it behind which a call may begin
        self.open = self._last = self._said = False
        self._step: Callable[[], bool] = self._read_content  # reads on, and returns whether there may be more
        self._count = 0  # of calls, those that are left out included
        self._names: Set[str] | None = None  # of the functions that may be called here; None for all
        self._nesting = Nesting()  # of what is read on
        self._tried: dict[int, tuple[Nesting, int]] = {}  # of values whose ends decide: by place, and how far they are read
        self._found: list[New] = []

    @property
    def _form(self) -> ToolFormat:
        assert self._reading.form is not None  # else nothing is called
        return self._reading.form

    def push(self, text: str, *, last: bool) -> list[New]:
        self.unread, self._last = self.unread + text, last
        while self._step():
            pass
        found, self._found = self._found, []
        return found

    def _drop(self, size: int) -> str:
        """The next characters, which are read."""
        text, self.unread = self.unread[:size], self.unread[size:]
        self._at = max(0, self._at - size)
        self._tried.clear()
        return text

    def _say(self, size: int) -> None:
        """The next characters are content."""
        if size:
            self._said = True
            self._found.append(self._drop(size))

    def _read_content(self) -> bool:
        text, form = self.unread, self._form
        bare = form.unmarked and not self._at and not self._said and _OBJECT.match(text) is not None
        mark = "" if bare else form.mark
        place = text.find(mark, self._at)
        if place < 0:
            end = len(text.rstrip() if self._count else text)  # blanks after a call are none
            self._say(end if self._last else len(text) - begun(text, form.mark))
            return False
        before = len(text[:place].rstrip())
        self._say(before)
        place, self._names = place - before, self._reading.names if bare else None
        found = self._read_call(place + len(mark))
        if found is False:
            self._at = place + (len(mark) or 1)
            self._tried.clear()
        return found is not None

    def _read_call(self, at: int) -> bool | None:
        """Read a call, or a list of them that has ended; False if there is none, None if that is not certain yet."""
        text, form = self.unread, self._form
        if form.tags is not None:
            return self._read_tagged(at, form.tags)
        head = form.head.match(text, at)
        if head is not None:
            given = head.groupdict()
            name = given.get("name") or given["bare"]
            if self._names is None or name in self._names:
                call, begin = Part(kind="call", name=name, id=given.get("id") or ""), head.end()
                end = begin if not self._reading.whole else self._end(begin)
                if end is None or (end > begin and not is_object(text[begin:end])):
                    return None if end is None and not self._last else False
                self._begin(call)
                self._drop(begin)
                self.open, self._nesting = self._kept or self.open, Nesting()
                self._step = partial(self._read_arguments, "}" * (bool(given.get("name")) + bool(given.get("around"))))
                return True
        start = _SHOWN.search(text, at)
        if start is not None and start[0] in "{[":
            if (end := self._end(at)) is not None:
                return self._read_list(at, end)
        elif start is not None and not form.begun.fullmatch(text, at):
            return False
        return False if self._last else None

    def _read_tagged(self, at: int, tags: Tags) -> bool | None:
        """Read a call whose arguments stand in tags, when it has ended."""
        text, form, reading = self.unread, self._form, self._reading
        head = form.head.match(text, at)
        end = None if head is None else self._end(head.end(), tags)
        if head is None or end is None:
            return False if self._last or (head is None and not form.begun.fullmatch(text, at)) else None
        name = head["bare"]
        found = tags.arguments_of(text[head.end() : end - len(tags.end)], reading.schemas.get(name, {}))
        if found is None or (not found and name in reading.needing):
            return False
        if not is_object(written := json.dumps(found, ensure_ascii=False)):
            return False
        self._begin(Part(kind="call", name=name))
        self._grow(written)
        self._drop(end)
        self._step = self._read_close
        return True

    def _read_list(self, at: int, end: int) -> bool:
        """Read a value that has ended, with one call or several."""
        calls = _calls_of(self.unread[at:end], self._reading.needing)
        known = self._names is None or all(call.name in self._names for call in calls)
        if not calls or not known or (self._reading.whole and not all(is_object(call.text) for call in calls)):
            return False
        for call in calls:
            arguments, call.pieces = call.text, []
            self._begin(call)
            self._grow(arguments)
        self._drop(end)
        self._step = self._read_close
        return True

    def _end(self, at: int, tags: Tags | None = None) -> int | None:
        """Where the JSON value, or what stands in tags, ends that begins at a place; None if it does not yet."""
        nesting, read = self._tried.get(at, (Nesting(tags=tags), at))
        end = nesting.end(self.unread, read)
        self._tried[at] = nesting, len(self.unread)
        return end

    @property
    def _kept(self) -> bool:
        """Whether the last call is no call that is left out."""
        return self._count == 1 or not self._reading.one

    def _begin(self, call: Part) -> None:
        self._count += 1
        if self._kept:
            self._found.append(call)

    def _grow(self, text: str) -> None:
        if text and self._kept:
            self._found.append(Arguments(text))

    def _read_arguments(self, closers: str) -> bool:
        """The arguments of a call; the objects around them end later, with these signs."""
        end = self._nesting.end(self.unread)
        self._grow(self._drop(len(self.unread) if end is None else end))
        if end is not None:
            self.open, self._nesting = False, Nesting(closers)
            self._step = self._read_object if closers else self._read_close
        return end is not None

    def _read_object(self) -> bool:
        """The rest of the object of a call."""
        end = self._nesting.end(self.unread)
        self._drop(len(self.unread) if end is None else end)
        if end is not None:
            self._step = self._read_close
        return end is not None

    def _read_close(self) -> bool:
        """What comes after a call: another one that shares its mark, or what closes them, also without the end of a list."""
        self.unread, form = self.unread.lstrip(), self._form
        if form.between and self.unread.startswith(form.between):
            found = self._read_call(len(form.between))
            if found is not False:
                return bool(found)
        close = form.close.removeprefix("" if self.unread.startswith("]") else "]")
        if not close.startswith(self.unread):
            self.unread = self.unread.removeprefix(close)
        elif not self._last:
            return False
        else:
            self.unread = ""
        self._tried.clear()
        self._at, self._step = 0, self._read_content
        return True


def _calls_of(text: str, needing: Set[str]) -> list[Part]:
    """The calls in a JSON text; none if it is something else. Functions that need arguments are not called without any."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return []
    found = []
    for one in given if isinstance(given, list) else [given]:
        one = one["function"] if isinstance(one, dict) and one.get("type") == "function" and "function" in one else one
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            return []
        if (arguments := one.get("arguments", one.get("parameters"))) is None:
            if one["name"] in needing:
                return []
            arguments = {}
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        found.append(Part(kind="call", name=one["name"], pieces=[written]))
    return found
