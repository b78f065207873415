"""The bodies of requests. Every field is honoured exactly, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from draftwood.serve.http.errors import bad
from draftwood.serve.http.fields import (
    MOST,
    WHOLE,
    Body,
    Count,
    Length,
    LogitBias,
    Penalty,
    Seed,
    Text,
    Token,
    Tokens,
    Top,
    a_flag,
)
from draftwood.serve.openai.tools import ToolChoice, Tools

MAX_CHOICES = 128
MAX_STOPS = 64


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
        function = {"name": self.function.name, "arguments": arguments}
        return {**self.model_dump(include={"id", "type"}, exclude_none=True), "function": function}


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


class StreamOptions(Body):
    """What a stream contains."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Annotated[Literal[False], BeforeValidator(a_flag)] | None = None


class Speculative(Body):
    """The drafting that a request wants: the server's own method, or none; and the most nodes of a tree."""

    method: str | None = None
    nodes: Count | None = None


class Prediction(Body):
    """A text that the answer may repeat. Drafts are taken from it."""

    type: Literal["content"]
    content: str | Annotated[list[Part], Field(fail_fast=True)]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text or "" for part in self.content)


class Strict(Body):
    """A part in which every field changes the text, so that unknown ones are always refused."""

    model_config = ConfigDict(extra="forbid")


class JsonSchema(Strict):
    """A schema by which an answer is written."""

    name: str
    description: str | None = None
    given: dict[str, Any] | bool = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @property
    def schema_given(self) -> dict[str, Any] | bool | None:
        """The schema of the answer; None for a text."""
        if self.type == "text":
            return None
        return {"type": "object"} if self.json_schema is None else self.json_schema.given


Alternatives = Annotated[list[Text], Field(min_length=1, max_length=MAX_CHOICES * 8, fail_fast=True)]


class StructuredOutputs(Strict):
    """The form of a text in vLLM's words."""

    given: dict[str, Any] | str | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: Text | None = None
    choice: Alternatives | None = None
    grammar: Text | None = None


class RouteBody(Body):
    """The body of a request; without a name it is for the server's first model."""

    model: str | None = None


class Settings(RouteBody):
    """Fields of chats and completions."""

    max_tokens: Length = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MOST), WHOLE] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES), WHOLE] | None = None
    seed: Seed = None
    stop: Text | Annotated[list[Text], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    stop_token_ids: Annotated[list[Token], Field(max_length=MAX_STOPS, fail_fast=True), WHOLE] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MOST), WHOLE] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    regex: Text | None = None
    grammar: Text | None = None
    json_schema: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: Text | None = None
    guided_choice: Alternatives | None = None
    guided_grammar: Text | None = None
    speculative: bool | Speculative | None = None
    prediction: Prediction | None = None
    trace: bool | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def longest(self) -> int | None:
        """The wanted tokens of a text; None if the request says nothing of them."""
        return self.max_tokens


class ChatBody(Settings, TemplateFields):
    """``/v1/chat/completions``."""

    messages: Messages
    max_completion_tokens: Length = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None
    thinking_token_budget: Length = None

    @property
    def longest(self) -> int | None:
        return max((one for one in (self.max_tokens, self.max_completion_tokens) if one is not None), default=None)

    @property
    def top(self) -> int | None:
        """How many of the likeliest tokens each log-probability comes with; None without log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionBody(Settings):
    """``/v1/completions``."""

    prompt: str | Annotated[list[str], Field(fail_fast=True)] | Tokens | Annotated[list[Tokens], Field(fail_fast=True)]
    logprobs: Top | None = None
    suffix: str | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each of the prompts; raises an ApiError for an empty list."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise bad("prompt is an empty list: send a text, or token ids", param="prompt")
        if all(isinstance(one, int) for one in self.prompt):
            return [self.prompt]  # type: ignore[list-item]
        return list(self.prompt)  # type: ignore[arg-type]

    @property
    def top(self) -> int | None:
        """As for chats."""
        return self.logprobs


class TokenizeBody(RouteBody, TemplateFields):
    """``/tokenize``: a prompt or the messages of a chat."""

    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True


class DetokenizeBody(RouteBody):
    """``/detokenize``."""

    tokens: Tokens
