"""How the tokens of a request are drawn and drafted, and the grammar that its text follows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Final, TypeAlias

from transformers import MinNewTokensLengthLogitsProcessor

from draftwood.api import Pair
from draftwood.core.checks import short_repr
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.core.methods import METHODS
from draftwood.core.settings import Method
from draftwood.engine.pipeline import PLAIN, ends_of
from draftwood.grammar.grammar import Grammar, guidance
from draftwood.sampling.processors import ByPrompt
from draftwood.sampling.settings import Sampling
from draftwood.serve.http.errors import bad, refused
from draftwood.serve.http.fields import MOST_BIAS
from draftwood.serve.openai.schemas import Settings, Speculative
from draftwood.serve.openai.tools import held

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
    if body.logit_bias is not None:
        given["logit_bias"] = _bias(body.logit_bias, pair.target.vocab_size)
    if body.min_tokens and (ends := sorted(ends_of(limits, frozenset(pair.eos)))):
        least, device = body.min_tokens, str(pair.target.device)
        given["processors"] = [
            ByPrompt(lambda length: MinNewTokensLengthLogitsProcessor(length, least, ends, device=device))
        ]
    return pair.own_sampling(given)


def _bias(given: Mapping[str, float] | Sequence[Sequence[int | float | bool]], vocab: int) -> dict[int, float]:
    """Numbers by token, of an object or of pairs; false forbids a token."""
    found: dict[int, float] = {}
    for pair in given.items() if isinstance(given, Mapping) else given:
        name, number = (str(pair[0]), pair[1]) if len(pair) == 2 else ("", True)
        known = name.isascii() and name.isdecimal() and len(name) < 12 and name == str(int(name)) and int(name) < vocab
        if not known or int(name) in found or number is True or abs(number) > MOST_BIAS:
            came = {pair[0]: pair[1]} if isinstance(given, Mapping) else pair
            raise bad(
                f"logit_bias holds {short_repr(came)}, but the model knows tokens 0 to {vocab - 1}: send each of them once, "
                f"with a number from -{MOST_BIAS} to {MOST_BIAS}, or in a list with false, which forbids it",
                param="logit_bias",
            )
        found[int(name)] = -inf if number is False else number
    return found


def grammar_of(body: Settings, remarks: list[str], calls: Grammar | None = None) -> Grammar | None:
    """The grammar that a text follows, None for any text. That of tool calls also holds the form of an answer.

    ``remarks`` takes what a schema has and no grammar holds.

    Raises:
        ApiError: two grammars; names both. The same one in two fields counts once. Or one that cannot be used.
    """
    given = _given(body)
    if calls is not None:
        kept = {name: made for name, made in given.items() if name != "response_format"}
        given = {"tool_choice": (lambda grammar: grammar, calls), **kept}
    if not given:
        return None
    (first, made), *others = given.items()
    if second := next((name for name, other in others if repr(other) != repr(made)), None):  # 1 is not true
        raise bad(f"both {first} and {second} came, but a text follows one grammar: send one of them", param=second)
    make, value = made
    try:
        return make(held(first, _decoded(value), remarks) if make is _schema else value)
    except ConfigError as error:
        raise refused(error, first) from error


def _given(body: Settings) -> dict[str, tuple[_Make, Any]]:
    """What makes the grammar of each field that brings one, and its value."""
    form, outputs = body.response_format, body.structured_outputs
    given = {"response_format": None if form is None else form.schema_given}
    given |= {name: getattr(body, name) for name in _OWN}
    for name, value in {} if outputs is None else outputs.model_dump(by_alias=True).items():
        given[f"structured_outputs.{name}"] = None if value is False else value
    return {name: (_FORMS[name.rpartition(".")[2]], value) for name, value in given.items() if value is not None}


def _schema(schema: dict[str, Any] | bool | str) -> Grammar:
    return Grammar.json_schema(schema if isinstance(schema, str) else json.dumps(schema))


def _decoded(schema: dict[str, Any] | bool | str) -> Any:
    """A schema that may have come as JSON; what is none is refused later."""
    with suppress(ValueError, RecursionError):
        return json.loads(schema) if isinstance(schema, str) else schema
    return schema


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


def most_nodes(method: Method) -> int | None:
    """The most nodes of a tree, of which a request may choose fewer; None without a draft."""
    spec, shape = METHODS[method.method], method.shape
    return method.nodes or (spec.nodes if shape is None else spec.parse(shape).nodes)


def drafting_of(method: Method, given: bool | Speculative | None) -> tuple[str | None, int | None]:
    """Method and most nodes of a request's trees, None for the server's own; raises an ApiError for what it cannot have."""
    if given is False:
        return PLAIN, None
    if not isinstance(given, Speculative):
        return None, None
    if given.nodes is not None and PLAIN in (given.method, method.method):
        why = f"method {PLAIN!r} drafts nothing: leave it out"
        raise bad(f"speculative.nodes is {given.nodes}, but {why}", param="speculative.nodes")
    if given.method == PLAIN:
        return PLAIN, None
    if given.method not in (None, "auto", method.method):
        raise bad(
            f"speculative.method is {short_repr(given.method)}, but all texts of this server share "
            f"{short_repr(method.method)}: leave it out, send false for plain decoding, or start another server",
            param="speculative.method",
        )
    return None, given.nodes
