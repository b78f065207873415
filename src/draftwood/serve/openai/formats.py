"""How models write tool calls: the widespread formats, and their grammars."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, final

import regex

from draftwood.grammar.grammar import json_rule
from draftwood.serve.openai.tagged import GEMMA, GLM, PYTHON, QWEN, Tags

_HEAD: Final = (
    r'\s*+(?P<around>\{\s*"type"\s*:\s*"function"\s*,\s*"function"\s*:\s*)?'
    r'\{\s*"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_NAMED: Final = r"(?P<bare>[^\s\[\]{}\"]+)(?:\[CALL_ID\](?P<id>\w+))?(?:\[ARGS\])?(?=\{)"


@final
@dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """A format of tool calls. Each holds an object with the function's name and its arguments, or both without an object.

    Arguments that are no JSON are held by no grammar: answers that one holds are in another format (``held``).

    Attributes:
        mark: comes before the calls.
        unmarked: an answer that begins as an object may be a call too.
        head: a regular expression of what follows the mark, up to the arguments. It tries no other number of blanks.
        tags: how the arguments are written; None where they are JSON.
        held: the format of answers that a grammar holds, if it is another one.
        channels: calls have a channel of their own, as thoughts and answers have (:mod:`draftwood.serve.openai.message`).
        close: what may come after the calls.
        between: what is between two calls that share a mark.
        frame: of a call in a grammar: what is before the name, before the arguments, and after them.
        outer: of all calls in a grammar: what is before the first, between two and after the last.
        signs: names that are special tokens of some models, and part of the format.
    """

    mark: str
    unmarked: bool = False
    head: regex.Pattern[str]
    tags: Tags | None = None
    held: ToolFormat | None = None
    channels: bool = False
    close: str = ""
    between: str = ""
    frame: tuple[str, str, str]
    outer: tuple[str, str, str]
    signs: tuple[str, ...] = ()

    def written(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """The text of calls; empty without any."""
        (first, between, last), (before, middle, after) = self.outer, self.frame
        given = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
        texts = [f"{before}{name}{middle}{json.dumps(one, ensure_ascii=False)}{after}" for name, one in given]
        if self.tags is PYTHON:
            texts = [f"{name}({_keywords(one)})" for name, one in given]
        return f"{first}{between.join(texts)}{last}" if calls else ""

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
    mark="<tool_call>", head=regex.compile(_HEAD), close="</tool_call>", outer=("", "\n", ""),
    frame=('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>"), signs=("<tool_call>", "</tool_call>"),
)  # fmt: skip
_TAGGED: Final = replace(_HERMES, tags=QWEN, held=_HERMES, head=regex.compile(r"\s*<function=(?P<bare>[^>\s]+)>"))
_GLM: Final = replace(
    _HERMES, tags=GLM, held=_HERMES, close="",
    head=regex.compile(r"\s*+(?P<bare>[^\s<]++)\s*+(?=<(?:arg_key>|/tool_call>))"),
)  # fmt: skip
_LLAMA: Final = ToolFormat(
    mark="<|python_tag|>", unmarked=True, head=regex.compile(_HEAD), between=";", outer=("", "; ", ""),
    frame=('{"name": "', '", "parameters": ', "}"), signs=("<|python_tag|>",),
)  # fmt: skip
_LIST: Final = ToolFormat(
    mark="[TOOL_CALLS]", head=regex.compile(rf"\s*+\[?(?:{_HEAD})|\s*+{_NAMED}"), close="]", between=",",
    frame=('{"name": "', '", "arguments": ', "}"),
    outer=("[TOOL_CALLS][", ", ", "]"), signs=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
)  # fmt: skip
_GRANITE: Final = replace(
    _LIST, mark="<|tool_call|>", head=regex.compile(rf"\s*+\[?(?:{_HEAD})"),
    outer=("<|tool_call|>[", ", ", "]"), signs=("<|tool_call|>",),
)  # fmt: skip
_LFM2_ENDS: Final = "<|tool_call_start|>", "<|tool_call_end|>"
_LFM2: Final = replace(
    _GRANITE, mark=_LFM2_ENDS[0], close=f"]{_LFM2_ENDS[1]}", outer=(f"{_LFM2_ENDS[0]}[", ", ", f"]{_LFM2_ENDS[1]}"),
    signs=_LFM2_ENDS,
)  # fmt: skip
_PHI: Final = replace(
    _GRANITE, close="]<|/tool_call|>", outer=("<|tool_call|>[", ", ", "]<|/tool_call|>"),
    frame=('{"type": "function", "function": {"name": "', '", "arguments": ', "}}"),
    signs=("<|tool_call|>", "<|/tool_call|>"),
)  # fmt: skip
_ARGS: Final = replace(_LIST, frame=("[TOOL_CALLS]", "[ARGS]", ""), outer=("", "", ""))
_CALLS, _CALL, _SEP, _END, _ENDS = (  # DeepSeek's names have a wide bar and a block in place of a bar and a blank
    f"<{name.replace(' ', chr(0x2581)).join([chr(0xFF5C)] * 2)}>"
    for name in ("tool calls begin", "tool call begin", "tool sep", "tool call end", "tool calls end")
)
_DEEPSEEK: Final = ToolFormat(
    mark=_CALLS, head=regex.compile(rf"\s*{_CALL}(?P<bare>[^\s<]+){_SEP}(?=\{{)"), between=_END, close=_END + _ENDS,
    frame=(_CALL, _SEP, _END), outer=(_CALLS, "", _ENDS),
    signs=(_CALLS, _CALL, _SEP, _END, _ENDS),
)  # fmt: skip
_DEEPSEEK_V3: Final = replace(
    _DEEPSEEK, head=regex.compile(rf"\s*{_CALL}function{_SEP}(?P<bare>[^\s<]+)\n```json\n(?=\{{)"),
    between=f"```{_END}", close=f"```{_END}{_ENDS}", frame=(f"{_CALL}function{_SEP}", "\n```json\n", f"\n```{_END}"),
    outer=(_CALLS, "\n", _ENDS),
)  # fmt: skip
_HARMONY: Final = ToolFormat(
    mark="<|channel|>", channels=True, head=regex.compile(r"(?!)"), outer=("", "<|start|>assistant", ""),
    frame=("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", ""),  # <|call|> ends the text
    signs=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>"),
)  # fmt: skip
_GEMMA: Final = ToolFormat(
    mark="<|tool_call>", head=regex.compile(r"\s*call:(?P<bare>[^\s{<]+)(?=\{)"),
    close="<tool_call|>", frame=("<|tool_call>call:", "", "<tool_call|>"), outer=("", "", ""),
    signs=("<|tool_call>", "<tool_call|>", *GEMMA.quotes),
)  # fmt: skip


def _keywords(arguments: dict[str, Any] | str) -> str:
    """Arguments as a call in Python has them; a text that is no object, as of a call that was cut, as it is."""
    return arguments if isinstance(arguments, str) else ", ".join(f"{key}={value!r}" for key, value in arguments.items())


class Thinking(NamedTuple):
    """What is around the reasoning, and what closes it before its end."""

    begin: str
    end: str
    close: str

    @property
    def signs(self) -> list[str]:
        """Names that are special tokens of some models."""
        return re.findall(r"<[^<>]*>|\[[^\[\]]*\]", self.begin + self.end)


THINK: Final = Thinking("<think>", "</think>", "\n</think>\n\n")
_ANALYSIS: Final = Thinking(
    "<|channel|>analysis<|message|>", "<|end|>", "<|end|><|start|>assistant<|channel|>final<|message|>"
)
_THOUGHT: Final = Thinking("<|channel>thought", "<channel|>", "\n<channel|>")
_MISTRAL: Final = Thinking("[THINK]", "[/THINK]", "[/THINK]")
FORMATS: Final[Mapping[str, ToolFormat]] = {
    "hermes": _HERMES, "llama3_json": _LLAMA, "mistral": _LIST, "qwen3_coder": _TAGGED, "glm45": _GLM,
    "deepseek_v3": _DEEPSEEK_V3, "deepseek_v31": _DEEPSEEK, "harmony": _HARMONY,
    "gemma4": replace(_GEMMA, tags=GEMMA, held=_GEMMA, close=""), "granite": _GRANITE,
    "phi4_mini": _PHI,
    "lfm2": replace(
        _LFM2, tags=PYTHON, held=_LFM2, head=regex.compile(r"\s*+\[?\s*+(?P<bare>[^\s()\[\]{}<]++)(?=\()"),
    ),
}  # fmt: skip
"""By the names of ``--tool-parser``."""


def thinking_of(form: ToolFormat | None, holds: Callable[[str], bool]) -> Thinking | None:
    """The marks of the reasoning that a chat template knows, by the format of its calls and by what it holds."""
    if form is not None and form.channels:
        return _ANALYSIS
    return next((one for one in (THINK, _THOUGHT, _MISTRAL) if any(map(holds, one[:2]))), None)


def format_of(wanted: str, holds: Callable[[str], bool], tokens: Container[str] = ()) -> ToolFormat | None:
    """The wanted format; with ``auto`` the one that the chat template writes, by what it holds, or if that shows none by the
    tokens that are found whole. None if it is not known."""
    if wanted == "auto":
        shown = (name for found in (holds, tokens.__contains__) for sign, name in _SIGNS.items() if found(sign))
        wanted = next(shown, "")
        wanted = "deepseek_v3" if wanted == "deepseek_v31" and holds("```json") else wanted
    if wanted == "mistral" and holds("[ARGS]"):
        return _ARGS
    return FORMATS.get(wanted)


_SIGNS: Final = {  # what a chat template holds, and its format
    "[TOOL_CALLS]": "mistral",
    "<parameter=": "qwen3_coder",
    "<function=": "",
    "<arg_key>": "glm45",
    _SEP: "deepseek_v31",
    "<|channel|>": "harmony",
    "<|tool_call>": "gemma4",
    "<|/tool|>": "phi4_mini",
    "<|tool_call|>": "granite",
    _LFM2_ENDS[0]: "lfm2",
    "<tool_call>": "hermes",
    "<|python_tag|>": "llama3_json",
    "Environment: ipython": "llama3_json",
}
