"""The tools and items of responses: to a chat's functions and messages, and from its calls back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, final

from pydantic_core import from_json

from draftwood.core.checks import short_repr
from draftwood.serve.dialects.dialect import Remark, objects, without
from draftwood.serve.http.fields import unsupported
from draftwood.serve.openai.message import called
from draftwood.serve.openai.reading import Part
from draftwood.serve.openai.streams import Json
from draftwood.serve.openai.tagged import is_object

_TEXTS: Final = {  # where parts of these types have their text
    "refusal": "refusal", "input_text": "text", "output_text": "text", "reasoning_text": "text", "summary_text": "text",
}  # fmt: skip
_OPENAI: Final = (  # what kinds of tools and of items begin with that are of OpenAI's servers and models
    "web_search", "file_search", "code_interpreter", "computer", "image_generation", "mcp", "tool_search", "compaction",
    "shell", "apply_patch",
)  # fmt: skip
_CALLS: Final = {"function_call": "arguments", "custom_tool_call": "input", "local_shell_call": "action"}
_SHELL: Final = {
    "description": "Runs a command on the user's machine, without a shell, and returns its output.",
    "parameters": {"type": "object", "required": ["command"], "additionalProperties": False, "properties": {
        "command": {"type": "array", "items": {"type": "string"}}, "working_directory": {"type": "string"},
        "timeout_ms": {"type": "integer"}}},
}  # fmt: skip


@final
class Tools:
    """The tools of a response.

    Attributes:
        functions: of the chat.
        remarks: on what was left out, or is not held.
    """

    def __init__(self, given: list[Any]) -> None:
        self.functions: list[Json] = []
        self.remarks: list[Remark] = []
        self._kinds: dict[str, tuple[str, Json]] = {}  # by function: the kind of a call's item, and what names its tool
        for tool in objects("tools", given):
            self._add(tool)

    def _add(self, tool: Json, namespace: str = "") -> None:
        kind, name = str(tool.get("type")), tool.get("name")
        inner = joined(namespace, name)
        if kind == "namespace" and not namespace:
            for one in objects("tools", tool.get("tools")):
                self._add(one, str(name))
        elif kind == "function":
            self._take("function_call", tool, inner, without(tool, "type", "defer_loading"), namespace)
        elif kind == "custom":
            self._take("custom_tool_call", tool, inner, self._custom(tool), namespace)
        elif kind == "local_shell":
            self._take("local_shell_call", {}, kind, _SHELL)
        elif kind.startswith(_OPENAI):
            self.remarks.append(Remark("tools", f"holds {kind}, which is of OpenAI's servers only"))
        else:
            why = "tools are function, custom, namespace or local_shell, which your program runs: send one of them"
            raise unsupported("tools", tool, why)

    def _take(self, kind: str, tool: Json, name: Any, function: Json, namespace: str = "") -> None:
        self.functions.append({"type": "function", "function": {**function, "name": name}})
        named = {"name": tool.get("name")} | ({"namespace": namespace} if namespace else {})
        self._kinds[str(name)] = kind, named if tool else {}

    def _custom(self, tool: Json) -> Json:
        """The function of a tool that takes a text. A pattern holds it where an answer must call."""
        [form], says, text = objects("tools", [tool.get("format") or {}]), [tool.get("description")], {"type": "string"}
        if (definition := form.get("definition")) is not None:
            says.append(f"The input follows this {form.get('syntax')} grammar:\n{definition}")
            if form.get("syntax") == "regex":
                text["pattern"] = f"^(?:{definition})$"
            else:
                name = short_repr(tool.get("name"))
                shown = f"holds a grammar of {name}, which is shown to the model only"
                self.remarks.append(Remark("tools", shown, ": it holds no call"))
        parameters = {"type": "object", "properties": {"input": text}, "required": ["input"], "additionalProperties": False}
        return {"description": "\n".join(filter(None, says)) or None, "parameters": parameters}

    def choice(self, choice: str | Json | None) -> str | Json | None:
        if not isinstance(choice, dict):
            return choice
        if (kind := choice.get("type")) == "allowed_tools":
            given = objects("tool_choice.tools", choice.get("tools"))
            known = [self.choice(one) for one in given if not str(one.get("type")).startswith(_OPENAI)]
            return {"type": kind, kind: {"mode": choice.get("mode"), "tools": known}}
        if kind not in ("function", "custom", "local_shell"):
            raise unsupported("tool_choice", choice, "it names a function, custom or local_shell tool: send one of them")
        name = joined(choice.get("namespace"), choice.get("name"))
        return {"type": "function", "function": {"name": kind if kind == "local_shell" else name}}

    def kind(self, part: Part) -> str:
        return self._kinds.get(part.name, ("function_call",))[0]

    def item(self, part: Part) -> Json:
        """A call as an item, without id and status."""
        kind, named = self._kinds.get(part.name, ("function_call", {"name": part.name}))
        said: Any = part.text
        if kind == "custom_tool_call":
            said = _input(part.text)
        elif kind == "local_shell_call":
            said = {"type": "exec", "command": [], "env": {}, **(json.loads(part.text) if is_object(part.text) else {})}
        return {"type": kind, "call_id": part.id, **named, _CALLS[kind]: said}


def joined(namespace: Any, name: Any) -> Any:
    """The name of a function in a namespace."""
    return f"{namespace}.{name}" if namespace else name


def _input(arguments: str) -> str:
    """The text of a custom tool, as far as it was written; arguments of another form are the text."""
    try:
        found = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return arguments
    return str(found.get("input", "")) if isinstance(found, dict) and found.keys() <= {"input"} else arguments


def messages(given: str | list[Any], remarks: list[Remark]) -> Iterator[Json]:
    """The messages of the chat. What one turn of the assistant said is one message; ``remarks`` takes what is left out."""
    turn: Json = {}
    for item in objects("input", [{"role": "user", "content": given}] if isinstance(given, str) else given):
        if (said := _said(item, remarks)) is None:
            continue
        if turn and (said.get("role") != "assistant" or turn.keys() & said.keys() - {"role", "tool_calls"}):
            yield turn
            turn = {}
        if said.get("role") != "assistant":
            yield said
        elif calls := [*turn.get("tool_calls", ()), *said.get("tool_calls", ())]:
            turn |= {**said, "tool_calls": calls}
        else:
            turn |= said
    if turn:
        yield turn


def _said(item: Json, remarks: list[Remark]) -> Json | None:
    """An item as a message, or as a part of the assistant's; None for one that is left out."""
    rest, kind = without(item, "type", "id", "status", "phase"), str(item.get("type", "message"))
    id = rest.get("call_id") or item.get("id")
    if kind == "message" and "tool_calls" not in rest:
        return {**rest, "content": _texts(rest.get("content"))}
    if kind in _CALLS:
        said = rest.get(_CALLS[kind])
        if kind == "local_shell_call":
            said = json.dumps(without(objects("input", [said])[0], "type"), ensure_ascii=False)
        elif kind == "custom_tool_call":
            said = json.dumps({"input": said}, ensure_ascii=False)
        name = "local_shell" if kind == "local_shell_call" else joined(rest.get("namespace"), rest.get("name"))
        return {"role": "assistant", "tool_calls": [called(id, name, said)]}
    if kind.removesuffix("_output") in _CALLS:
        return {"role": "tool", "tool_call_id": id, "content": _texts(rest.get("output"))}
    if kind == "reasoning":
        parts = objects("input", rest.get("content") or rest.get("summary") or [])
        thought = "".join(str(part.get("text") or "") for part in parts)
        if not thought and rest.get("encrypted_content"):
            remarks.append(Remark("input", "holds an encrypted reasoning, which only its maker can read"))
        return {"role": "assistant", "reasoning_content": thought} if thought else None
    if kind.startswith(_OPENAI):
        remarks.append(Remark("input", f"holds {kind}, which is of OpenAI's servers only"))
        return None
    raise unsupported("input", item, f"this server reads messages, calls and outputs of tools, and reasoning, not {kind}")


def _texts(content: Any) -> Any:
    """A content with the types of chats. One that is no text is refused there."""
    if not isinstance(content, list):
        return content
    kinds = [(part, _TEXTS.get(str(part.get("type")))) for part in objects("input", content)]
    return [part if name is None else {"type": "text", "text": part.get(name)} for part, name in kinds]
