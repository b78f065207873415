"""The messages of a chat, in words that a chat template has."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias

from draftwood.serve.openai.formats import ToolFormat

Messages: TypeAlias = Sequence[Mapping[str, Any]]


def in_channels(messages: Messages) -> list[dict[str, Any]]:
    """Messages for templates of channels, with single calls; what precedes a call is one thought."""
    found = []
    for message in with_single_calls(messages):
        one = {name: value for name, value in message.items() if name not in ("reasoning_content", "reasoning")}
        thought, calls = message.get("reasoning_content") or message.get("reasoning") or "", "tool_calls" in one
        if calls and one.get("content"):
            thought, one["content"] = f"{thought}\n{one['content']}".lstrip(), ""
        found.append({**one, "thinking": thought} if thought and calls else one)
    return found


def with_single_calls(messages: Messages) -> list[dict[str, Any]]:
    """Messages of one call each, followed by its result, for templates that write no more, such as those of Llama 3."""
    found: list[dict[str, Any]] = []
    for message, results in _answered(messages):
        *before, last = message.get("tool_calls") or [None]
        for call in before:
            own = next((result for result in results if result.get("tool_call_id") == call.get("id")), None)
            found += [{**message, "tool_calls": [call]}, *([] if own is None else [own])]
            message, results = {"role": message["role"], "content": ""}, [one for one in results if one is not own]
        found += [message if last is None else {**message, "tool_calls": [last]}, *results]
    return found


def with_short_ids(messages: Messages) -> list[dict[str, Any]]:
    """Messages whose calls have ids of nine letters, as the first templates of Mistral want them; others become such."""

    def short(one: Mapping[str, Any], name: str) -> dict[str, Any]:
        id = str(one.get(name, ""))
        return {**one, name: id if len(id) == 9 else sha256(id.encode()).hexdigest()[:9]}

    found = _with_calls(messages, lambda call: short(call, "id"))
    return [short(message, "tool_call_id") if message["role"] == "tool" else message for message in found]


def with_responses(messages: Messages) -> list[dict[str, Any]]:
    """Messages for templates that read results in the message of their calls, as the first ones of Gemma 4."""
    found = []
    for message, results in _answered(messages):
        names = {call.get("id"): call["function"]["name"] for call in message.get("tool_calls") or ()}
        responses = [
            {"name": names.get(one.get("tool_call_id"), one.get("name", "unknown")), "response": one["content"]}
            for one in results
        ]
        found.append({**message, **({"tool_responses": responses} if responses else {})})
    return found


def with_objects(messages: Messages) -> list[dict[str, Any]]:
    """Messages whose calls have objects as arguments, for templates that write each argument by itself; a text that is none,
    as of a call that was cut, is an argument."""

    def whole(call: Mapping[str, Any]) -> dict[str, Any]:
        said = call["function"]["arguments"]
        given = said if isinstance(said, Mapping) else {"arguments": said} if said else {}
        return {**call, "function": {**call["function"], "arguments": given}}

    return _with_calls(messages, whole)


def _with_calls(messages: Messages, change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**one, **{name: [*map(change, one[name])] for name in ("tool_calls",) if name in one}} for one in messages]


_CHANGES: Final = {  # what a chat template holds, and messages as it takes them
    "single tool-calls": with_single_calls, "length != 9": with_short_ids, "arguments|items": with_objects,
    "_args.items": with_objects,
}  # fmt: skip


def as_read(messages: Messages, holds: Callable[[str], bool]) -> list[dict[str, Any]]:
    """Messages as a chat template takes them, by what it holds."""
    for change in (change for sign, change in _CHANGES.items() if holds(sign)):
        messages = change(messages)
    return [dict(message) for message in messages]


def _answered(messages: Messages) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each message with the results of tools that follow it."""
    found: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    for message in messages:
        if found and message["role"] == "tool" and found[-1][0]["role"] != "tool":
            found[-1][1].append(dict(message))
        else:
            found.append((dict(message), []))
    return found


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

_GREETING: Final = "You are a helpful assistant with some tools."  # of the model card


def written_out(
    messages: Messages, tools: Sequence[Mapping[str, Any]], form: ToolFormat, shows: Literal["text", "field", "template"]
) -> list[dict[str, Any]]:
    """Messages whose calls are texts, for a chat template that writes none.

    Args:
        shows: what shows the functions: a text of the system, which says how to call in the format of Hermes, where results
            are texts of the user; a field of the system's message, as for Phi-4-mini; or the template, as for Granite 3.3.
    """
    found: list[dict[str, Any]] = []
    for message, results in _answered(messages):
        if message["role"] == "tool":
            results = [message]
        else:
            calls, text = form.written(message.pop("tool_calls", ())), message["content"]
            found.append({**message, "content": "\n".join(part for part in (text, calls) if part)})
        if results and shows != "text":
            found += results
        elif results:
            said = "\n".join(f"<tool_response>\n{one['content']}\n</tool_response>" for one in results)
            found.append({"role": "user", "content": said})
    if tools and shows != "template":
        system = found.pop(0) if found and found[0]["role"] in ("system", "developer") else {"role": "system", "content": ""}
        given = system["content"]
        if shows == "field":
            functions = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
            return [{**system, "content": given or _GREETING, "tools": functions}, *found]
        says = _SAYS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        found.insert(0, {**system, "content": f"{given}\n\n{says}" if given else says})
    return found
