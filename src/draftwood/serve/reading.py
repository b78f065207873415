"""What an answer says: its reasoning, its content and its tool calls, while it grows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, NamedTuple, TypeAlias, final
from uuid import uuid4

from draftwood.serve.tools import ToolFormat

Delta: TypeAlias = dict[str, Any]
"""A part of a message, as OpenAI streams it: ``content``, ``reasoning_content`` or ``tool_calls``."""
THINK: Final = ("<think>", "</think>")
"""What is around the reasoning."""
_SIGNS: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[{}\[\]]', re.DOTALL)  # strings, and what nests


class Call(NamedTuple):
    """A call, with its arguments as far as they are written, and the id that the text gives it.

    ``open`` says that its arguments have not ended.
    """

    name: str
    arguments: str
    id: str | None = None
    open: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class Reading:
    """How the answers to a chat are read.

    Attributes:
        thinks: whether an answer begins within the reasoning; None where reasoning is not split off.
        form: of the calls; None where nothing is called.
        names: of the functions.
        needing: functions with required arguments: without any, nothing is called.
        one: calls after the first one are left out.
        whole: calls come when they have ended. What never ends, or has arguments that are no object, is content.
        shown: special tokens whose names are part of what is read.
    """

    thinks: bool | None = None
    form: ToolFormat | None = None
    names: frozenset[str] = frozenset()
    needing: frozenset[str] = frozenset()
    one: bool = False
    whole: bool = False
    shown: frozenset[int] = frozenset()


@final
class AnswerReader:
    """Reads one text, and finds its parts as far as they are certain. How it is cut into pieces makes no difference."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._text = self._thought = ""
        self._texts: list[str] = []  # before each call, and after the last one
        self._calls: list[Call] = []
        self.ids: list[str] = []  # of the calls so far

    def push(self, text: str, *, last: bool = False) -> list[Delta]:
        """What is new of the message; with ``last`` the text ends. A call begins with its name, and its arguments follow."""
        self._text += text
        thought, rest = self._divided(last)
        plain = self._reading.form is None
        texts, calls = ([rest], []) if plain else _Calls(rest, self._reading, last=last).read()
        if self._reading.one and calls:
            texts, calls = [texts[0], "".join(texts[1:])], calls[:1]
        found: list[Delta] = [{"reasoning_content": part}] if (part := thought[len(self._thought) :]) else []
        for index, (text, old, call) in enumerate(zip_longest(texts, self._texts, calls)):
            if part := text[len(old or "") :]:
                found.append({"content": part})
            if call is not None:
                found += self._grown(index, call)
        self._thought, self._texts, self._calls = thought, texts, calls
        return found

    def _grown(self, index: int, call: Call) -> Iterator[Delta]:
        """What is new of a call."""
        known = self._calls[index].arguments if index < len(self._calls) else ""
        if index == len(self.ids):
            self.ids.append(call.id or self._new_id())
            yield {"tool_calls": [{"index": index, **called(self.ids[-1], call.name, "")}]}
        if part := call.arguments[len(known) :]:
            yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}

    @property
    def called(self) -> bool:
        """Whether there are calls, and all of them have ended."""
        return bool(self._calls) and not self._calls[-1].open

    def message(self) -> dict[str, Any]:
        """The message so far."""
        calls = [called(id, call.name, call.arguments) for id, call in zip(self.ids, self._calls, strict=True)]
        content = "".join(self._texts) or (None if calls else "")
        found: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        found |= {"reasoning_content": self._thought} if self._thought else {}
        return found | ({"tool_calls": calls} if calls else {})

    def _divided(self, last: bool) -> tuple[str, str]:
        """The reasoning, and what comes after it."""
        thinks, inner = self._reading.thinks, self._text.lstrip()
        if thinks is None:
            return "", self._text
        if not thinks:
            if not inner.startswith(THINK[0]):
                return "", "" if THINK[0].startswith(inner) and not last else self._text
            inner = inner.removeprefix(THINK[0])
        thought, mark, rest = inner.partition(THINK[1])
        thought = thought.lstrip()
        if mark or last:
            return thought.rstrip(), rest.lstrip()
        return thought[: len(thought) - begun(thought, THINK[1])], ""

    def _new_id(self) -> str:
        form, made = self._reading.form, uuid4().hex  # Mistral's templates want nine letters
        return made[:9] if form is not None and form.mark == "[TOOL_CALLS]" else f"call_{made}"


def called(id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A call in a message."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


# ---- calls in a text that grows ----


def begun(text: str, mark: str) -> int:
    """The length of the end of a text that may be the beginning of a mark, and of the blanks before it."""
    size = next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)
    return len(text) - len(text[: len(text) - size].rstrip())


_Found: TypeAlias = tuple[list[Call], int | None] | None
"""Calls and where they end, None if they do not yet; None for no call."""


@final
class _Calls:
    """Reads the content and the calls of a text, as far as they are certain: with more text, they only grow.

    A call is certain where its function is known, or where it ends. What looks like a call and names no function is content.

    Args:
        last: the text ends here.
    """

    def __init__(self, text: str, reading: Reading, *, last: bool) -> None:
        assert reading.form is not None
        self._text, self._form, self._last = text, reading.form, last
        self._names, self._needing, self._whole = reading.names, reading.needing, reading.whole

    def read(self) -> tuple[list[str], list[Call]]:
        """The texts before each call and after the last one, and the calls."""
        text, form = self._text, self._form
        texts, calls = [""], list[Call]()
        start = at = 0  # of what is not read yet, and of where a call may begin
        while True:
            bare = form.unmarked and start == at and not any(texts) and text[at:].lstrip().startswith("{")
            mark = "" if bare else form.mark
            place = text.find(mark, at)
            if place < 0:
                break
            found = self._sharing(place + len(mark), None if mark else self._names)
            if found is None:
                at = place + (len(mark) or 1)
                continue
            made, end = found
            texts[-1] += text[start:place].rstrip()
            texts += [""] * len(made)
            calls += made
            if end is None:
                return texts, calls
            start = at = end
        rest = text[start:]
        size = len(rest.rstrip() if calls else rest) if self._last else len(rest) - begun(rest, form.mark)
        texts[-1] += rest[:size]  # blanks after a call are none
        return texts, calls

    def _sharing(self, at: int, names: Set[str] | None) -> _Found:
        """The calls that begin at a place of the text and share a mark, and the end of what closes them. Where calls have no
        mark, only functions of these names are called."""
        text, form = self._text, self._form
        found = self._one(at, names)
        if found is None:
            return None
        calls, end = found
        while end is not None:
            end += len(text[end:]) - len(text[end:].lstrip())
            if form.between and text.startswith(form.between, end):
                more = self._one(end + len(form.between), names)
                if more is None:
                    break
                calls, end = [*calls, *more[0]], more[1]
            elif form.close.startswith(text[end:]):
                return calls, len(text) if self._last else None
            else:
                return calls, end + len(form.close) * text.startswith(form.close, end)
        return calls, end

    def _one(self, at: int, names: Set[str] | None) -> _Found:
        """A call, or a list of them that has ended; with ``names`` only of those functions."""
        text, form = self._text, self._form
        head = form.head.match(text, at)
        if head is not None:
            given = head.groupdict()
            name = given["name"] or given["bare"]
            if names is None or name in names:
                begin = head.end()
                end = _end(text, begin)
                call = Call(name, text[begin:end], given.get("id"), open=end is None)
                if self._certain([call]):
                    return [call], end if end is None or given["name"] is None else _end(text, end, within="}")
                return None if self._last or end is not None else ([], None)
        start = text[at:].lstrip()[:1]
        if start in ("{", "["):
            end = _end(text, at)
            calls = [] if end is None else _calls_of(text[at:end], self._needing)
            if calls and self._certain(calls) and (names is None or all(call.name in names for call in calls)):
                return calls, end
            if end is not None:
                return None
        elif start and not form.begun.fullmatch(text, at):
            return None
        return None if self._last else ([], None)

    def _certain(self, calls: Sequence[Call]) -> bool:
        """Whether calls come as they are now."""
        return not self._whole or all(not call.open and is_object(call.arguments) for call in calls)


def is_object(arguments: str) -> bool:
    """Whether arguments are a JSON object."""
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False


def _end(text: str, at: int, within: str = "") -> int | None:
    """Where the JSON value ends that begins at a place of a text, or what closes the place; None if it does not yet. What
    closes nothing is passed over."""
    closers = list(within)
    for sign in _SIGNS.finditer(text, at):
        if sign[0] in "{[":
            closers.append("}" if sign[0] == "{" else "]")
        elif closers and sign[0] == closers[-1]:
            closers.pop()
            if not closers:
                return sign.end()
    return None


def _calls_of(text: str, needing: Set[str]) -> list[Call]:
    """The calls in a JSON text; none if it is something else. Functions that need arguments are not called without any."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return []
    found = []
    for one in given if isinstance(given, list) else [given]:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            return []
        if (arguments := one.get("arguments", one.get("parameters"))) is None:
            if one["name"] in needing:
                return []
            arguments = {}
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        found.append(Call(one["name"], written))
    return found
