"""The bodies of requests. Every field is honoured exactly, or refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from draftwood.serve.fields import MOST, Body, Count, Length, LogitBias, Penalty, Seed, Text, Tokens, Top
from draftwood.serve.messages import Messages, TemplateFields

MAX_CHOICES = 128
MAX_STOPS = 64


class StreamOptions(Body):
    """What a stream contains."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Literal[False] | None = None


class Speculative(Body):
    """The drafting that a request wants. All texts share the server's, so other values are refused by name.

    ``nodes`` are the most of a tree.
    """

    method: str | None = None
    verifier: str | None = None
    shape: str | None = None
    nodes: Count | None = None


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
    """The body of a request; without a name it is for the server's model."""

    model: str | None = None


class Settings(RouteBody):
    """Fields of chats and completions."""

    max_tokens: Length = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MOST)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    seed: Seed = None
    stop: Text | Annotated[list[Text], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    stop_token_ids: Annotated[Tokens, Field(max_length=MAX_STOPS)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MOST)] | None = None
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
    trace: bool | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class ChatBody(Settings, TemplateFields):
    """``/v1/chat/completions``."""

    messages: Messages
    max_completion_tokens: Length = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None

    @property
    def top(self) -> int | None:
        """How many of the likeliest tokens each log-probability comes with; None without log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionBody(Settings):
    """``/v1/completions``."""

    prompt: str | Annotated[list[str], Field(fail_fast=True)] | Tokens | Annotated[list[Tokens], Field(fail_fast=True)]
    logprobs: Top | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None

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
