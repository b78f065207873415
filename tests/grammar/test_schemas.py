"""Every finished text of a schema is JSON that validates."""

from __future__ import annotations

import json
from functools import cache

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from draftwood.core.grammar import Grammar
from draftwood.core.limits import Limits
from draftwood.core.settings import Sampling
from draftwood.engine.requests import Request
from tests.faults.folders import tiny_llama, tiny_tokenizer
from tests.grammar.schemas import SCHEMAS, compact


@cache
def pair() -> Pair:
    tokenizer = tiny_tokenizer()
    target, draft = (tiny_llama(len(tokenizer), layers=n, seed=n, max_position_embeddings=256) for n in (2, 1))
    return Pair(target, draft, tokenizer)


@cache
def texts(temperature: float, method: str) -> list[tuple[str, str]]:
    """Text and finish reason of each schema, all written together."""
    found = {row: ["", ""] for row in range(len(SCHEMAS))}
    with pair().decoder(method, temperature=temperature).batch() as batch:
        for seed, schema in enumerate(SCHEMAS):
            sampling = Sampling(temperature=temperature, grammar=Grammar.json_schema(compact(schema)))
            batch.add(Request(prompt=[5, 6], seed=seed, limits=Limits(max_new_tokens=120)), sampling)
        while len(batch):
            for piece in batch.step():
                found[piece.row][0] += piece.text
                found[piece.row][1] = piece.finish_reason or ""
    return [(text, reason) for text, reason in found.values()]


def valid(text: str, schema: dict) -> bool:
    try:
        Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(json.loads(text))
    except (ValidationError, json.JSONDecodeError):
        return False
    return True


CASES = pytest.mark.parametrize(("temperature", "method"), [(0.0, "adaptive"), (1.0, "adaptive"), (1.0, "rsd-s")])


@CASES
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


@pytest.mark.parametrize(
    "more",
    [{"uniqueItems": True}, {"contains": {"type": "null"}}, {"not": {"type": "null"}}, {"if": {"type": "null"}}],
)
def test_a_keyword_that_cannot_be_honoured_is_refused_by_name(more):
    with pytest.raises(ConfigError, match=next(iter(more))):
        Grammar.json_schema({"type": "array", "items": {"type": "integer"}, **more})
