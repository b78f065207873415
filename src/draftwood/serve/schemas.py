"""The fields of requests. Every field is honoured exactly, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from draftwood.core.checks import shown
from draftwood.core.settings import MAX_SEED
from draftwood.core.token_logprobs import MAX_TOP
from draftwood.serve.errors import ApiError, bad
from draftwood.serve.refusals import without_refused

MAX_CHOICES = 128
MAX_STOPS = 64
_MOST = 2**31 - 1  # tokens; no context is longer

Count = Annotated[int, Field(ge=1, le=_MOST)]
Token = Annotated[int, Field(ge=0, le=_MOST)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Top = Annotated[int, Field(ge=0, le=MAX_TOP)]
Text = Annotated[str, Field(min_length=1)]
Tokens = Annotated[list[Token], Field(fail_fast=True)]  # of a million wrong values one is enough


class Body(BaseModel):
    """A request in which unknown fields and values of other types are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class StreamOptions(Body):
    """What a stream contains."""

    include_usage: bool | None = None


class Speculative(Body):
    """The drafting that a request wants. All texts share the server's, so other values are refused by name.

    ``nodes`` are the most of a tree.
    """

    method: str | None = None
    verifier: str | None = None
    shape: str | None = None
    nodes: Count | None = None


class TextPart(Body):
    """A part of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(Body):
    """A message. What clients send back of an answer may stand in it while it is null."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]
    refusal: None = None
    annotations: list[Any] | None = Field(default=None, max_length=0)
    audio: None = None
    function_call: None = None
    tool_calls: None = None

    @property
    def text(self) -> str:
        """The content without its parts."""
        return self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)


Messages = Annotated[list[ChatMessage], Field(fail_fast=True)]


class JsonSchema(Body):
    """A schema by which an answer is written."""

    name: str
    description: str | None = None
    given: dict[str, Any] | bool = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Settings(Body):
    """Fields of chats and completions."""

    model: str
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=_MOST)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    stop: Text | Annotated[list[Text], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    stop_token_ids: Annotated[Tokens, Field(max_length=MAX_STOPS)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=_MOST)] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    regex: Text | None = None
    grammar: Text | None = None
    speculative: bool | Speculative | None = None
    trace: bool | None = None
    user: str | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return bool(self.stream_options is not None and self.stream_options.include_usage)


class ChatBody(Settings):
    """``/v1/chat/completions``."""

    messages: Messages
    max_completion_tokens: Count | None = None
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

    @property
    def top(self) -> int | None:
        """As for chats."""
        return self.logprobs


class TokenizeBody(Body):
    """``/tokenize``: a prompt or the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True


class DetokenizeBody(Body):
    """``/detokenize``."""

    model: str | None = None
    tokens: Tokens


B = TypeVar("B", bound=Body)


def checked(kind: type[B], body: Mapping[str, Any]) -> B:
    """A body as an object.

    Raises:
        ApiError: names the first field that is missing, unknown or refused.
    """
    given = without_refused(body) if issubclass(kind, Settings) else dict(body)
    try:
        found = kind.model_validate(given)
    except ValidationError as error:
        raise _named(error, kind) from None
    if isinstance(found, Settings):
        _check_together(found)
    return found


def _named(error: ValidationError, kind: type[Body]) -> ApiError:
    first = error.errors(include_url=False, include_context=False)[0]
    where = [part for part in first["loc"] if isinstance(part, int) or str(part).isidentifier()]
    field = ".".join(str(part) for part in where[: 3 if len(where) > 1 and isinstance(where[1], int) else 1]) or None
    if first["type"] == "missing":
        return bad(f"{field} is missing: send it", param=field, code="missing_required_parameter")
    if first["type"] == "extra_forbidden":
        name = str(first["loc"][-1])
        path = ".".join(map(str, first["loc"]))
        return bad(f"the server has no field {shown(name)}: leave it out", param=path, code="unknown_parameter")
    reason = first["msg"][:1].lower() + first["msg"][1:]
    return bad(f"{field} is {shown(first['input'])}: {reason}", param=field, code="invalid_value")


def _check_together(body: Settings) -> None:
    if body.stream_options is not None and not body.stream:
        raise bad("stream_options is for streams, and stream is false: leave it out", param="stream_options")
    if isinstance(body, ChatBody) and None not in (body.max_tokens, body.max_completion_tokens):
        raise bad("both max_tokens and max_completion_tokens came: send one of them", param="max_tokens")
    if isinstance(body, ChatBody) and body.top_logprobs is not None and not body.logprobs:
        raise bad("top_logprobs belongs to logprobs, which is not true: send both, or neither", param="top_logprobs")
    _check_form(body)
    if body.min_tokens and body.stops:
        raise bad("min_tokens and stop exclude each other: a stop text may come at any token; send one", param="min_tokens")


def _check_form(body: Settings) -> None:
    form = body.response_format
    given = [name for name in ("regex", "grammar") if getattr(body, name) is not None]
    if form is not None and form.type != "text":
        given.insert(0, "response_format")
    if len(given) > 1:
        raise bad(f"both {given[0]} and {given[1]} came, but a text follows one grammar: send one of them", param=given[1])
    if form is not None and (form.type == "json_schema") != (form.json_schema is not None):
        raise bad("response_format.json_schema belongs to type json_schema: send both, or neither", param="response_format")
