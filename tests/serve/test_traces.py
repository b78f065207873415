"""Traces of served texts: those that the same texts have in Python, whole and round by round, for those who ask for one."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import draftwood
from draftwood import Method
from draftwood.trace.figures import draw_race, draw_round, draw_specdec
from draftwood.trace.files import from_json
from draftwood.trace.page.pieces import round_data, unstyled
from draftwood.trace.record import Recorder
from tests.serve import shapes
from tests.serve.client import answer, chat, chunks, completion, refused, streamed
from tests.serve.conftest import METHOD, loaded, make_service, serving
from tests.trace.replay import replay


def traced(client, **fields):
    """The id of a text with a trace."""
    return str(answer(client, completion(trace=True, **fields))["id"])


def trace_of(client, name):
    response = client.get(f"/v1/traces/{name}")
    assert response.status_code == 200, response.text
    [found] = from_json(response.json())
    return found


def seen(trace):
    """All that does not depend on clocks and on the last bits of numbers."""
    return [
        (made.number, made.position, made.draw, made.path, made.tokens, made.text, made.next_token, made.uniform,
         [(node.token, node.parent, node.rank, node.verdict) for node in made.nodes],
         [(trial.node, trial.uniform, trial.accepted) for trial in made.trials])
        for made in trace.rounds
    ]  # fmt: skip


def timeless(trace):
    return replace(trace, rounds=[replace(made, seconds={}, end=0.0) for made in trace.rounds])


@pytest.mark.parametrize("method", [METHOD, Method(method="rsd-s", shape="2x2")], ids=lambda method: method.method)
def test_a_trace_is_that_of_the_same_text_in_python(folders, pair, method):
    wanted = pair.generate("the fox ran", temperature=1.0, seed=1, max_new_tokens=24, method=method, trace=True).trace
    assert wanted is not None
    with serving(make_service(loaded(folders), method=method)) as client:
        assert timeless(trace_of(client, traced(client, max_tokens=24))) == timeless(wanted)
        with ThreadPoolExecutor() as threads:  # in company
            others = [threads.submit(answer, client, completion(n=3, seed=9, max_tokens=40 * i)) for i in (1, 2)]
            found = trace_of(client, traced(client, max_tokens=24))
            assert all(other.result() for other in others)
        assert seen(found) == seen(wanted)
        for mine, theirs in zip(found.rounds, wanted.rounds, strict=True):
            for one, other in zip(mine.nodes[1:], theirs.nodes[1:], strict=True):
                assert one.target_prob == pytest.approx(other.target_prob, rel=1e-4)
    assert any(made.path for made in wanted.rounds)
    assert not replay(found).differences


def test_rows_without_drafts_and_at_temperature_0_have_traces(client, pair):
    plain = trace_of(client, traced(client, speculative=False))
    assert (plain.method, plain.draft, plain.shape) == ("ar", None, None)
    assert [len(made.nodes) for made in plain.rounds] == [1] * 16
    assert plain.tokens == trace_of(client, traced(client)).tokens
    greedy = trace_of(client, traced(client, temperature=0))
    assert greedy.tokens == pair.generate("the fox ran", temperature=0.0, max_new_tokens=16).token_ids
    assert not replay(greedy).differences


def test_events_are_the_rounds_as_the_page_shows_them(client):
    name = streamed(client, chat(trace=True))[0]["id"]
    trace = trace_of(client, name)
    response = client.get(f"/v1/traces/{name}", headers={"Accept": "text/event-stream"})
    assert response.headers["content-type"].startswith("text/event-stream")
    first, *rounds, last = chunks(response.text)
    assert first["text"]["prompt"].replace("↵\n", "\n") == trace.prompt_text
    assert [one["round"] for one in rounds] == json.loads(json.dumps([round_data(trace, made) for made in trace.rounds]))
    assert last["end"] == {"finish_reason": "length", "dropped": 0, "first": last["end"]["first"], "tokens": trace.tokens}


def test_figures_are_those_of_the_trace(client):
    fast, plain = traced(client), traced(client, speculative=False)
    trace, undrafted = trace_of(client, fast), trace_of(client, plain)
    found = client.get(f"/v1/traces/{fast}/rounds/3?width=800").json()
    assert found["svg"] == unstyled(draw_round(trace, 3, width=760))
    assert "round 4:" in found["text"]
    race = client.get(f"/v1/traces/{fast}/race?plain={plain}&width=1300").json()
    assert race["svg"] == unstyled(draw_race(undrafted, trace, width=1250))
    other = traced(client, prompt="a dog")
    for path, status, param in [
        (f"{fast}/rounds/99", 404, "round"), (f"{fast}/rounds/-1", 400, "round"), (f"{fast}/rounds/1?width=x", 400, "width"),
        (f"{fast}/race?plain={other}", 400, "plain"), (f"{fast}/race", 404, "id"), ("none/rounds/0", 404, "id"),
    ]:  # fmt: skip
        response = client.get(f"/v1/traces/{path}")
        shapes.check_error(response.json())
        assert (response.status_code, response.json()["error"]["param"]) == (status, param)


def test_without_trace_nothing_is_recorded(client, monkeypatch):
    monkeypatch.setattr(Recorder, "__init__", None)  # any use fails
    assert answer(client, completion())
    assert answer(client, completion(trace=False))
    refused(client, completion(trace=True), 500)  # control


def test_the_last_traces_are_kept_and_others_are_404(folders):
    pair = loaded(folders)
    with serving(make_service(pair, max_traces=2)) as client:
        first, *last = [traced(client, max_tokens=2, seed=seed) for seed in range(3)]
        assert [trace_of(client, name).seed for name in last] == [1, 2]
        for name in (first, "none", "cmpl-" + "0" * 32):
            response = client.get(f"/v1/traces/{name}")
            shapes.check_error(response.json())
            assert (response.status_code, response.json()["error"]["code"]) == (404, "trace_not_found")
        for fields in ({"n": 2}, {"prompt": ["a", "b"]}):
            error = refused(client, completion(trace=True, **fields))
            assert error["param"] == "trace"
            assert "n = 1" in error["message"]
    with serving(make_service(pair, max_traces=0)) as client:
        assert refused(client, completion(trace=True))["param"] == "trace"
        assert answer(client, completion())


@pytest.mark.parametrize("model", ["target", "draft"])
def test_a_failing_target_ends_the_trace_and_a_failing_drafter_does_not(served, client, faults, model):
    whole = trace_of(client, traced(client))
    faults[model == "draft"].fails_at = 4
    with serving(make_service(served)) as own:
        found = trace_of(own, streamed(own, completion(trace=True))[0]["id"])
    if model == "target":
        assert 0 < len(found.rounds) < len(whole.rounds)
        assert found.tokens == whole.tokens[: len(found.tokens)]
        assert "not recorded" in found.remarks[0]
    else:
        assert (found.tokens, found.remarks) == (whole.tokens, [])
        assert len(found.rounds) > len(whole.rounds)
        assert len(found.rounds[-1].nodes) == 1  # nothing was drafted any more
    assert not whole.remarks


def test_a_fault_of_recording_ends_the_trace_and_not_the_text(client, monkeypatch):
    wanted = answer(client, completion())["choices"]

    def fails(self, piece):
        raise RuntimeError("a fault of the test")

    monkeypatch.setattr(Recorder, "take", fails)
    found = answer(client, completion(trace=True))
    assert found["choices"] == wanted
    trace = trace_of(client, found["id"])
    assert not trace.rounds
    assert trace.remarks
    last = chunks(client.get(f"/v1/traces/{found['id']}", headers={"Accept": "text/event-stream"}).text)[-1]
    assert last["end"]["finish_reason"] is None


def test_the_empty_page_needs_no_key_and_traces_do(folders):
    with serving(make_service(loaded(folders)), keys=("secret",)) as client:
        response = client.get("/")
        assert response.status_code == 200
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'sha256-" in policy
        assert "; connect-src 'self'" in policy  # and no other host
        assert "unsafe" not in policy
        assert "tiny" not in response.text
        assert client.get("/v1/traces/none").status_code == 401
        assert client.get("/v1/traces/none", headers={"Authorization": "Bearer secret"}).status_code == 404


def test_every_server_has_a_recorded_german_sentence(client):
    [trace] = from_json(client.get("/v1/traces/german").json())
    assert trace.source_text.startswith("Kannst du")
    translator = draftwood.load_translator(options={"backend": "torch"})
    method = Method(method="block", verifier="tolerance", beta=trace.beta, tau=trace.tau)
    again = translator.translate(trace.source_text, method=method, trace=True).trace
    assert [made.tokens for made in again.rounds] == [made.tokens for made in trace.rounds]
    events = client.get("/v1/traces/german", headers={"Accept": "text/event-stream"}).text
    assert '"translation":true' in events.replace(" ", "")
    assert events.count('"round"') == len(trace.rounds)
    found = client.get("/v1/traces/german/rounds/0?width=800").json()
    assert found["svg"] == unstyled(draw_specdec(trace, 0, width=760))
