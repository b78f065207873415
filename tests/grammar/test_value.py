"""A grammar is checked when it is made, and every refusal names what is wrong."""

import importlib
import math
import pickle
import re
import signal
from threading import Timer
from types import MappingProxyType

import pytest

import draftwood
from draftwood import ConfigError, Grammar, Sampling
from draftwood.grammar.grammar import FORMATS, Checker, json_rule, without_unheld

NUMBERS = {"type": "array", "items": {"type": "integer"}}


def nested(levels):
    found = {"type": "string"}
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
        (Grammar.json_schema, [1], "give a mapping, such as model_json_schema"),
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
        (Grammar.json_schema, {"oneOf": [{"required": ["x"]}, {"required": ["y"]}]}, "its oneOf .* write anyOf, or give"),
        (Grammar.json_schema, {"pattern": "[a"}, "a pattern, regex parse error: .*unclosed"),
        (Grammar.json_schema, {"pattern": "^(?=a)a"}, "a pattern, regex parse error: .*look-around"),
        (Grammar.json_schema, {"$ref": "http://127.0.0.1/schema"}, "does not fetch"),
    ],
)
def test_what_cannot_be_a_grammar_is_refused_by_name(make, given, said):
    with pytest.raises(ConfigError, match=said.replace("(ab", r"\(ab")) as caught:
        make(given)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


AROUND = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
FINE = {"properties": {"format": {"format": "uri"}, "b": {"pattern": r"^[(?=]\\\\b\.$"}}, "default": {"format": "path"}}


@pytest.mark.parametrize(("schema", "left", "known"), [
    (FINE, [], FINE),
    ({"type": "integer", "format": "int32"}, [], {"type": "integer", "format": "int32"}),
    ({"type": ["string", "null"], "format": "path", "minLength": 5}, ["format"],
     {"type": ["string", "null"], "minLength": 5}),
    ({"items": {"anyOf": [{"type": "number"}, {"pattern": AROUND}]}}, ["items.anyOf.1.pattern"],
     {"items": {"anyOf": [{"type": "number"}, {}]}}),
    ({"$defs": {"a": {"pattern": r"\bx"}}, "patternProperties": {"(?<!a)": {}, "^a": {"format": "color"}}},
     ["$defs.a.pattern", "patternProperties", "patternProperties.^a.format"],
     {"$defs": {"a": {}}, "patternProperties": {"^a": {}}}),
    ({"allOf": [{"pattern": r"(a)\1"}], "not": True, "format": 7}, ["allOf.0.pattern"],
     {"allOf": [{}], "not": True, "format": 7}),
])  # fmt: skip
def test_what_no_grammar_holds_is_left_out_where_it_is_a_keyword(schema, left, known):
    lines = []
    assert without_unheld(schema, lines) == known
    assert [re.split(" is | has ", line)[0] for line in lines] == left


def test_formats_are_those_of_the_library_and_others_are_annotations():
    texts = {name: Grammar.json_schema({"type": "string", "format": name}).source() for name in (*FORMATS, "path", "regex")}
    assert texts["path"] == texts["regex"] == Grammar.json_schema({"type": "string"}).source()
    assert len(set(texts.values())) == len(FORMATS) + 1
    nested = {"type": "string", "format": "path"}
    assert json_rule({"items": nested}) == json_rule({"items": {"type": "string"}})


@pytest.mark.parametrize("schema", [
    {"type": "integer", "multipleOf": 999_983},
    {"allOf": [{"type": "string", "pattern": f"[a-z]{{{n}}}x"} for n in range(1, 30)]},
], ids=["multiple", "patterns"])  # fmt: skip
def test_the_check_of_a_short_grammar_that_takes_minutes_is_ended(monkeypatch, schema):
    monkeypatch.setattr("draftwood.grammar.grammar.LIMITS", {})
    monkeypatch.setattr("draftwood.grammar.grammar._CHECKER", Checker())
    assert len(str(schema)) < 2000
    with pytest.raises(ConfigError, match=r"its check takes longer than 1 s"):
        Grammar.json_schema(schema)


def test_the_time_of_a_check_is_its_own_and_not_that_of_a_stopped_machine():
    checker = Checker()
    assert checker.error(Grammar.regex("a+").source()) is None
    assert checker._process is not None
    checker._process.send_signal(signal.SIGSTOP)
    Timer(1.5, checker._process.send_signal, [signal.SIGCONT]).start()
    assert checker.error(Grammar.regex("b+").source()) is None


def test_another_kind_is_refused():
    with pytest.raises(ConfigError, match="kind is 'ebnf': choose one of json_schema, regex, lark"):
        Grammar(kind="ebnf", text="")


@pytest.mark.parametrize("given", ["a+", {"type": "object"}, 5])
def test_a_sampling_takes_grammars_only(given):
    with pytest.raises(ConfigError, match=r"give a draftwood\.Grammar"):
        Sampling(grammar=given)


def test_without_the_library_the_error_names_the_extra(monkeypatch):
    real = importlib.import_module

    def missing(name, *rest):
        if name == "llguidance":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr("draftwood.grammar.grammar.import_module", missing)
    with pytest.raises(ConfigError, match=r'pip install "\.\[grammar\]"'):
        Grammar.regex("a")
