"""Every finished text of a schema is JSON that validates."""

import json
from functools import cache

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from draftwood.api import Pair
from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.engine.requests import Request
from draftwood.grammar.grammar import Grammar
from draftwood.sampling.settings import Sampling
from tests.faults.folders import tiny_llama, tiny_tokenizer
from tests.grammar.schemas import SCHEMAS, compact, record


@cache
def pair():
    tokenizer = tiny_tokenizer()
    target, draft = (tiny_llama(len(tokenizer), layers=n, seed=n, max_position_embeddings=256) for n in (2, 1))
    return Pair(target, draft, tokenizer)


def written(given, method, temperature, length):
    """Tokens, text and finish reason of each, all written together, and the number of drafted end tokens."""
    tokens, texts, reasons, drafted = [list[int]() for _ in given], [""] * len(given), [""] * len(given), 0
    with pair().decoder(method, temperature=temperature).batch() as batch:
        for seed, sampling in enumerate(given):
            batch.add(Request(prompt=[5, 6], seed=seed, limits=Limits(max_new_tokens=length)), sampling)
        while len(batch):
            for piece in batch.step():
                tokens[piece.row] += piece.tokens
                texts[piece.row] += piece.text
                reasons[piece.row] = piece.finish_reason or ""
                drafted += int((piece.round.tree.tokens[piece.round.tree.valid] == 0).sum())
    return list(zip(tokens, texts, reasons, strict=True)), drafted


@cache
def texts(temperature, method):
    """Text and finish reason of each schema."""
    grammars = [Grammar.json_schema(compact(schema)) for schema in SCHEMAS]
    samplings = [Sampling(temperature=temperature, grammar=grammar) for grammar in grammars]
    return [(text, reason) for _, text, reason in written(samplings, method, temperature, 120)[0]]


def valid(text, schema):
    try:
        Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(json.loads(text))
    except (ValidationError, json.JSONDecodeError):
        return False
    return True


@pytest.mark.parametrize(("temperature", "method"), [(0.0, "adaptive"), (1.0, "adaptive"), (1.0, "rsd-s")])
def test_every_finished_text_parses_and_validates(temperature, method):
    made = texts(temperature, method)
    finished = [(text, schema) for (text, reason), schema in zip(made, SCHEMAS, strict=True) if reason == "stop"]
    assert len(finished) > 0.85 * len(SCHEMAS)
    assert not [(text, schema) for text, schema in finished if not valid(text, schema)]


def test_speculation_changes_no_text_of_a_schema():
    assert texts(0.0, "adaptive") == texts(0.0, "ar")
    assert texts(1.0, "adaptive") == texts(1.0, "shared-noise")


def test_control_texts_of_other_schemas_do_not_validate():
    made = [text for text, _ in texts(1.0, "adaptive")]
    wrong = sum(not valid(text, schema) for text, schema in zip(made[1:], SCHEMAS, strict=False))
    assert wrong > 0.8 * len(SCHEMAS)


ENDING = [
    *(Grammar.json_schema(compact(schema)) for schema in [record({"a": {"type": "boolean"}}), *SCHEMAS[:5]]),
    Grammar.regex("(fox)+"),
    Grammar.lark('start: "ran" start?'),
]
"""Six grammars that end by themselves, and two that may end or go on."""


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize(
    "method", [Method(method="shared-noise", shape="2-2-1-1-1-1"), Method(method="lookup"), Method(method="adaptive")]
)
def test_nothing_follows_the_end_of_a_grammar_though_the_end_is_drafted(temperature, method):
    """openvinotoolkit/openvino.genai#4081: a matcher that has ended has no mask."""
    samplings = [Sampling(temperature=temperature, grammar=grammar, logit_bias={0: 3.0}) for grammar in ENDING]
    found, drafted = written(samplings, method, temperature, 40)
    assert found == written(samplings, "ar", temperature, 40)[0]
    assert drafted or method.method == "lookup"  # which guesses no end
    assert [reason for *_, reason in found[:6]] == ["stop"] * 6
    assert all(text.count(0) == (text[-1] == 0) == (reason == "stop") for text, _, reason in found)
    for (text, *_), schema in zip(found[1:6], SCHEMAS, strict=False):
        assert valid(pair().tokenizer.decode(text[:-1]), schema)
