"""What an answer says: its content, its reasoning and its tool calls, while it grows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol, final

from draftwood.serve.calls import CallReader, Delta, begun, call_delta

THINK: Final = ("<think>", "</think>")
"""What is around the reasoning."""
_REASONING: Final = ("reasoning_content", "reasoning", "thinking")


class AnswerReader(Protocol):
    """Reads one text. How it is cut into pieces makes no difference to the parts, joined."""

    @property
    def called(self) -> bool:
        """Whether the text called a function."""

    def push(self, text: str, *, last: bool = False) -> list[Delta]:
        """The parts of the message that are now certain; with ``last`` the text ends."""


@final
class MarkReader:
    """Reads a text with the marks of reasoning, and of calls.

    Args:
        thinks: whether the text begins within the reasoning; None where reasoning is not split off.
        calls: reads the rest; None where nothing is called.
    """

    def __init__(self, thinks: bool | None, calls: CallReader | None) -> None:
        self._thinks, self._calls = thinks, calls
        self._place = "outside" if thinks is None else "inside" if thinks else "before"
        self._text = ""  # what is not given out yet
        self._begun = thinks is None  # there was a text in this place; blanks before it say nothing

    @property
    def called(self) -> bool:
        return self._calls is not None and self._calls.count > 0

    def push(self, text: str, *, last: bool = False) -> list[Delta]:
        if self._place == "outside" and self._begun:
            return self._content(text, last)
        self._text += text
        found: list[Delta] = []
        if self._place == "before":
            self._find_beginning(last)
        if self._place == "inside":
            self._think(found, last)
        if self._place == "outside":
            content = self._text if self._begun else self._text.lstrip()
            self._text, self._begun = "", bool(content)
            found += self._content(content, last)
        return found

    def _find_beginning(self, last: bool) -> None:
        start = self._text.lstrip()
        if start.startswith(THINK[0]):
            self._text, self._place = start[len(THINK[0]) :], "inside"
        elif last or not THINK[0].startswith(start):
            self._place, self._begun = "outside", True

    def _think(self, found: list[Delta], last: bool) -> None:
        text = self._text if self._begun else self._text.lstrip()
        thought, mark, rest = text.partition(THINK[1])
        held = 0 if mark or last else begun(text, THINK[1])
        thought, self._text = (
            (thought.rstrip(), rest) if mark or last else (text[: len(text) - held], text[len(text) - held :])
        )
        if thought:
            found.append({"reasoning_content": thought})
        self._begun = self._begun or bool(thought)
        if mark:
            self._place, self._begun = "outside", False

    def _content(self, text: str, last: bool) -> list[Delta]:
        if self._calls is not None:
            return self._calls.push(text, last=last)
        return [{"content": text}] if text else []


@final
class TemplateReader:
    """Reads a text by the response template of a tokenizer. Where it does not fit, the rest is content.

    Args:
        parser: of ``transformers``, for this text.
        one: calls after the first one are left out.
    """

    def __init__(self, parser: Any, *, one: bool = False) -> None:
        self._parser = parser
        self._most = 1 if one else None
        self._count = 0
        self._raw = ""  # what has no part yet
        self._blanks: str | None = None  # that may end a region; None before its text

    @property
    def called(self) -> bool:
        return self._count > 0

    def push(self, text: str, *, last: bool = False) -> list[Delta]:
        found: list[Delta] = []
        for letter in text:  # so that a fault comes at the same place, however the text is cut
            self._raw += letter
            self._take(found, self._parser and partial(self._parser.feed, letter))
        if last:
            self._take(found, self._parser and (lambda: self._parser.finalize()[1]))
        return joined(found)

    def _take(self, found: list[Delta], events: Callable[[], list[dict[str, Any]]] | None) -> None:
        """Add what the parser finds, or all that has no part yet after a value that it cannot read."""
        with suppress(ValueError, KeyError):
            if events is not None:
                found += [delta for event in events() for delta in self._deltas(event)]
                return
        self._parser = None
        found.append({"content": self._raw})
        self._raw = ""

    def _deltas(self, event: dict[str, Any]) -> list[Delta]:
        kind, field = event["type"], event["field"]
        if kind == "region_open":
            self._blanks = None
        elif kind == "region_close":
            self._raw = self._raw if field == "content" else ""  # which a mark may have closed
            return self._calls(event["value"]) if field == "tool_calls" else []
        elif not event["dirty"] and field in ("content", *_REASONING):
            self._raw = ""
            text = event["text"].lstrip() if self._blanks is None else self._blanks + event["text"]
            said = text.rstrip()
            if said or self._blanks is not None:
                self._blanks = text[len(said) :]
            return [{"content" if field == "content" else _REASONING[0]: said}] if said else []
        return []

    def _calls(self, value: Any) -> list[Delta]:
        found = []
        for one in value if isinstance(value, list) else [value]:
            function = one.get("function", one) if isinstance(one, dict) else {}
            if isinstance(name := function.get("name"), str) and (self._most is None or self._count < self._most):
                arguments = function.get("arguments", {})
                written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
                found.append(call_delta(self._count, name, written))
                self._count += 1
        return found


def joined(deltas: Sequence[Delta]) -> list[Delta]:
    """The parts with neighbours of one kind in one; calls stay apart."""
    found: list[Delta] = []
    for delta in deltas:
        [(kind, value)] = delta.items()
        if found and kind in found[-1] and isinstance(value, str):
            found[-1] = {kind: found[-1][kind] + value}
        elif value:
            found.append(delta)
    return found


def message_of(deltas: Sequence[Delta]) -> dict[str, Any]:
    """The message that the parts make."""
    content = "".join(delta.get("content", "") for delta in deltas)
    thought = "".join(delta.get("reasoning_content", "") for delta in deltas)
    calls: list[dict[str, Any]] = []
    for part in (part for delta in deltas for part in delta.get("tool_calls", ())):
        if part["index"] < len(calls):
            calls[-1]["function"]["arguments"] += part["function"]["arguments"]
        else:
            calls.append({"id": part["id"], "type": "function", "function": dict(part["function"])})
    found: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
    return found | ({"reasoning_content": thought} if thought else {}) | ({"tool_calls": calls} if calls else {})
