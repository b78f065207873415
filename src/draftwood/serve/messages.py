"""The messages of a chat, and what else its template reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import Field

from draftwood.serve.fields import Body
from draftwood.serve.tools import ToolChoice, Tools


class Part(Body):
    """A part of a content. The model reads texts; what else comes is refused for its type."""

    type: str
    text: str | None = None

    def unknown(self) -> Iterator[str]:
        return super().unknown() if self.type == "text" else iter(())


class CalledFunction(Body):
    """The function of a tool call; its arguments are JSON."""

    name: str
    arguments: str | dict[str, Any] = ""


class ToolCall(Body):
    """A tool call in the history of a chat."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    def to_template(self) -> dict[str, Any]:
        """As templates read it: with the arguments as an object, where they are one."""
        arguments: Any = self.function.arguments
        if isinstance(arguments, str):
            with suppress(ValueError, RecursionError):
                found = json.loads(arguments)
                arguments = found if isinstance(found, dict) else arguments
        named = {} if self.id is None else {"id": self.id}
        return {**named, "type": self.type, "function": {"name": self.function.name, "arguments": arguments}}


class ChatMessage(Body):
    """A message. What clients send back of an answer may stand in it while it is null or empty."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[Part], Field(fail_fast=True)] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    refusal: None = None
    annotations: list[Any] | None = Field(default=None, max_length=0)
    audio: None = None
    function_call: None = None

    def to_template(self) -> dict[str, Any]:
        """The message for the chat template, with the fields that say something."""
        found = self.model_dump(
            include={"role", "content", "name", "reasoning_content", "reasoning", "tool_call_id"}, exclude_none=True
        )
        return {**found, "tool_calls": [call.to_template() for call in self.tool_calls]} if self.tool_calls else found


Messages = Annotated[list[ChatMessage], Field(fail_fast=True)]


class TemplateFields(Body):
    """How the chat template writes messages."""

    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
