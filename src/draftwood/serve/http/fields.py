"""What the fields of requests are made of, and those of other programs' interfaces that this server does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias, final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticKnownError

from draftwood.core.checks import short_repr
from draftwood.core.settings import MAX_SEED
from draftwood.core.token_logprobs import MAX_TOP
from draftwood.serve.http.errors import ApiError, bad

MOST = 2**31 - 1  # tokens; no context is longer

NO_LIMIT = -1
"""Tokens of a text: all that fit."""


def _whole(value: Any) -> Any:
    """A number, or a list of them, in which those without a fraction are integers: some clients write all numbers as 2.0."""
    if isinstance(value, list):
        return [*map(_whole, value)] if float in set(map(type, value)) else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
Count = Annotated[int, Field(ge=1, le=MOST), WHOLE]
Token = Annotated[int, Field(ge=0, le=MOST)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Top = Annotated[int, Field(ge=0, le=MAX_TOP), WHOLE]
Text = Annotated[str, Field(min_length=1)]
Tokens = Annotated[list[Token], Field(fail_fast=True), WHOLE]  # of a million wrong values one is enough


def _unless_minus_one(value: int | None) -> int | None:
    return None if value == -1 else value


Length = Annotated[int, Field(ge=NO_LIMIT, le=MOST), WHOLE] | None
"""Tokens of a text."""
Seed = Annotated[Annotated[int, Field(ge=-1, le=MAX_SEED), WHOLE] | None, AfterValidator(_unless_minus_one)]
"""-1 is none."""


def a_flag(value: Any) -> Any:
    """The value; refused if it is no flag. 0 is equal to False, and would be taken for it."""
    if not isinstance(value, bool | None):
        raise PydanticKnownError("bool_type")
    return value


MOST_BIAS = 100
_Pairs: TypeAlias = Annotated[list[Annotated[list[int | float | bool], WHOLE]], Field(fail_fast=True)]
LogitBias = dict[str, Annotated[float, Field(ge=-MOST_BIAS, le=MOST_BIAS)]] | _Pairs | None
"""Numbers by token id: as an object, or as pairs."""


class Body(BaseModel):
    """A request, or a part of one. Values of other types are refused. Fields that it does not have are kept apart."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True)

    def unknown(self) -> Iterator[str]:
        """The paths of all fields that the request and its parts do not have."""
        yield from self.model_extra or ()
        for name in self.model_fields_set & type(self).model_fields.keys():
            value: Any = getattr(self, name)
            for place, inner in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(inner, Body):
                    where = name if place is None else f"{name}.{place}"
                    yield from (f"{where}.{path}" for path in inner.unknown())


@final
@dataclass(frozen=True)
class OtherField:
    """A field that the server does not have.

    Attributes:
        why: the reason, after "but" in the error.
        neutral: values that change nothing, as null does; None if no value changes a text.
    """

    why: str = ""
    neutral: tuple[Any, ...] | None = None

    def takes(self, value: Any) -> bool:
        """Whether a value changes nothing."""
        return value is None or self.neutral is None or any(_same(value, one) for one in self.neutral)


_TAKEN: Final = (  # who asks, notes, what is kept, where and how soon a text is written
    "user", "safety_identifier", "metadata", "prompt_cache_key", "prompt_cache_retention", "cache_prompt", "cache_salt",
    "id_slot", "service_tier", "priority", "request_id", "rid", "verbosity",
)  # fmt: skip
_REFUSED: Final[Mapping[str, Mapping[str, tuple[Any, ...]]]] = {  # by the reason, with the values that change nothing
    "its name is tools now: send that": {"functions": ([],)},
    "its name is tool_choice now: send that": {"function_call": ("none", "auto")},
    "this server searches nothing": {"web_search_options": ()},
    "this server stores nothing": {"store": (False,)},
    "the models of this server read and write text": {
        "audio": (), "modalities": (["text"],), "mm_processor_kwargs": ({},),
    },
    "the models of this server read messages only: write documents into one": {"documents": ([],)},
    "prompts are read as a whole: shorten it": {"truncate_prompt_tokens": ()},
    "every text is drawn once": {"best_of": (1,), "use_beam_search": (False,)},
    "it belongs to beam search": {"length_penalty": (1,), "early_stopping": (False,)},
    "temperature 0 is what never samples: send it": {"do_sample": (True,)},
    "this server does not sample so": {
        "typical_p": (1,), "tfs_z": (1,), "top_a": (0,), "top_n_sigma": (-1,), "mirostat": (0,), "xtc_probability": (0,),
        "dry_multiplier": (0,), "dynatemp_range": (0,), "samplers": (), "logits_processors": ([],),
    },
    "a penalty here counts the whole text: send repetition_penalty": {"repeat_penalty": (1,)},
    "its name here is max_tokens: send that": {"n_predict": (-1,), "max_new_tokens": (-1,)},
    "tokens are forbidden by logit_bias: send that": {"bad_words": ([],), "allowed_token_ids": ()},
    "a text follows response_format, regex or grammar: send one of them": {"ebnf": ()},
    "the model's own chat template is used": {"chat_template": ()},
    "values for the chat template stand in chat_template_kwargs: send it there": {
        "enable_thinking": (), "thinking": (), "reasoning": (),
    },
    "texts are written without special tokens": {
        "skip_special_tokens": (True,), "spaces_between_special_tokens": (True, False),
    },
    "stop texts are cut off": {"include_stop_str_in_output": (False,), "no_stop_trim": (False,)},
    "/v1/completions scores prompts with echo and logprobs: send them there": {"prompt_logprobs": ()},
}  # fmt: skip

OTHER_FIELDS: Final[Mapping[str, OtherField]] = {
    **dict.fromkeys(_TAKEN, OtherField()),
    **{name: OtherField(why, neutral) for why, fields in _REFUSED.items() for name, neutral in fields.items()},
}


def without_others(body: Mapping[str, Any], others: Mapping[str, OtherField] = OTHER_FIELDS) -> dict[str, Any]:
    """The body without fields that the server does not have; raises an ApiError if the value of one changes something."""
    for name, value in body.items():
        if name in others and not others[name].takes(value):
            raise unsupported(name, value, others[name].why)
    return {name: value for name, value in body.items() if name not in others}


def unsupported(name: str, value: Any, why: str) -> ApiError:
    """A refused field, or a part of it. A reason with a colon says what to send."""
    advice = "" if ":" in why else "; leave it out"
    return bad(f"{name} is {short_repr(value)}, but {why}{advice}", param=name, code="unsupported_parameter")


def _same(value: Any, one: Any) -> bool:
    """Whether two values are the same JSON: 1 is 1.0, and not true."""
    return isinstance(value, bool) == isinstance(one, bool) and bool(value == one)
