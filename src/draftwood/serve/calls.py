"""Tool calls in a text that grows."""

from __future__ import annotations

import json
import re
from collections.abc import Set
from typing import Final, NamedTuple

from draftwood.serve.tool_formats import ToolFormat

_SIGNS: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[{}\[\]]', re.DOTALL)  # strings, and what nests


class Call(NamedTuple):
    """A call, with its arguments as far as they are written, and the id that the text gives it."""

    name: str
    arguments: str
    id: str | None = None


def begun(text: str, mark: str) -> int:
    """The length of the end of a text that may be the beginning of a mark, and of the blanks before it."""
    size = next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)
    return len(text) - len(text[: len(text) - size].rstrip())


def read_calls(text: str, form: ToolFormat, names: Set[str], *, last: bool) -> tuple[str, list[Call]]:
    """The content and the calls of a text, as far as they are certain: with more text, they only grow.

    A call is certain where its function is known. What looks like a call and names no function is content.

    Args:
        text: so far.
        form: of the calls.
        names: of the functions; where calls have no mark, only those are called.
        last: the text ends here.
    """
    content, calls = "", list[Call]()
    start = at = 0  # of what is not read yet, and of where a call may begin
    while True:
        bare = form.unmarked and start == at and not content and text[at:].lstrip().startswith("{")
        mark = "" if bare else form.mark
        place = text.find(mark, at)
        if place < 0:
            break
        found = _sharing(text, place + len(mark), form, None if mark else names, last)
        if found is None:
            at = place + (len(mark) or 1)
            continue
        made, end = found
        content += text[start:place].rstrip()
        calls += made
        if end is None:
            return content, calls
        start = at = end
    rest = text[start:]
    if last:
        return content + (rest.rstrip() if calls else rest), calls  # blanks after a call are none
    return content + rest[: len(rest) - begun(rest, form.mark)], calls


_Found = tuple[list[Call], int | None] | None
"""Calls and where they end, None if they do not yet; None for no call."""


def _sharing(text: str, at: int, form: ToolFormat, names: Set[str] | None, last: bool) -> _Found:
    """The calls that begin at a place of a text and share a mark, and the end of what closes them."""
    found = _one(text, at, form, names, last)
    if found is None:
        return None
    calls, end = found
    while end is not None:
        end += len(text[end:]) - len(text[end:].lstrip())
        if form.between and text.startswith(form.between, end):
            more = _one(text, end + len(form.between), form, names, last)
            if more is None:
                break
            calls, end = [*calls, *more[0]], more[1]
        elif not last and form.close.startswith(text[end:]):
            return calls, None
        else:
            return calls, end + len(form.close) * text.startswith(form.close, end)
    return calls, end


def _one(text: str, at: int, form: ToolFormat, names: Set[str] | None, last: bool) -> _Found:
    """A call, or a list of them that is complete; with ``names`` only of those functions."""
    head = form.head.match(text, at)
    if head is not None:
        given = head.groupdict()
        name = given["name"] or given["bare"]
        if names is None or name in names:
            begin = head.end()
            end = _end(text, begin)
            call = Call(name, text[begin:end], given.get("id"))
            return [call], end if end is None or given["name"] is None else _end(text, end, within="}")
    start = text[at:].lstrip()[:1]
    if start in ("{", "["):
        end = _end(text, at)
        calls = [] if end is None else _calls_of(text[at:end])
        if calls and (names is None or all(call.name in names for call in calls)):
            return calls, end
        if end is not None:
            return None
    elif start and not form.begun.fullmatch(text, at):
        return None
    return None if last else ([], None)


def _end(text: str, at: int, within: str = "") -> int | None:
    """Where the JSON value ends that begins at a place of a text, or what closes the place; None if it does not yet.

    What closes nothing is passed over.
    """
    closers = list(within)
    for sign in _SIGNS.finditer(text, at):
        if sign[0] in "{[":
            closers.append("}" if sign[0] == "{" else "]")
        elif closers and sign[0] == closers[-1]:
            closers.pop()
            if not closers:
                return sign.end()
    return None


def _calls_of(text: str) -> list[Call]:
    """The calls in a JSON text; none if it is something else."""
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
        found.append(Call(one["name"], written))
    return found
