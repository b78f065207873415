"""How the tokens of a request are drawn, and the grammar that its text follows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from transformers import MinNewTokensLengthLogitsProcessor

from draftwood.api import Pair
from draftwood.core.checks import short_repr
from draftwood.core.limits import Limits
from draftwood.engine.output import ends_of
from draftwood.grammar.grammar import Grammar, guidance
from draftwood.sampling.processors import ByPrompt
from draftwood.sampling.settings import Sampling
from draftwood.serve.errors import bad
from draftwood.serve.schemas import Settings

_DRAWN: Final = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_NEUTRAL: Final = {"top_p": 1, "min_p": 0, "top_k": 0}
_OWN: Final = ("json_schema", "regex", "grammar", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
_Make: TypeAlias = Callable[[Any], Grammar]


def sampling_of(pair: Pair, body: Settings, limits: Limits, grammar: Grammar | None) -> Sampling:
    """The target's own sampling with the given fields.

    Raises:
        ApiError: a bias of an unknown token.
        ConfigError: truncation without a temperature, where the target does not sample by itself.
    """
    given: dict[str, Any] = {name: value for name in _DRAWN if (value := getattr(body, name)) is not None}
    if body.top_k is not None:
        given["top_k"] = max(0, body.top_k)  # -1 keeps all, as 0 does
    if "temperature" not in given and pair.sampling.greedy:
        given = {name: value for name, value in given.items() if value != _NEUTRAL.get(name)}
    if grammar is not None:
        given["grammar"] = grammar
    if isinstance(body.logit_bias, dict):  # as pairs are too by now
        given["logit_bias"] = _bias(body.logit_bias, pair.target.vocab_size)
    if body.min_tokens and (ends := sorted(ends_of(limits, frozenset(pair.eos)))):
        least, device = body.min_tokens, str(pair.target.device)
        given["processors"] = [
            ByPrompt(lambda length: MinNewTokensLengthLogitsProcessor(length, least, ends, device=device))
        ]
    return pair.own_sampling(given)


def _bias(given: Mapping[str, float], vocab: int) -> dict[int, float]:
    found = {}
    for token, value in given.items():
        known = token.isascii() and token.isdecimal() and len(token) < 12 and int(token) < vocab
        if not known or token != str(int(token)):  # such as "05", which would be a second value of token 5
            raise bad(
                f"logit_bias holds {short_repr(token)}, but the model knows tokens 0 to {vocab - 1}: leave it out",
                param="logit_bias",
            )
        found[int(token)] = value
    return found


def grammar_of(body: Settings, calls: Grammar | None = None) -> Grammar | None:
    """The grammar that a text follows, None for any text. That of tool calls also holds the form of an answer.

    Raises:
        ApiError: two grammars; names both. The same one in two fields counts once.
        ConfigError: a grammar that cannot be used.
    """
    given = _given(body)
    if calls is not None:
        given = {"tool_choice": (_same, calls)} | {name: made for name, made in given.items() if name != "response_format"}
    if not given:
        return None
    (first, made), *others = given.items()
    if second := next((name for name, other in others if repr(other) != repr(made)), None):  # 1 is not true
        raise bad(f"both {first} and {second} came, but a text follows one grammar: send one of them", param=second)
    make, value = made
    return make(value)


def _given(body: Settings) -> dict[str, tuple[_Make, Any]]:
    """What makes the grammar of each field that brings one, and its value."""
    form, outputs = body.response_format, body.structured_outputs
    given = {"response_format": None if form is None else form.schema_given}
    given |= {name: getattr(body, name) for name in _OWN}
    for name in ("json", "json_object", "regex", "choice", "grammar"):
        value = getattr(outputs, "given" if name == "json" else name, None)
        given[f"structured_outputs.{name}"] = None if value is False else value
    return {name: (_FORMS[name.rpartition(".")[2]], value) for name, value in given.items() if value is not None}


def _same(grammar: Grammar) -> Grammar:
    return grammar


def _schema(schema: dict[str, Any] | bool | str) -> Grammar:
    return Grammar.json_schema(schema if isinstance(schema, str) else json.dumps(schema))


def _choice(texts: Sequence[str]) -> Grammar:
    return Grammar.lark("start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts))


def _lark(text: str) -> Grammar:
    """A grammar in the syntax of Lark, or in that of llama.cpp (GBNF)."""
    guidance()
    from llguidance import gbnf_to_lark

    if gbnf_to_lark.is_lark_syntax(text) or "::=" not in text:
        return Grammar.lark(text)
    try:
        return Grammar.lark(gbnf_to_lark.gbnf_to_lark(text))
    except (gbnf_to_lark.GbnfToLarkError, RecursionError) as error:
        raise bad(
            f"the grammar {short_repr(text)} is no GBNF: {error}. Correct it, or send Lark", param="grammar"
        ) from error


_FORMS: Final[Mapping[str, _Make]] = {  # by fields
    "response_format": _schema, "json_schema": _schema, "json": _schema, "guided_json": _schema,
    "json_object": lambda _: Grammar.json_object(), "regex": Grammar.regex, "guided_regex": Grammar.regex,
    "choice": _choice, "guided_choice": _choice, "grammar": _lark, "guided_grammar": _lark,
}  # fmt: skip
