"""What a served text is: the same alone and in company, without banned tokens, up to its stop, and of its grammar."""

import json
import random
import re
from concurrent.futures import ThreadPoolExecutor
from threading import current_thread

import httpx2
import pytest

from draftwood import Grammar, Method, TokenTexts
from draftwood.grammar.constraint import Grammars
from draftwood.grammar.grammar import Checker
from tests.grammar.test_value import nested
from tests.serve.client import answer, chat, choice, completion, parts_of, refused, streamed, text_of, written
from tests.serve.conftest import live_server, loaded, make_service, serving

PROMPTS = ["the fox ran", "a dog", "the hen sat on the red hill and", "a"]
SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    {"temperature": 0.9, "logit_bias": {"260": 1.5}, "min_tokens": 4},
]


def wanted(seed):
    """A request, by its number."""
    rng = random.Random(seed)
    prompt, settings = rng.choice(PROMPTS), rng.choice(SETTINGS)
    return completion(prompt=prompt, seed=seed, max_tokens=rng.randrange(3, 14), **settings)


def test_a_text_is_the_one_it_is_alone_while_others_come_and_go(folders):
    bodies = [wanted(seed) for seed in range(40)]
    with serving(make_service(loaded(folders), method=Method(method="ar"))) as client:
        alone = [text_of(choice(client, body)) for body in bodies]
    assert len(set(alone)) > 30  # control: the texts differ
    with (
        live_server(make_service(loaded(folders), max_rows=4)) as live,
        httpx2.Client(base_url=live.url, timeout=60) as client,
    ):

        def text(number):
            rng = random.Random(number)
            stream, drafts = rng.random() < 0.5, rng.random() < 0.7
            parts = parts_of(client, {**bodies[number], "speculative": drafts}, stream=stream)
            return text_of(*(part["choices"][0] for part in parts))

        with ThreadPoolExecutor(8) as threads:
            together = list(threads.map(text, range(len(bodies))))
    assert together == alone


@pytest.mark.parametrize("seed", range(8))
def test_a_stream_is_the_whole_answer_and_has_no_empty_chunk(client, seed):
    for body in (chat, completion):
        wanted = {"seed": seed, "temperature": 1.3, "max_tokens": 24, "regex": "([é🌍你]|a b)+"}
        parts = [part["choices"][0] for part in streamed(client, body(**wanted))][body is chat :]
        assert text_of(*parts) == text_of(choice(client, body(**wanted)))
        assert all(text_of(part) or part["finish_reason"] for part in parts)
        assert not any("\ufffd" in text_of(part) for part in parts[:-2])


def test_tokens_of_completions_have_names_of_their_own(client, pair):
    """Two tokens that both hold a part of a character are two keys."""
    body = completion(regex="[éà🌍🐶你]+", logprobs=20, max_tokens=12)
    one = choice(client, {**body, "return_token_ids": True})
    found = one["logprobs"]
    texts = TokenTexts(pair.tokenizer)
    wanted = pair.generate(
        "the fox ran", seed=1, max_new_tokens=12, temperature=1.0, logprobs=20, grammar=Grammar.regex(body["regex"])
    )
    assert one["token_ids"] == wanted.token_ids
    assert wanted.logprobs is not None
    parts = zip(wanted.logprobs, *(found[name] for name in ("tokens", "token_logprobs", "top_logprobs")), strict=True)
    for one, name, logprob, listed in parts:
        assert name == rf"bytes:\x{texts.bytes_of(one.token)[0]:02x}"
        assert len(listed) == len({*(token for token, _ in one.top), one.token})
        assert listed[name] == logprob


METHODS = [Method(method="ngram"), Method(method="adaptive")]
LINES = "é\n\né\né\n\né\né\n\né\n"
"""What n-grams propose behind it are parts of characters and line breaks."""


def tokens_of(client, text):
    return client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]


def written_ids(client, temperature, bias, **fields):
    body = completion(prompt=LINES, temperature=temperature, n=2, max_tokens=16, logit_bias=bias, return_token_ids=True)
    return [choice["token_ids"] for choice in answer(client, {**body, **fields})["choices"]]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.method)
@pytest.mark.usefixtures("always_drafts")
def test_no_banned_token_is_written_also_within_a_character(served, method):
    with serving(make_service(served, method=method)) as client:
        first, rest, line = (tokens_of(client, text)[i] for text, i in (("é", 0), ("é", 1), ("\n", 0)))
        likely = {str(token): 9.0 for token in (first, rest, line)}
        free = {token for text in written_ids(client, 1, likely) for token in text}
        assert {first, rest, line} <= free  # control
        banned = {**likely, str(rest): -100.0, str(line): -100.0}
        for temperature in (0, 1, 2):
            texts = written_ids(client, temperature, banned)
            assert not any({rest, line} & set(text) for text in texts)
            plain = written_ids(client, temperature, banned, speculative=False)
            assert not any({rest, line} & set(text) for text in plain)
            if temperature == 0 or method.method == "adaptive":  # the same noise picks the tokens
                assert texts == plain


def test_a_bias_of_no_token_is_none_and_a_token_is_written_in_one_way(client):
    assert written_ids(client, 1, {}) == written_ids(client, 1, {"5": 0}) != written_ids(client, 1, {"270": 40})
    error = refused(client, completion(logit_bias={"5": -100, "05": 0}))
    assert (error["param"], "'05'" in error["message"]) == ("logit_bias", True)


LETTERS = "[a-z ]{60}"  # else random models write broken characters


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ids_and_log_probabilities_end_with_the_stop_text(client, temperature):
    """Nothing of an accepted block comes after the token that completes a stop (vllm-project/vllm#47616)."""
    body = completion(
        temperature=temperature, max_tokens=40, prompt="the fox the fox", logprobs=1, return_token_ids=True, regex=LETTERS
    )
    whole = choice(client, {**body, "speculative": False})
    for at in (5, 12, 20):
        stop = whole["text"][at : at + 4]
        ways = {"stop": stop, "speculative": False}, {"stop": [stop], "speculative": True}
        found = [choice(client, body | way) for way in ways]
        assert found[0]["token_ids"] == found[1]["token_ids"]
        for one in found:
            end = whole["text"].index(stop)
            assert (one["text"], one["finish_reason"]) == (whole["text"][:end], "stop")
            count = len(one["token_ids"])
            assert one["token_ids"] == whole["token_ids"][:count]
            assert stop in "".join(one["logprobs"]["tokens"])
            assert stop not in "".join(one["logprobs"]["tokens"][:-1])
            assert one["logprobs"]["tokens"] == whole["logprobs"]["tokens"][:count]
            assert len(one["logprobs"]["token_logprobs"]) == count


# ---- grammars ----

SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
BY_SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
OF_SCHEMA = r'\{\s*"a"\s*:\s*(true|false)\s*\}'


@pytest.mark.parametrize(("fields", "pattern"), [
    ({"regex": "(fox|hen){2,3}"}, "(fox|hen){2,3}"), ({"grammar": 'start: ("fox" | "hen")~1..2'}, "(fox|hen){1,2}"),
    ({"guided_regex": "(fox|hen){2}"}, "(fox|hen){2}"), ({"structured_outputs": {"regex": "(fox|hen){2}"}}, "(fox|hen){2}"),
    ({"guided_choice": ["a fox", 'a "hen"\n']}, 'a fox|a "hen"\n'), ({"structured_outputs": {"choice": ["a", "é"]}}, "a|é"),
    *(({**form, "temperature": temperature, "speculative": drafts}, OF_SCHEMA)
      for temperature in (0, 1) for drafts in (True, False)
      for form in ({"response_format": BY_SCHEMA}, {"guided_json": SCHEMA}, {"guided_json": json.dumps(SCHEMA)},
                   {"structured_outputs": {"json": SCHEMA}}, {"json_schema": SCHEMA})),
    ({"grammar": 'root ::= animal " " animal\nanimal ::= "fox" | "hen"'}, "(fox|hen) (fox|hen)"),
    ({"guided_grammar": 'root ::= [a-c]+ "."'}, r"[a-c]+\."), ({"structured_outputs": {"grammar": 'start: "fox"'}}, "fox"),
    ({"guided_grammar": 'start: "hen"', "structured_outputs": {"grammar": 'start: "hen"'}}, "hen"),  # as guidance sends it
])  # fmt: skip
def test_forms_in_the_words_of_vllm_and_llama_cpp(client, fields, pattern):
    assert re.fullmatch(pattern, written(client, **fields, max_tokens=100))
    assert not re.fullmatch(pattern, written(client, max_tokens=100))  # control
    assert re.fullmatch(pattern, text_of(answer(client, chat(**fields, max_tokens=100))["choices"][0]))


@pytest.mark.parametrize(("fields", "param", "says"), [
    ({"guided_regex": "a", "structured_outputs": {"json_object": True}}, "structured_outputs.json_object", "guided_regex"),
    ({"guided_json": {"const": 1}, "json_schema": {"const": True}}, "guided_json", "both json_schema and guided_json"),
    ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs.structural_tag", "no field"),
    ({"guided_choice": []}, "guided_choice", "at least 1"),
    ({"grammar": "root ::= ("}, "grammar", "is no GBNF"),
    ({"grammar": "root ::= " + "(" * 100_000}, "grammar", "is no GBNF"),
    ({"guided_json": "{"}, "guided_json", "JSON"),
    ({"regex": "("}, "regex", "regular expression"),
    ({"grammar": "start: ("}, "grammar", "Lark grammar"),
    ({"regex": "a", "grammar": 'start: "a"'}, "grammar", "both regex and grammar"),
    ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex", "both response_format and regex"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
    ({"response_format": {"type": "yaml"}}, "response_format", "yaml"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": False}}}, "response_format", "JSON"),
    ({"json_schema": {"type": 1}}, "json_schema", "JSON"),
])  # fmt: skip
def test_what_is_no_grammar_is_refused(client, fields, param, says):
    error = refused(client, chat(**fields))
    assert error["param"] == param
    assert says in error["message"]


def of_schema(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}


def chained(rules):
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
def test_a_hostile_grammar_is_refused_and_texts_go_on(client, fields):
    error = refused(client, completion(**fields))
    assert "cannot be used" in error["message"]
    assert written(client, regex="[a-z ]+")


@pytest.mark.parametrize("fields", [
    of_schema({"type": "array", "maxItems": 50_000, "items": {"type": "string", "maxLength": 20_000}}),
    {"regex": "([a-z]{1,5000} ?){1,5000}"},
    of_schema(nested(50)),
    of_schema({"enum": [f"value number {n}" for n in range(5000)]}),
], ids=["bounds", "repetitions", "nested", "values"])  # fmt: skip
def test_a_grammar_with_large_bounds_is_followed(client, fields):
    """ggml-org/llama.cpp#26596, mlc-ai/xgrammar#852."""
    for speculative in (True, False):
        assert written(client, **fields, max_tokens=8, speculative=speculative)


def test_grammars_are_neither_checked_nor_compiled_in_the_decoding_thread(folders, monkeypatch):
    threads = []

    def watch(kind, name):
        done = getattr(kind, name)

        def watched(self, given):
            threads.append(current_thread().name)
            return done(self, given)

        monkeypatch.setattr(kind, name, watched)

    watch(Grammars, "_compile")
    watch(Checker, "error")
    with serving(make_service(loaded(folders))) as other:
        assert written(other, regex="[a-d ]+")
    assert len(threads) == 2
    assert not any("decoding" in thread for thread in threads)


# ---- predictions ----


def test_a_prediction_changes_no_text_and_is_counted(served):
    body = chat(seed=1, max_tokens=24)
    with serving(make_service(served, method=Method(method="ngram"))) as client:
        plain = answer(client, body)
        text = plain["choices"][0]["message"]["content"]
        for content in (text, [{"type": "text", "text": text}], "nothing like it", ""):
            found = answer(client, {**body, "prediction": {"type": "content", "content": content}})
            assert found["choices"] == plain["choices"]
            details = found["usage"].get("completion_tokens_details", {})
            assert (details.get("accepted_prediction_tokens", 0) > 0) == (content not in ("nothing like it", ""))
            assert all(value >= 0 for value in details.values())
        for wrong in ("a text", {"type": "content"}, {"type": "diff", "content": "a"}):
            assert "prediction" in refused(client, {**body, "prediction": wrong})["message"]


def test_a_method_without_lookup_ignores_a_prediction_with_a_remark(client):
    found = answer(client, chat(max_tokens=4, prediction={"type": "content", "content": "a text"}))
    assert "takes no drafts from a prediction" in found["warnings"][0]
    assert "completion_tokens_details" not in found["usage"]
