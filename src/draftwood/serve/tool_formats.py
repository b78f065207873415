"""How models write tool calls: the widespread formats, for reading them and as grammars."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

from draftwood.grammar.grammar import json_rule

_HEAD: Final = r'\s*\{\s*"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
_NAMED: Final = r"(?P<bare>[^\s\[\]{}\"]+)(?:\[CALL_ID\](?P<id>\w+))?(?:\[ARGS\])?(?=\{)"


@final
@dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """A format of tool calls. Each holds an object with the function's name and its arguments, or both without an object.

    Attributes:
        mark: comes before the calls.
        unmarked: an answer that begins as an object may be a call too.
        head: a regular expression of what follows the mark, up to the arguments.
        begun: a regular expression of texts that may become a head without an object.
        close: what may come after the calls.
        between: what is between two calls that share a mark.
        frame: of a call in a grammar: what is before the name, before the arguments, and after them.
        outer: of all calls in a grammar: what is before the first, between two and after the last.
        signs: names that are special tokens of some models, and part of the format.
    """

    mark: str
    unmarked: bool = False
    head: re.Pattern[str]
    begun: re.Pattern[str] = re.compile(r"\s*")
    close: str = ""
    between: str = ""
    frame: tuple[str, str, str]
    outer: tuple[str, str, str]
    signs: tuple[str, ...] = ()

    def lark(self, functions: Mapping[str, Any], special: Mapping[str, int], *, many: bool, answer: Any = None) -> str:
        """A Lark grammar of calls.

        Args:
            functions: the schemas of their arguments by name.
            special: the ids of special tokens by name.
            many: several calls may come.
            answer: the schema of an answer that may come instead of calls; None for no answer.
        """

        def literal(text: str) -> str:
            parts = re.split("(" + ("|".join(map(re.escape, self.signs)) or "(?!)") + ")", text)
            found = [f"<[{special[part]}]>" if part in special else json.dumps(part) for part in parts if part]
            return " ".join(found)

        first, between, last = map(literal, self.outer)
        before, middle, after = self.frame
        more = f"({between} call)*" if many else ""
        rules = [f"start: calls{' | answer' if answer is not None else ''}", f"calls: {first} call {more} {last}"]
        rules.append("call: " + " | ".join(f"f{i}" for i in range(len(functions))))
        for i, (name, schema) in enumerate(functions.items()):
            rules.append(f"f{i}: {literal(before + name + middle)} a{i} {literal(after)}\na{i}: {json_rule(schema)}")
        if answer is not None:
            rules.append(f"answer: {json_rule(answer)}")
        return "\n".join(rules)


_HERMES: Final = ToolFormat(
    mark="<tool_call>",
    head=re.compile(_HEAD),
    close="</tool_call>",
    frame=('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>"),
    outer=("", "\n", ""),
    signs=("<tool_call>", "</tool_call>"),
)
_LLAMA: Final = ToolFormat(
    mark="<|python_tag|>",
    unmarked=True,
    head=re.compile(_HEAD),
    between=";",
    frame=('{"name": "', '", "parameters": ', "}"),
    outer=("", "; ", ""),
    signs=("<|python_tag|>",),
)
_LIST: Final = ToolFormat(
    mark="[TOOL_CALLS]",
    head=re.compile(rf"\s*\[?(?:{_HEAD})|\s*{_NAMED}"),
    begun=re.compile(r"\s*[^\s\[\]{}\"]*(?:\[[\w\[\]]*)?"),
    close="]",
    between=",",
    frame=('{"name": "', '", "arguments": ', "}"),
    outer=("[TOOL_CALLS][", ", ", "]"),
    signs=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
)
_ARGS: Final = replace(_LIST, frame=("[TOOL_CALLS]", "[ARGS]", ""), outer=("", "", ""))
FORMATS: Final[Mapping[str, ToolFormat]] = {"hermes": _HERMES, "llama3_json": _LLAMA, "mistral": _LIST}
"""By the names of ``--tool-parser``."""


def format_of(wanted: str, holds: Callable[[str], bool]) -> ToolFormat | None:
    """The wanted format; with ``auto`` the one that the chat template writes, by what it holds. None if it is not known."""
    if wanted == "auto":
        wanted = next((name for sign, name in _SIGNS.items() if holds(sign)), "")
    if wanted == "mistral" and holds("[ARGS]"):
        return _ARGS
    return FORMATS.get(wanted)


_SIGNS: Final = {  # what a chat template holds, and its format
    "[TOOL_CALLS]": "mistral",
    "<function=": "",  # of Qwen 3.5, which writes arguments without JSON
    "<tool_call>": "hermes",
    "<|python_tag|>": "llama3_json",
    "Environment: ipython": "llama3_json",
}


# ---- for chat templates without tools, in Hermes's format ----

_SAYS: Final = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def written_out(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages for a chat template that knows no tools: a system text says how to call, and calls and answers are texts.

    The contents of the messages are texts.
    """
    found: list[dict[str, Any]] = []
    answered = False  # the last message is one of answers
    for message in messages:
        one = {name: value for name, value in message.items() if name not in ("tool_calls", "tool_call_id")}
        text = message["content"]
        if message["role"] == "tool":
            one = {"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"}
            if answered:
                one["content"] = f"{found.pop()['content']}\n{one['content']}"
        elif calls := message.get("tool_calls"):
            one["content"] = "\n".join([*([text] if text else []), *map(_call, calls)])
        answered = message["role"] == "tool"
        found.append(one)
    if tools:
        says = _SAYS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        system = found.pop(0) if found and found[0]["role"] in ("system", "developer") else {"role": "system", "content": ""}
        given = system["content"]
        found.insert(0, {**system, "content": f"{given}\n\n{says}" if given else says})
    return found


def _call(call: Mapping[str, Any]) -> str:
    function = call["function"]
    written = json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"
