"""A grammar is checked when it is made, and every refusal names what is wrong."""

from __future__ import annotations

import importlib
import math
import pickle
from types import MappingProxyType

import pytest

import draftwood
from draftwood import ConfigError, Grammar, Sampling
from draftwood.grammar.check import Checker

NUMBERS = {"type": "array", "items": {"type": "integer"}}


def nested(levels: int) -> dict:
    found: dict = {"type": "string"}
    for _ in range(levels):
        found = {"type": "array", "items": found}
    return found


def test_grammars_are_equal_by_value_and_can_be_pickled():
    schema = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}
    one = Grammar.json_schema(schema)
    assert one == Grammar.json_schema(MappingProxyType(schema)) == pickle.loads(pickle.dumps(one))
    assert (
        len({one, Grammar.json_schema(schema), Grammar.json_object(), Grammar.regex("a"), Grammar.lark('start: "a"')}) == 4
    )
    assert one.text.index('"b"') < one.text.index('"a"')  # properties come in this order
    assert one != Grammar.json_schema({"type": "object", "properties": {"a": {}, "b": {"type": "integer"}}})
    assert Grammar.json_schema("true").source() == Grammar.json_schema({}).source()
    assert draftwood.Grammar is Grammar
    with pytest.raises(AttributeError):
        one.text = "{}"


@pytest.mark.parametrize(
    ("make", "given", "said"),
    [
        (Grammar.regex, "(ab", "the regular expression '(ab' cannot be used: .*unclosed group"),
        (Grammar.regex, 5, "the regular expression is 5: give Unicode text"),
        (Grammar.regex, "a\udcff", "give Unicode text"),
        (Grammar.lark, "start: foo", "the Lark grammar 'start: foo' cannot be used: .*unknown name: \"foo\""),
        (Grammar.lark, 'rule: "a"', "start"),
        (Grammar.lark, "", "the Lark grammar '' cannot be used"),
        (Grammar.lark, '{"grammars": [{"lark_grammar": "start: /a/"}]}', 'the Lark grammar \'{"grammars"'),
        (Grammar.json_schema, '{"type":', "the JSON schema '{\"type\":' cannot be used"),
        (Grammar.json_schema, '{"a": 1}x', "Extra data"),
        (Grammar.json_schema, "[1]", "must be an object or boolean"),
        (Grammar.json_schema, "[" * 10_000, "recursion"),
        (Grammar.json_schema, nested(10_000), "cannot be written as JSON"),
        (Grammar.json_schema, [1], "give a mapping, or its JSON as text"),
        (Grammar.json_schema, {"minimum": math.nan}, "cannot be written as JSON"),
        (Grammar.json_schema, {"enum": [object()]}, "cannot be written as JSON"),
        (Grammar.json_schema, {"type": "text"}, "Invalid type: text"),
        (Grammar.json_schema, {"enum": []}, "Unsatisfiable"),
        (Grammar.json_schema, "false", "schema is false"),
        (Grammar.json_schema, {"type": "integer", "minimum": 5, "maximum": 3}, "minimum .5. is greater than maximum .3."),
        (Grammar.json_schema, {**NUMBERS, "uniqueItems": True}, "uniqueItems"),
        (Grammar.json_schema, {**NUMBERS, "contains": {"type": "null"}}, "contains"),
        (Grammar.json_schema, {**NUMBERS, "not": {"type": "null"}}, "not"),
        (Grammar.json_schema, {**NUMBERS, "if": {"type": "null"}}, "if"),
        (Grammar.json_schema, {"$ref": "http://127.0.0.1/schema"}, "does not fetch"),
    ],
)
def test_what_cannot_be_a_grammar_is_refused_by_name(make, given, said):
    with pytest.raises(ConfigError, match=said.replace("(ab", r"\(ab")) as caught:
        make(given)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("schema", [
    {"type": "integer", "multipleOf": 999_983},
    {"allOf": [{"type": "string", "pattern": f"[a-z]{{{n}}}x"} for n in range(1, 30)]},
], ids=["multiple", "patterns"])  # fmt: skip
def test_the_check_of_a_short_grammar_that_takes_minutes_is_ended(monkeypatch, schema):
    checker = Checker({}, seconds=0.3)
    monkeypatch.setattr("draftwood.grammar.grammar._CHECKER", checker)
    assert len(str(schema)) < 2000
    with pytest.raises(ConfigError, match=r"its check takes longer than 0\.3 seconds"):
        Grammar.json_schema(schema)


def test_another_kind_is_refused():
    with pytest.raises(ConfigError, match="kind is 'ebnf': choose one of json_schema, regex, lark"):
        Grammar(kind="ebnf", text="")


@pytest.mark.parametrize("given", ["a+", {"type": "object"}, 5])
def test_a_sampling_takes_grammars_only(given):
    with pytest.raises(ConfigError, match=r"give a draftwood\.Grammar"):
        Sampling(grammar=given)


def test_without_the_library_the_error_names_the_extra(monkeypatch):
    real = importlib.import_module

    def missing(name: str, *rest):
        if name == "llguidance":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr("draftwood.grammar.grammar.import_module", missing)
    with pytest.raises(ConfigError, match=r"pip install 'draftwood\[grammar\]'"):
        Grammar.regex("a")
