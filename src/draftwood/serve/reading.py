"""What an answer says: its reasoning, its content and its tool calls, while it grows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final
from uuid import uuid4

from draftwood.serve.calls import Call, begun, read_calls
from draftwood.serve.tool_formats import ToolFormat

Delta: TypeAlias = dict[str, Any]
"""A part of a message, as OpenAI streams it: ``content``, ``reasoning_content`` or ``tool_calls``."""
THINK: Final = ("<think>", "</think>")
"""What is around the reasoning."""


@final
@dataclass(frozen=True, kw_only=True)
class Reading:
    """How the answers to a chat are read.

    Attributes:
        thinks: whether an answer begins within the reasoning; None where reasoning is not split off.
        form: of the calls; None where nothing is called.
        names: of the functions.
        one: calls after the first one are left out.
        shown: special tokens whose names are part of what is read.
    """

    thinks: bool | None = None
    form: ToolFormat | None = None
    names: frozenset[str] = frozenset()
    one: bool = False
    shown: frozenset[int] = frozenset()


@final
class AnswerReader:
    """Reads one text, and finds its parts as far as they are certain. How it is cut into pieces makes no difference to them.

    Args:
        reading: how it is read.

    Attributes:
        ids: of the calls so far.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._text = self._thought = self._content = ""
        self._calls: list[Call] = []
        self.ids: list[str] = []

    def push(self, text: str, *, last: bool = False) -> list[Delta]:
        """What is new of the message; with ``last`` the text ends. A call begins with its name, and its arguments follow."""
        self._text += text
        thought, rest = self._divided(last)
        content, calls = rest, list[Call]()
        if self._reading.form is not None:
            content, calls = read_calls(rest, self._reading.form, self._reading.names, last=last)
        if self._reading.one:
            del calls[1:]
        known, found = len(self._calls), list[Delta]()
        if known and (part := calls[known - 1].arguments[len(self._calls[-1].arguments) :]):
            found.append(_arguments(known - 1, part))
        for kind, new, old in (("reasoning_content", thought, self._thought), ("content", content, self._content)):
            if len(new) > len(old):
                found.append({kind: new[len(old) :]})
        for index, call in enumerate(calls[known:], known):
            self.ids.append(call.id or self._new_id())
            function = {"name": call.name, "arguments": ""}
            found.append(_call({"index": index, "id": self.ids[-1], "type": "function", "function": function}))
            if call.arguments:
                found.append(_arguments(index, call.arguments))
        self._thought, self._content, self._calls = thought, content, calls
        return found

    def message(self) -> dict[str, Any]:
        """The message so far."""
        calls = [
            {"id": id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for id, call in zip(self.ids, self._calls, strict=True)
        ]
        content = self._content or (None if calls else "")
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


def _call(call: dict[str, Any]) -> Delta:
    return {"tool_calls": [call]}


def _arguments(index: int, part: str) -> Delta:
    return _call({"index": index, "function": {"arguments": part}})
