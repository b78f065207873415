"""What the fields of requests are made of."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from draftwood.core.checks import short_repr
from draftwood.core.settings import MAX_SEED
from draftwood.core.token_logprobs import MAX_TOP

MOST = 2**31 - 1  # tokens; no context is longer

Count = Annotated[int, Field(ge=1, le=MOST)]
Token = Annotated[int, Field(ge=0, le=MOST)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Top = Annotated[int, Field(ge=0, le=MAX_TOP)]
Text = Annotated[str, Field(min_length=1)]
Tokens = Annotated[list[Token], Field(fail_fast=True)]  # of a million wrong values one is enough


def _unless_minus_one(value: int | None) -> int | None:
    return None if value == -1 else value


Length = Annotated[Annotated[int, Field(ge=-1, le=MOST)] | None, AfterValidator(_unless_minus_one)]
"""Tokens of a text. -1 is none."""
Seed = Annotated[Annotated[int, Field(ge=-1, le=MAX_SEED)] | None, AfterValidator(_unless_minus_one)]
"""-1 is none."""

_MOST_BIAS = 100
_Pairs: TypeAlias = Annotated[list[list[int | float | bool]], Field(fail_fast=True)]


def _mapped(value: dict[str, float] | list[list[int | float | bool]] | None) -> dict[str, float] | None:
    """Pairs as a mapping, where false forbids a token.

    Raises:
        ValueError: a pair that is none, or a token given twice.
    """
    if not isinstance(value, list):
        return value
    found: dict[str, float] = {}
    for pair in value:
        token, number = pair if len(pair) == 2 else (None, True)
        if not isinstance(token, int) or isinstance(token, bool) or number is True or abs(number) > _MOST_BIAS:
            raise ValueError(
                f"{short_repr(pair)} is no pair of a token id and a number from -{_MOST_BIAS} to {_MOST_BIAS}, or false, "
                "which forbids the token"
            )
        if str(token) in found:
            raise ValueError(f"token {token} came twice: send it once")
        found[str(token)] = -inf if number is False else number
    return found


LogitBias = Annotated[
    dict[str, Annotated[float, Field(ge=-_MOST_BIAS, le=_MOST_BIAS)]] | _Pairs | None, AfterValidator(_mapped)
]
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
