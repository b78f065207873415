"""What the fields of requests are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticKnownError

from draftwood.core.settings import MAX_SEED
from draftwood.core.token_logprobs import MAX_TOP

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
