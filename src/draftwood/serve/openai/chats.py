"""Chats: in the words of the model's chat template, and back from its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import Any, final

from torch import Tensor

from draftwood.api import Pair
from draftwood.core.checks import short_repr
from draftwood.core.errors import ConfigError
from draftwood.engine.messages import checked
from draftwood.grammar.grammar import Grammar
from draftwood.sampling.processors import Stateless
from draftwood.sampling.settings import Sampling
from draftwood.serve.http.errors import bad, refused
from draftwood.serve.http.settings import ServeOptions
from draftwood.serve.openai.formats import FORMATS, THINK, Thinking, ToolFormat, format_of, thinking_of
from draftwood.serve.openai.histories import as_read, in_channels, with_responses, written_out
from draftwood.serve.openai.reading import Reading
from draftwood.serve.openai.schemas import ChatBody, ChatMessage, TemplateFields
from draftwood.serve.openai.tools import AllowedTools, NamedTool, Tool, grammar_of_calls, held


@final
class Chats:
    """Writes chats for a model, and reads its answers; raises a ConfigError for a format of calls that it does not have."""

    def __init__(self, pair: Pair, options: ServeOptions) -> None:
        self._pair, self._options = pair, options
        if options.tool_parser not in ("auto", "hermes") and not self._reads_tools:
            raise ConfigError(
                f"--tool-parser is {options.tool_parser}, but the target's chat template has no tools, so that calls are in "
                "the format of Hermes: leave it out"
            )

    @property
    def _reads_tools(self) -> bool:
        """Whether the chat template writes tools; else a text of the server says how to call."""
        return self._pair.template.shows_tools != "text"

    @cached_property
    def _special(self) -> dict[str, int]:
        """The ids of special tokens by name."""
        added = getattr(self._pair.tokenizer, "added_tokens_decoder", {})
        return {entry.content: token for token, entry in added.items() if entry.special}

    @cached_property
    def _calls(self) -> ToolFormat | None:
        if not self._reads_tools:
            return FORMATS["hermes"]
        added = getattr(self._pair.tokenizer, "added_tokens_decoder", {}).values()
        return format_of(self._options.tool_parser, self._pair.template.reads, {entry.content for entry in added})

    @property
    def _channels(self) -> bool:
        return self._calls is not None and self._calls.channels

    def prompt(self, messages: Sequence[ChatMessage], body: TemplateFields) -> list[int]:
        """The token ids of a chat; raises an ApiError for what cannot be honoured."""
        tools, continues = self._tools(body), bool(body.continue_final_message)
        try:
            return self._pair.template.encode(
                self._messages(messages, tools, continues=continues),
                _values(body),
                tools=[tool.to_template(described=self._channels) for tool in tools] if self._reads_tools else (),
                continues=continues,
                special_tokens=self._pair.special_tokens_in_content,
            )
        except ConfigError as error:
            raise refused(error, "messages") from error

    def grammar(self, body: ChatBody, remarks: list[str]) -> Grammar | None:
        """The grammar for tools, with the schema of answers; None if none is needed. Raises as :func:`grammar_of_calls`.

        ``remarks`` takes what the schemas have and no grammar holds.
        """
        tools, choice, form = self._tools(body), body.tool_choice, body.response_format
        mode = choice.allowed_tools.mode if isinstance(choice, AllowedTools) else choice
        must, schema = mode not in (None, "auto"), None if form is None else form.schema_given
        if not tools or (schema is None and not must):
            return None
        assert self._calls is not None  # else there are no tools
        named = choice.function.name if isinstance(choice, NamedTool) else None
        functions = [tool.function for tool in tools if named in (None, tool.function.name)]
        schemas = {function.name: function.form(remarks) for function in functions}
        answer = None if must else held("response_format", schema, remarks)
        many = named is None and body.parallel_tool_calls is not False and not self._channels  # a call ends such a text
        return grammar_of_calls(self._calls, schemas, self._special, many=many, answer=answer)

    def reading(self, body: ChatBody, prompt: Sequence[int], *, held: bool, whole: bool) -> Reading:
        """How the answers to a chat are read; ``held`` by a grammar, and with ``whole`` calls."""
        tools = self._tools(body)
        form = self._calls if tools or self._channels else None
        form = form.held or form if held and form is not None else form
        thinks, marks = None, thinking_of(self._calls, self._pair.template.reads)
        if self._options.reasoning_parser == "auto" and not held and marks is not None:
            thinks = self._begins_thinking(body, prompt, marks)
        signs = {*(() if form is None else form.signs), *(() if thinks is None or marks is None else marks.signs)}
        return Reading(
            thinks=thinks,
            thinking=marks or THINK,
            continues=bool(body.continue_final_message),
            form=form,
            schemas={tool.function.name: tool.function.parameters or {} for tool in tools},
            one=body.parallel_tool_calls is False,
            whole=whole,
            shown=frozenset(self._special[sign] for sign in signs if sign in self._special),
        )

    def budgeted(self, budget: int, prompt: int, sampling: Sampling, reading: Reading) -> tuple[Sampling, list[str]]:
        """The sampling of answers that may think, whose thoughts are closed after so many tokens; or a remark on why not."""
        if self._options.thinking_budget != "force":
            return sampling, [
                f"the thought may have more than {budget} tokens: --thinking-budget force would close it there"
            ]
        tokenizer, thinking = self._pair.tokenizer, reading.thinking

        def thinks(written: list[int]) -> bool:
            text = str(tokenizer.decode(written))
            return (bool(reading.thinks) or text.lstrip().startswith(thinking.begin)) and thinking.end not in text

        close, begin = (
            list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in (thinking.close, thinking.begin)
        )
        budget += 0 if reading.thinks else len(begin)

        def closing(ids: Tensor, scores: Tensor) -> Tensor:
            at = ids.shape[1] - prompt - budget
            if not 0 <= at < len(close):
                return scores
            found = scores.clone()
            for row, written in enumerate(ids[:, prompt:].tolist()):
                if written[budget:] == close[:at] and thinks(written[:budget]):
                    found[row] = -inf
                    found[row, close[at]] = 0
            return found

        return replace(sampling, processors=[*(sampling.processors or ()), Stateless(closing)]), []

    def _begins_thinking(self, body: ChatBody, prompt: Sequence[int], marks: Thinking) -> bool | None:
        """Whether an answer begins within the reasoning; None if it begins after it."""
        if self._channels:
            return None if body.continue_final_message else False
        end = str(self._pair.tokenizer.decode(list(prompt)))
        end = end[max(0, end.rfind(marks.begin)) :]
        if not body.continue_final_message:
            return end.rstrip().endswith(marks.begin)
        return True if marks.begin in end and marks.end not in end else None

    def _messages(self, messages: Sequence[ChatMessage], tools: Sequence[Tool], *, continues: bool) -> list[dict[str, Any]]:
        given = checked([message.to_template() for message in messages], continues=continues)
        if self._channels:
            return in_channels(given)
        wanted = tools or any(one["role"] == "tool" or "tool_calls" in one for one in given)
        template = self._pair.template
        if template.reads("tool_responses") and not template.reads("tool_call_id"):
            return with_responses(given)
        given = as_read(given, template.reads)
        written = template.reads("tool_calls") and (self._reads_tools or not tools)
        if not wanted or self._options.no_tools or written or self._calls is None:
            return given
        return written_out(given, [tool.to_template() for tool in tools], self._calls, template.shows_tools)

    def _tools(self, body: TemplateFields) -> list[Tool]:
        """The tools that the model is shown."""
        choice, tools = body.tool_choice, list(body.tools or ())
        if choice == "none":
            tools = []
        elif isinstance(choice, AllowedTools):
            tools = [tool for tool in tools if tool.function.name in choice.names]
        if tools and (self._options.no_tools or self._calls is None):
            why = (
                "the server does not know how this model writes tool calls: start it with --tool-parser, or leave tools out"
            )
            if self._options.no_tools:
                why = "this server was started with --no-tools: leave tools out, or send tool_choice none"
            raise bad(why, param="tools", code="unsupported_parameter")
        return tools


def _values(body: TemplateFields) -> dict[str, Any]:
    values, effort = dict(body.chat_template_kwargs or {}), body.reasoning_effort
    if effort is not None and values.setdefault("reasoning_effort", effort) != effort:
        raise bad(
            f"reasoning_effort is {short_repr(effort)}, and another one in chat_template_kwargs: send one of them",
            param="reasoning_effort",
        )
    return values
