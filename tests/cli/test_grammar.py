"""Grammars on the command line: ``--json-schema``, ``--json-object``, ``--regex`` and ``--grammar``."""

import json
import re

import pytest

from draftwood.cli.output_options import with_grammar
from draftwood.grammar.grammar import Grammar
from tests.cli.jobs import succeeded
from tests.tiny_chat import save_chat

SCHEMA = {
    "type": "object",
    "properties": {"red": {"type": "boolean"}, "hens": {"enum": [1, 2, 3]}},
    "required": ["red", "hens"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
JSON = re.compile(r'\{"red":(true|false),"hens":[123]\}')
TORCH = ["--backend", "torch", "--max-new-tokens", "40"]


@pytest.fixture
def schema(tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA), encoding="utf-8")
    return path


def test_generate_writes_text_of_the_grammar(run, pair, schema, tmp_path):
    lark = tmp_path / "words.lark"
    lark.write_text('start: "the " ("fox" | "hen")', encoding="utf-8")
    for options, pattern in (
        (["--json-schema", schema], JSON),
        (["--regex", "[0-9]{3}-[a-z]{2}"], re.compile("[0-9]{3}-[a-z]{2}")),
        (["--grammar", lark], re.compile("the (fox|hen)")),
    ):
        result = succeeded(run("generate", "the fox", *pair, *TORCH, "--seed", "3", *options))
        assert pattern.fullmatch(result.stdout.removesuffix("\n")), result.stdout
        assert "ended by itself" in result.stderr


def test_chat_answers_in_the_grammar(run, tmp_path, schema):
    folder = save_chat(tmp_path / "chat")
    for given in (["Hello"], []):
        stdin = None if given else "Hello\nAgain\n"  # one message
        result = succeeded(run("chat", *given, "--target", folder, *TORCH, "--quiet", "--json-schema", schema, stdin=stdin))
        [line] = result.stdout.splitlines()
        assert JSON.fullmatch(line), line


def test_options_become_one_grammar_under_one_name():
    assert with_grammar({"seed": 3}) == {"seed": 3}
    assert with_grammar({"seed": 3, "json_object": True}) == {"seed": 3, "grammar": Grammar.json_object()}
    assert with_grammar({"seed": 3, "regex": ""}) == {"seed": 3, "grammar": Grammar.regex("")}
