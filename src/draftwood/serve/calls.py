"""Tool calls in a text that grows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Set
from typing import Any, Final, TypeAlias, final
from uuid import uuid4

from draftwood.serve.tool_formats import ToolFormat

Delta: TypeAlias = dict[str, Any]
"""A part of a message, as OpenAI streams it: ``content``, ``reasoning_content`` or ``tool_calls``."""
_SIGNS: Final = re.compile(r'["\\{}\[\]]')


def begun(text: str, mark: str) -> int:
    """The length of the end of a text that may be the beginning of a mark, and of the blanks before it."""
    size = next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)
    return len(text) - len(text[: len(text) - size].rstrip())


def call_delta(index: int, name: str, arguments: str = "", *, given: str | None = None, short: bool = False) -> Delta:
    """The beginning of a call, with an id of its own unless one is given."""
    made = uuid4().hex
    function = {"name": name, "arguments": arguments}
    one = {"index": index, "id": given or (made[:9] if short else f"call_{made}"), "type": "function", "function": function}
    return {"tool_calls": [one]}


@final
class _Nesting:
    """How deep a place of a JSON text lies in objects and lists. What closes nothing is passed over."""

    def __init__(self, at: int, depth: int) -> None:
        self._at = at
        self._closers = ["}"] * depth  # of what is open
        self._quoted = False
        self._escaped = -1

    def end(self, text: str, depth: int) -> int | None:
        """Where the text comes back to a depth; None if it does not yet."""
        for sign in _SIGNS.finditer(text, self._at):
            if sign.start() == self._escaped:
                continue
            if self._quoted:
                self._escaped = sign.end() if sign[0] == "\\" else -1
                self._quoted = sign[0] != '"'
            elif sign[0] == '"':
                self._quoted = True
            elif sign[0] in "{[":
                self._closers.append("}" if sign[0] == "{" else "]")
            elif self._closers and sign[0] == self._closers[-1]:
                self._closers.pop()
                if len(self._closers) == depth:
                    self._at = sign.end()
                    return self._at
        self._at = len(text)
        return None


@final
class CallReader:
    """Divides a text into content and calls, as it comes. How it is cut into pieces makes no difference.

    A call begins where its function is known, and its arguments go out as they are written. What looks like a call and names
    no function is content.

    Args:
        form: of the calls.
        names: of the functions; where calls have no mark, only those are called.
        one: calls after the first one are left out.

    Attributes:
        count: calls so far.
    """

    def __init__(self, form: ToolFormat, names: Set[str], *, one: bool = False) -> None:
        self._form, self._names, self._one = form, names, one
        self.count = 0
        self._text = ""  # what is not given out yet
        self._mark = self._blanks = ""  # of the call that may begin, and what is before its mark
        self._nesting = _Nesting(0, 0)
        self._base = 0  # the depth around the arguments
        self._sent = 0  # arguments up to here are given out
        self._said = False  # there was content, so that a call without a mark cannot begin
        self._step: Callable[[list[Delta], bool], bool] = self._outside

    def push(self, text: str, *, last: bool = False) -> list[Delta]:
        """The parts of the message that are now certain; with ``last`` the text ends."""
        self._text += text
        found: list[Delta] = []
        while self._step(found, last):
            pass
        return found

    def _outside(self, found: list[Delta], last: bool) -> bool:
        mark, text = self._form.mark, self._text
        if self._form.unmarked and not self._said and text.lstrip().startswith("{"):
            self._begin("", "", text)
            return True
        if (at := text.find(mark)) >= 0:
            content = text[:at].rstrip()
            self._say(found, content)
            self._begin(mark, text[len(content) : at], text[at + len(mark) :])
            return True
        size = len(text) - (0 if last else begun(text, mark))
        self._say(found, text[:size].rstrip() if last and self.count else text[:size])  # blanks after a call are none
        self._text = text[size:]
        return False

    def _say(self, found: list[Delta], text: str) -> None:
        if text:
            self._said = True
            found.append({"content": text})

    def _begin(self, mark: str, blanks: str, text: str) -> None:
        self._mark, self._blanks, self._text = mark, blanks, text
        self._nesting = _Nesting(0, 0)
        self._step = self._head

    def _head(self, found: list[Delta], last: bool) -> bool:
        """After a mark: the function's name, or a whole object that is read at its end."""
        head = self._form.head.match(self._text)
        if head is not None and (name := head["name"] or head["bare"]) and (self._mark or name in self._names):
            self._start(found, name, given=head.groupdict().get("id"))
            self._base = 0 if head["name"] is None else 1
            self._nesting, self._sent = _Nesting(head.end(), self._base), head.end()
            self._step = self._arguments
            return True
        start = self._text.lstrip()[:1]
        if start in ("{", "["):
            end = self._nesting.end(self._text, 0)
            if end is not None:
                return self._whole(found, end)
        elif start and not self._form.begun.fullmatch(self._text):
            return self._fail(found)
        return last and self._fail(found)

    def _whole(self, found: list[Delta], end: int) -> bool:
        """An object or a list that is complete."""
        calls = _read(self._text[:end])
        if not calls or not (self._mark or all(name in self._names for name, _ in calls)):
            return self._fail(found)
        for name, arguments in calls:
            self._start(found, name, arguments)
        self._text, self._step = self._text[end:], self._after
        return True

    def _fail(self, found: list[Delta]) -> bool:
        """It is no call: the mark is content."""
        self._say(found, self._blanks + self._mark)
        self._said = True
        self._step = self._outside
        return True

    def _start(self, found: list[Delta], name: str, arguments: str = "", *, given: str | None = None) -> None:
        self.count += 1
        if self.count == 1 or not self._one:
            short = self._form.mark == "[TOOL_CALLS]"  # Mistral's templates want nine letters
            found.append(call_delta(self.count - 1, name, arguments, given=given, short=short))

    def _arguments(self, found: list[Delta], last: bool) -> bool:
        end = self._nesting.end(self._text, self._base)
        part = self._text[self._sent : end]
        self._sent += len(part)
        if part and (self.count == 1 or not self._one):
            found.append({"tool_calls": [{"index": self.count - 1, "function": {"arguments": part}}]})
        if end is None:
            return False
        self._step = self._tail
        return True

    def _tail(self, found: list[Delta], last: bool) -> bool:
        """After the arguments: the rest of their object, which says nothing."""
        end: int | None = self._sent if self._base == 0 else self._nesting.end(self._text, 0)
        if end is None:
            return False
        self._text, self._step = self._text[end:], self._after
        return True

    def _after(self, found: list[Delta], last: bool) -> bool:
        """After a call: what closes it, or the next one."""
        text, form = self._text.lstrip(), self._form
        if form.between and text.startswith(form.between):
            self._begin(self._mark, form.between, text[len(form.between) :])
            return True
        if not last and form.close.startswith(text) and (form.close or not text):
            return False
        self._text, self._step = text.removeprefix(form.close), self._outside
        return True


def _read(text: str) -> list[tuple[str, str]]:
    """The names and arguments of the calls in a JSON text; none if it is something else."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return []
    found = []
    for one in given if isinstance(given, list) else [given]:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            return []
        arguments = one.get("arguments", one.get("parameters"))
        written = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
        found.append((one["name"], written))
    return found
