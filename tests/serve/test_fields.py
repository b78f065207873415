"""Fields that change nothing are taken, those that cannot be honoured are refused by name, and others are as chosen."""

import json
import logging
import math
import re
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

import draftwood
from draftwood.cli import main
from draftwood.serve.decoding.metrics import Metrics, render
from draftwood.serve.http.fields import OTHER_FIELDS
from draftwood.serve.http.settings import ServeOptions
from draftwood.serve.openai.schemas import ChatBody, CompletionBody, StreamOptions, TokenizeBody
from draftwood.serve.service import Service
from tests.serve import shapes
from tests.serve.client import CHAT, COMPLETIONS, MESSAGES, answer, chat, completion, parts_of, refused, streamed, written
from tests.serve.conftest import live_server, loaded, make_service, serving
from tests.test_docs import ROOT, run

TAKEN = [name for name, field in OTHER_FIELDS.items() if field.neutral is None]


@pytest.fixture(scope="module")
def client(folders):
    with serving(make_service(loaded(folders), max_length=128, name=("tiny", "other"))) as found:
        yield found


@pytest.fixture(scope="module")
def lax(folders):
    """A server for models of any name that refuses unknown fields."""
    with serving(make_service(loaded(folders), any_model=True, unknown_fields="refuse")) as found:
        yield found


def test_what_no_grammar_holds_is_refused_by_its_field(lax):
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "fox"}}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    bodies = {"response_format": {"response_format": form}, "tools": {"tools": tools, "tool_choice": "required"}}
    for name, fields in {**bodies, "guided_json": {"guided_json": schema}}.items():
        error = refused(lax, chat(**fields))
        assert (error["param"], error["code"]) == (name, "unsupported_parameter"), error


# ---- the model ----


def test_a_model_has_several_names(client):
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["tiny", "other"]
    assert client.get("/v1/models/other").json()["id"] == "other"
    assert answer(client, completion(model="other"))["model"] == "other"
    fields = client.get("/openapi.json").json()["components"]["schemas"]
    assert fields["ChatBody"]["properties"]["model"]["enum"] == ["tiny", "other", None]


def test_another_name_is_refused_unless_any_will_do(client, lax):
    for path, body in ((COMPLETIONS, completion()), (CHAT, chat()), ("/tokenize", {"prompt": "a"})):
        error = refused(client, {**body, "model": "gpt-5"}, status=404, path=path)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert all(part in error["message"] for part in ("'gpt-5'", "'tiny'", "'other'", "--any-model"))
    assert answer(lax, completion(model="gpt-5"))["model"] == "tiny"
    assert lax.get("/v1/models/gpt-5").json()["id"] == "tiny"
    refused(lax, completion(model=3))


def test_names_are_options_that_can_be_repeated_and_texts_are_learnt_while_it_serves(commanded, monkeypatch, tmp_path):
    learnt = []

    @contextmanager
    def in_background(*given):
        learnt.append(given[:2])
        yield
        learnt.append(len(commanded))

    monkeypatch.setattr("draftwood.cli.serve.in_background", in_background)
    monkeypatch.setattr("draftwood.cli.serve.is_new", lambda *_: True)
    command = ["serve", "--name", "a", "--name", "b", "--any-model", "--unknown-fields", "refuse", "--adapt", str(tmp_path)]
    run = CliRunner().invoke(main, command)
    assert run.exit_code == 0, run.output
    found = commanded[0].options
    assert (found.name, found.any_model, found.unknown_fields) == (("a", "b"), True, "refuse")
    assert learnt == [(None, tmp_path), 1]


def test_options_stand_in_a_file_or_in_the_environment(commanded, tmp_path):
    path = tmp_path / "serve.toml"

    def served(text, *more, **variables):
        path.write_text(text)
        return CliRunner().invoke(main, ["serve", "--config", str(path), *more], env=variables).output

    assert not served('port = 81\nname = ["a", "b"]\nany-model = true\nmax_rows = 3', "--max-rows", "2", DRAFTWOOD_PORT="82")
    found = commanded[0].options
    assert (found.port, found.name, found.any_model, found.max_rows) == (82, ("a", "b"), True, 2)
    for text, says in (
        ("ports = 81", "has the key 'ports'"), ("port =", "cannot be read"), ('port = "x"', "'x' is not a valid integer"),
        ("port = [81]", "give one value"), ("[name]\na = 1", "give a text, or a list"),
        ("[port]\na = 1", "give one value"), ("port = 99999", "from 0 to 65535"),
    ):  # fmt: skip
        assert says in served(text), text
    assert "'nothing'" in served("", DRAFTWOOD_TARGET="nothing")
    assert len(commanded) == 1


# ---- fields of other programs ----


@pytest.mark.parametrize("name", OTHER_FIELDS)
def test_what_the_server_does_not_have_is_taken_where_it_changes_nothing(client, name):
    field, plain = OTHER_FIELDS[name], written(client, max_tokens=2)
    neutral = field.neutral if field.neutral is not None else ("other", 1, {"a": [None]}, True)
    for value in (None, *neutral):
        found = answer(client, completion(**{name: value}, max_tokens=2))
        assert found["choices"][0]["text"] == plain
        assert "warnings" not in found
    if field.neutral is not None:
        error = refused(client, chat(**{name: "other"}))
        assert (error["param"], error["code"]) == (name, "unsupported_parameter")
        assert error["message"].startswith(f"{name} is 'other', but ")


def test_a_value_of_another_type_is_not_the_neutral_one(client):
    answer(client, completion(best_of=1.0, max_tokens=1))
    for name, value in (("best_of", True), ("store", 0), ("modalities", ["text", "audio"]), ("functions", [{}])):
        assert refused(client, completion(**{name: value}))["param"] == name


@pytest.mark.parametrize(("path", "field"), [
    (COMPLETIONS, ("max_completion_tokens", 3)), (COMPLETIONS, ("messages", MESSAGES)), (COMPLETIONS, ("top_logprobs", 2)),
    (COMPLETIONS, ("chat_template_kwargs", {})), (CHAT, ("prompt", "a")), (CHAT, ("echo", True)),
    (CHAT, ("add_special_tokens", True)),
])  # fmt: skip
def test_a_field_of_another_route_is_not_ignored(client, path, field):
    body = completion if path == COMPLETIONS else chat
    error = refused(client, body(**{field[0]: field[1]}), path=path)
    assert error["param"] == field[0]
    assert "belongs to /v1/" in error["message"]
    assert "warnings" not in answer(client, body(**{field[0]: None}), path=path)


# ---- unknown fields ----


UNKNOWN = {"strange": 1, "speculative": {"method": "ar", "depth": 3}}


def test_unknown_fields_are_named_in_the_answer_and_in_the_log(client, caplog):
    part = {"type": "text", "text": "the fox ran", "cache_control": {}}
    messages = [{"role": "user", "content": [part], "mood": 1}]
    paths = {"strange", "speculative.depth", "messages.0.mood", "messages.0.content.0.cache_control"}
    with caplog.at_level(logging.INFO, "draftwood"):
        found = answer(client, chat(**UNKNOWN, messages=messages))
    wanted = {f"the server has no field {path!r}, so it was ignored" for path in paths}
    assert set(found["warnings"]) == wanted
    [record] = [record for record in caplog.records if record.name.startswith("draftwood")]
    assert (record.levelname, set(record.fields["ignored"])) == ("INFO", paths)
    assert "ignored=[" in record.getMessage()
    shapes.check_chat(found)
    assert found["choices"] == answer(client, chat(speculative={"method": "ar"}))["choices"]
    parts = streamed(client, completion(strange=1))
    shapes.check_completion_chunks(parts)
    assert [len(part.get("warnings", ())) for part in parts] == [0] * (len(parts) - 1) + [1]
    assert client.post("/tokenize", json={"prompt": "a", "strange": 1}).json()["warnings"]
    assert client.post("/detokenize", json={"tokens": [5], "strange": 1}).json()["warnings"]


def test_a_server_may_refuse_unknown_fields(lax):
    for field, path in (("strange", "strange"), ("speculative", "speculative.depth")):
        error = refused(lax, completion(**{field: UNKNOWN[field]}))
        assert (error["param"], error["code"]) == (path, "unknown_parameter")
    for message in ({"mood": 1}, {"content": [{"type": "text", "text": "a", "mood": 1}]}):
        error = refused(lax, chat(messages=[{**MESSAGES[0], **message}]))
        assert error["param"].startswith("messages.0.")
    schemas = lax.get("/openapi.json").json()["components"]["schemas"]
    assert schemas["ChatBody"]["additionalProperties"] is schemas["ChatMessage"]["additionalProperties"] is False


def test_many_unknown_fields_make_few_remarks(client):
    remarks = answer(client, completion(**{f"field{i}" + "x" * 500: 1 for i in range(1000)}))["warnings"]
    assert len(remarks) == 9
    assert all(len(remark) < 200 for remark in remarks)


def test_an_unknown_field_of_a_form_is_always_refused(client):
    for form in (
        {"type": "json_object", "schema": {}},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "x": 1}},
    ):
        assert refused(client, chat(response_format=form))["code"] == "unknown_parameter"


# ---- lengths and seeds ----


def test_both_names_of_the_longest_length_are_taken_if_they_agree(client):
    for limits in ({"max_tokens": 5}, {"max_completion_tokens": 5}, {"max_tokens": 5, "max_completion_tokens": 5},
                   {"max_tokens": -1, "max_completion_tokens": 5}):  # fmt: skip
        found = answer(client, {**chat(ignore_eos=True), "max_tokens": None, **limits})
        assert found["usage"]["completion_tokens"] == 5
    error = refused(client, chat(max_tokens=5, max_completion_tokens=6))
    assert error["param"] == "max_tokens"
    assert "max_tokens is 5 and max_completion_tokens is 6" in error["message"]


@pytest.mark.parametrize(("field", "value"), [
    ("max_tokens", 5), ("n", 2), ("seed", 3), ("top_k", 4), ("min_tokens", 2), ("logprobs", 1), ("stop_token_ids", [7, 8]),
    ("prompt", [5, 6, 7]), ("prompt", [[5, 6], [7]]), ("speculative", {"nodes": 2}),
])  # fmt: skip
def test_an_integer_may_be_written_with_a_point(client, field, value):
    body, whole = completion(temperature=1), json.dumps({field: value})
    spelt = re.sub(r"\d+", r"\g<0>.0", whole)
    found, wanted = (answer(client, body | json.loads(text)) for text in (spelt, whole))
    assert found["choices"] == wanted["choices"]


def test_a_seed_of_minus_one_is_drawn(client):
    assert len({written(client, seed=-1) for _ in range(4)}) > 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("extra", [{}, {"logprobs": 1}, {"n": 2}, {"prompt": ["the fox", "a hen"]}])
def test_a_prompt_is_scored_without_a_text(client, stream, extra):
    sent = completion(**{"echo": True, "max_tokens": 0, **extra})
    parts = parts_of(client, sent | ({"stream_options": {"include_usage": True}} if stream else {}), stream=stream)
    assert parts[-1]["usage"]["completion_tokens"] == 0
    longer = answer(client, {**sent, "max_tokens": 3})["choices"]
    for index, wanted in enumerate(longer):
        choices = [one for part in parts for one in part["choices"] if one["index"] == index]
        text = "".join(one["text"] for one in choices)
        assert wanted["text"].startswith(text)
        assert [one["finish_reason"] for one in choices][-1] == "length"
        if "logprobs" in extra:
            found = [number for one in choices if one["logprobs"] for number in one["logprobs"]["token_logprobs"]]
            assert found == wanted["logprobs"]["token_logprobs"][: len(found)]
            assert len(found) == len(wanted["logprobs"]["token_logprobs"]) - 3


def test_a_prompt_that_fills_the_context_is_scored(client, pair):
    ids = (pair.encode("the fox ran to the hen") * 20)[:128]
    found = answer(client, completion(prompt=ids, max_tokens=0, echo=True, logprobs=0))
    assert len(found["choices"][0]["logprobs"]["tokens"]) == 128
    assert refused(client, completion(prompt=[*ids, 5], max_tokens=0, echo=True))["code"] == "context_length_exceeded"


def test_no_text_at_all_is_refused(client):
    assert "echo" in refused(client, completion(max_tokens=0))["message"]
    for name in ("max_tokens", "max_completion_tokens"):
        assert refused(client, {**chat(), "max_tokens": None, name: 0})["param"] == name


# ---- other spellings ----


def test_a_bias_may_be_a_list_of_pairs(client, pair):
    wanted = written(client, logit_bias={"260": 9, "261": -100.0}, max_tokens=30)
    assert written(client, logit_bias=[[260.0, 9], [261, -100.0]], max_tokens=30) == wanted
    assert refused(client, completion(logit_bias={"260.0": 9}))["param"] == "logit_bias"  # names are texts
    assert written(client, logit_bias=[], max_tokens=30) == written(client, max_tokens=30) != wanted
    tokens = [token for token in range(pair.target.vocab_size) if token != 260]
    found = answer(client, completion(logit_bias=[[token, False] for token in tokens], return_token_ids=True, max_tokens=3))
    assert found["choices"][0]["token_ids"] == [260] * 3
    sampling = pair.own_sampling({"temperature": 1.0, "logit_bias": {261: -math.inf}})
    never = pair.generate("the fox ran", sampling=sampling, seed=1, max_new_tokens=16).text
    assert written(client, logit_bias=[[261, False]]) == never


def test_every_chunk_counts_the_usage_so_far(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = chat(max_completion_tokens=16, ignore_eos=True, stream_options=options)
    parts = streamed(client, body)
    counts = [part["usage"]["completion_tokens"] for part in parts]
    assert counts == sorted(counts)
    assert counts[-1] == 16
    assert parts[-1]["choices"] == []
    shapes.check_chat_chunks([{**part, "usage": None} for part in parts[:-1]] + parts[-1:], usage=True)
    alone = streamed(client, {**body, "stream_options": {"continuous_usage_stats": True}})
    assert [part["usage"]["completion_tokens"] for part in alone] == counts[:-1]
    assert all(part["choices"] for part in alone)


# ---- log-probabilities ----


def logprobs_of(client, body, *, stream):
    """Those of the choices that have them."""
    return [one["logprobs"] for part in parts_of(client, body, stream=stream) for one in part["choices"] if one["logprobs"]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("logprobs", "top"), [
    (True, 0), (True, 1), (True, 20), (True, None), (False, 0), (False, None), (None, 0), (None, None), (False, 3),
    (None, 2), (True, 21), (True, -1), (0, 0), (1, 1), ("true", 1), (True, "1"),
])  # fmt: skip
def test_every_pair_of_log_probability_fields_is_honoured_or_refused_by_name(client, stream, logprobs, top):
    """vllm-project/vllm#30059: ``top_logprobs: 0`` was an error 500."""
    body = chat(logprobs=logprobs, top_logprobs=top, max_tokens=2)
    right = logprobs in (True, False, None) and isinstance(logprobs, bool | None) and top in (0, 1, 20, None)
    if not right or (top and not logprobs):
        assert refused(client, {**body, "stream": stream})["param"] in ("logprobs", "top_logprobs")
        return
    entries = [entry for one in logprobs_of(client, body, stream=stream) for entry in one["content"]]
    assert len(entries) == (2 if logprobs else 0)
    assert all(len(entry["top_logprobs"]) == (top or 0) for entry in entries)


def test_the_document_says_what_is_taken_of_other_fields(client):
    fields = client.get("/openapi.json").json()["components"]["schemas"]["CompletionBody"]["properties"]
    assert fields["best_of"]["enum"] == [1, None]
    assert all("enum" not in fields[name] for name in TAKEN)
    assert OTHER_FIELDS.keys() | {"prompt", "add_special_tokens"} <= fields.keys()


# ---- docs/serve.md ----

PAGE = ROOT / "docs" / "serve.md"


def test_the_snippets_of_the_page_print_what_is_shown():
    service = Service(draftwood.load(), ServeOptions(), name="draftwood")
    with live_server(service) as live:
        run(PAGE, lambda source: source.replace("8000", str(live.port)))


@pytest.fixture(scope="module")
def metrics():
    """The metrics of a new server."""
    return render(Metrics()).decode()


def test_the_page_names_every_field_and_every_metric(metrics):
    text = PAGE.read_text(encoding="utf-8")
    bodies = (ChatBody, CompletionBody, TokenizeBody)
    known = {name for body in bodies for name in body.model_fields} | OTHER_FIELDS.keys()
    known |= {f"stream_options.{name}" for name in StreamOptions.model_fields}
    assert not {name for name in known if f"`{name}`" not in text}
    names = set(re.findall(r"^# HELP draftwood:(\w+)", metrics, re.MULTILINE))
    assert len(names) > 12
    assert not {name for name in names if not name.endswith("_created") and name not in text}


def test_the_dashboard_asks_for_metrics_that_there_are(metrics):
    dashboard = json.loads((ROOT / "examples" / "serve" / "grafana.json").read_text())
    wanted = re.findall(r"draftwood:(\w+)", json.dumps(dashboard["panels"]))
    known = set(re.findall(r"^# TYPE draftwood:(\w+)", metrics, re.MULTILINE))
    assert len(set(wanted)) > 12
    assert {name.removesuffix("_bucket") for name in wanted} <= known
