"""Answers over HTTP follow the grammar that a request brings."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from threading import current_thread
from time import monotonic
from typing import Any

import pytest
from starlette.testclient import TestClient

from draftwood.grammar.check import Checker
from draftwood.grammar.constraint import Grammars
from tests.grammar.test_value import nested
from tests.serve.client import answer, chat, completion, refused, text_of, written
from tests.serve.conftest import DRAWS, loaded, make_service, serving
from tests.tiny_chat import chat_tokenizer, save_chat

SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
BY_SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("speculative", [True, False])
def test_an_answer_follows_its_schema(client: TestClient, temperature: float, speculative: bool) -> None:
    fields = {"response_format": BY_SCHEMA, "temperature": temperature, "speculative": speculative, "max_tokens": 200}
    for one in answer(client, chat(**fields, n=3))["choices"]:
        assert one["finish_reason"] == "stop"
        assert set(json.loads(text_of(one))) == {"a"}


def test_a_pattern_and_a_lark_grammar_are_followed(client: TestClient) -> None:
    for fields in ({"regex": "(fox|hen){2,3}"}, {"grammar": 'start: ("fox" | "hen") ("fox" | "hen") ("fox" | "hen")?'}):
        assert re.fullmatch("(fox|hen){2,3}", written(client, **fields, max_tokens=40))
    assert not re.fullmatch("(fox|hen){2,3}", written(client, max_tokens=40))  # control


def test_a_row_without_a_grammar_writes_the_same_text_beside_one_that_has_one(client: TestClient) -> None:
    alone = written(client)
    written(client, regex="[a-z ]+")
    assert written(client, response_format={"type": "text"}) == alone


@pytest.mark.parametrize(("fields", "pattern"), [
    ({"guided_regex": "(fox|hen){2}"}, "(fox|hen){2}"), ({"structured_outputs": {"regex": "(fox|hen){2}"}}, "(fox|hen){2}"),
    ({"guided_choice": ["a fox", 'a "hen"\n']}, 'a fox|a "hen"\n'), ({"structured_outputs": {"choice": ["a", "é"]}}, "a|é"),
    ({"guided_json": SCHEMA}, r'\{\s*"a"\s*:\s*(true|false)\s*\}'),
    ({"guided_json": json.dumps(SCHEMA)}, r'\{\s*"a"\s*:\s*(true|false)\s*\}'),
    ({"structured_outputs": {"json": SCHEMA}}, r'\{\s*"a"\s*:\s*(true|false)\s*\}'),
    ({"json_schema": SCHEMA}, r'\{\s*"a"\s*:\s*(true|false)\s*\}'),
    ({"grammar": 'root ::= animal " " animal\nanimal ::= "fox" | "hen"'}, "(fox|hen) (fox|hen)"),
    ({"guided_grammar": 'root ::= [a-c]+ "."'}, r"[a-c]+\."), ({"structured_outputs": {"grammar": 'start: "fox"'}}, "fox"),
    ({"guided_grammar": 'start: "hen"', "structured_outputs": {"grammar": 'start: "hen"'}}, "hen"),  # as guidance sends it
])  # fmt: skip
def test_forms_in_the_words_of_vllm_and_llama_cpp(client: TestClient, fields: dict[str, Any], pattern: str) -> None:
    assert re.fullmatch(pattern, written(client, **fields, max_tokens=100))
    assert re.fullmatch(pattern, text_of(answer(client, chat(**fields, max_tokens=100))["choices"][0]))


@pytest.mark.parametrize(("fields", "param", "says"), [
    ({"guided_regex": "a", "structured_outputs": {"json_object": True}}, "structured_outputs.json_object", "guided_regex"),
    ({"guided_json": {"const": 1}, "json_schema": {"const": True}}, "guided_json", "both json_schema and guided_json"),
    ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs.structural_tag", "no field"),
    ({"guided_choice": []}, "guided_choice", "at least 1"),
    ({"grammar": "root ::= ("}, "grammar", "is no GBNF"),
    ({"grammar": "root ::= " + "(" * 100_000}, "grammar", "is no GBNF"),
    ({"guided_json": "{"}, None, "JSON"),
    ({"regex": "("}, None, "regular expression"),
    ({"grammar": "start: ("}, None, "Lark grammar"),
    ({"regex": "a", "grammar": 'start: "a"'}, "grammar", "both regex and grammar"),
    ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex", "both response_format and regex"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
    ({"response_format": {"type": "yaml"}}, "response_format", "yaml"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": False}}}, None, "JSON schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": 1}}}}, None, "JSON"),
])  # fmt: skip
def test_what_is_no_grammar_is_refused(client: TestClient, fields: dict[str, Any], param: str | None, says: str) -> None:
    error = refused(client, chat(**fields))
    assert error["param"] == param
    assert says in error["message"]


def of_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}


def chained(rules: int) -> str:
    """A Lark grammar of rules that each need the next one."""
    return "\n".join(["start: r0", *(f'r{i}: "a" r{i + 1}' for i in range(rules)), f'r{rules}: "b"'])


@pytest.mark.parametrize("fields", [
    {"regex": "(a{1000}){1000}"},  # its first mask takes three seconds without a limit
    {"regex": "(a|b)?" * 40000},  # it compiles for half a minute
    {"grammar": chained(20000)},  # a check within the process would end it
    of_schema({"type": "integer", "multipleOf": 999_983}),  # it compiles for half a minute, though it is short
    of_schema({"type": "array", "maxItems": 10**30}),
    of_schema({"enum": [f"value number {n}" for n in range(50_000)]}),
], ids=["states", "slow", "deep", "multiple", "bound", "values"])  # fmt: skip
def test_a_hostile_grammar_is_refused_and_texts_go_on(client: TestClient, fields: dict[str, Any]) -> None:
    began = monotonic()
    error = refused(client, completion(**fields))
    assert monotonic() - began < 10  # loose, since other tests run at the same time
    assert "cannot be used" in error["message"]
    assert written(client, regex="[a-z ]+")


@pytest.mark.parametrize("fields", [
    of_schema({"type": "array", "maxItems": 50_000, "items": {"type": "string", "maxLength": 20_000}}),
    {"regex": "([a-z]{1,5000} ?){1,5000}"},
    of_schema(nested(50)),
    of_schema({"enum": [f"value number {n}" for n in range(5000)]}),
], ids=["bounds", "repetitions", "nested", "values"])  # fmt: skip
def test_a_grammar_with_large_bounds_is_followed(client: TestClient, fields: dict[str, Any]) -> None:
    """ggml-org/llama.cpp#26596, mlc-ai/xgrammar#852."""
    for speculative in (True, False):
        assert written(client, **fields, max_tokens=8, speculative=speculative)


def test_grammars_are_neither_checked_nor_compiled_in_the_decoding_thread(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def watch(kind: type, name: str) -> None:
        done = getattr(kind, name)

        def watched(self: Any, given: Any) -> Any:
            threads.append(current_thread().name)
            return done(self, given)

        monkeypatch.setattr(kind, name, watched)

    watch(Grammars, "_compile")
    watch(Checker, "error")
    with serving(make_service(loaded(folders))) as other:
        assert written(other, regex="[a-d ]+")
    assert len(threads) == 2
    assert not any("decoding" in thread for thread in threads)


def test_a_model_without_an_end_token_writes_to_the_cap_and_refuses_a_grammar(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer(eos_token=None, bos_token=None)
    save = partial(save_chat, tokenizer=tokenizer, generation=DRAWS, eos_token_id=None, bos_token_id=None)
    folders = save(tmp_path / "target"), save(tmp_path / "draft", layers=1)
    with serving(make_service(loaded(folders))) as client:
        for fields in ({}, {"ignore_eos": True}, {"min_tokens": 4}, {"speculative": False}, {"n": 3}):
            for body in (completion(**fields), chat(**fields)):
                found = answer(client, body)
                assert {choice["finish_reason"] for choice in found["choices"]} == {"length"}
                assert found["usage"]["completion_tokens"] == 16 * fields.get("n", 1)
        message = refused(client, completion(regex="[a-z]+"))["message"]
    assert "needs an end-of-text token" in message
    assert "eos_token_id" in message
