"""What is recorded equals what happened, for every drafter, verifier, batch and kind of model."""

import pytest
import torch

from draftwood import Pair, load, load_translator
from draftwood.core.draws import Draw
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.core.rounds import STAGES
from draftwood.core.settings import Method
from draftwood.engine.decode import recorder_of
from draftwood.engine.requests import Request
from draftwood.sampling.settings import Sampling
from draftwood.trace.arrays import best_of
from draftwood.trace.record import Recorder
from draftwood.trace.settings import TraceSettings
from tests.engine.test_decode import VOCAB
from tests.helpers import Words, decoder, hidden_pair, tiny_gpt
from tests.tables import TableRunner
from tests.tiny_chat import save_chat
from tests.tiny_translation import sentences
from tests.trace.replay import replay
from tests.trace.runs import run


def pair():
    return Pair(tiny_gpt(VOCAB, 1), tiny_gpt(VOCAB, 2, layers=1), Words())


def watched(engine, method, sampling, rows=3, draft=None, tokens=64):
    """The pieces of a few texts, and their traces."""
    requests = [Request(prompt=[1, 2 + row], seed=row, limits=Limits(max_new_tokens=12 + row)) for row in range(rows)]
    kept = TraceSettings(tokens=tokens)
    made = recorder_of(engine, requests, sampling, method=Method(method=method), draft=draft, kept=kept)
    pieces = [piece for several in engine.stream(requests, sampling) for piece in several if made.take(piece)]
    return pieces, made.traces()


@pytest.mark.parametrize("verifier", ["recursive", "traversal"])
@pytest.mark.parametrize(("method", "shape"), [("rsd-s", "2x3"), ("rsd-c", "2-1-1"), ("iid", "2x2")])
def test_probabilities_chances_and_verdicts_are_those_of_the_round(method, shape, verifier):
    target, draft = (TableRunner(torch.randn(9, 9, generator=torch.Generator().manual_seed(s))) for s in (1, 2))
    pieces, traces = watched(decoder(target, draft, method, shape, verifier), method, Sampling(top_p=0.95))
    taken = [0] * len(traces)
    for piece in pieces:
        one = traces[piece.row].rounds[taken[piece.row]]
        taken[piece.row] += 1
        tree, row = piece.round.tree, piece.round_row
        real = [i for i, valid in enumerate(tree.host.valid[row]) if valid]
        target_logp, draft_logp = piece.round.target.settled.dense()[row], tree.draft_logp
        assert [node.token for node in one.nodes] == [tree.host.tokens[row][i] for i in real]
        assert [real[node] for node in one.path] == piece.round.paths[row]
        for i, node in zip(real[1:], one.nodes[1:], strict=True):
            parent = tree.host.parents[row][i]
            assert node.target_prob == pytest.approx(float(target_logp[parent, node.token].exp()), abs=1e-6)
            assert node.draft_prob == pytest.approx(float(draft_logp[row, parent, node.token].exp()), abs=1e-6)
        assert list(piece.round.seconds) == list(one.seconds) == list(STAGES)
    assert [len(trace.rounds) for trace in traces] == taken


def test_a_trace_is_bounded():
    [whole], [short] = run("rsd-c", "recursive"), run("rsd-c", "recursive", tokens=2, rounds=3)
    assert len(short.rounds) == 3
    assert short.dropped == len(whole.rounds) - 3
    assert short.tokens == whole.tokens
    for one, full in zip(short.rounds, whole.rounds, strict=False):
        assert one.path == full.path
        for node, other in zip(one.nodes, full.nodes, strict=True):
            assert node.target.tokens == other.target.tokens[:2]
            assert node.target.rest == pytest.approx(other.target.rest + sum(other.target.probs[2:]), abs=1e-6)


def test_shared_noise_is_that_of_the_run():
    [trace] = run("shared-noise", length=60)
    for one in trace.rounds:
        for i, choice in enumerate(one.choices[: len(one.path)]):
            node = one.nodes[one.path[i]]
            assert (choice.token, choice.noise) == (node.token, node.noise)
        assert one.draw != Draw.SHARED_NOISE or all(node.noise is not None for node in one.nodes[1:])
        assert all(node.draft_prob is not None for node in one.nodes[1:])


def test_why_trees_are_not_larger():
    assert {one.stop for trace in run("rsd-c") for one in trace.rounds} == {None}
    assert {one.stop for trace in run("dynamic") for one in trace.rounds} <= {"node budget", "length limit", "depth limit"}
    stops = {one.stop for trace in run("adaptive") for one in trace.rounds}
    assert "a round without a tree, to time it" in stops
    assert len(stops) > 1
    assert "a round without a tree, to time it" in {one.stop for trace in run("lookup") for one in trace.rounds}


@pytest.mark.parametrize("n", [200, 5000])
@pytest.mark.parametrize("count", [1, 8, 20, 70])
def test_equal_values_are_listed_by_rising_index(count, n):
    for seed in range(5):
        values = torch.randn(3, n, generator=torch.Generator().manual_seed(seed)).bfloat16().float().round()
        wanted = [sorted(range(n), key=lambda i: (-line[i], i))[:count] for line in values.tolist()]
        assert best_of(values, count)[1].tolist() == wanted


@pytest.mark.parametrize(("method", "verifier"), [("rsd-s", "recursive"), ("rsd-s", "traversal"), ("shared-noise", "auto")])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_k=9), Sampling(temperature=0.0)], ids=["all", "top_k", "T0"])
def test_draft_vocabularies_and_large_vocabularies(method, verifier, sampling, monkeypatch):
    monkeypatch.setattr("draftwood.sampling.truncation.LARGE", VOCAB)  # distributions cut by top-k are sparse
    target, draft = hidden_pair(tiny_gpt(VOCAB, 1), proposes=11)
    engine = decoder(target, draft, method, "2x3", verifier, greedy=sampling.greedy)
    _, traces = watched(engine, method, sampling, draft=draft)
    drafted = [node for trace in traces for one in trace.rounds for node in one.nodes[1:]]
    assert len(drafted) > 20
    assert all(node.draft_prob is not None and node.token < 11 for node in drafted)
    results = [replay(trace) for trace in traces]
    assert not [difference for found in results for difference in found.differences]
    assert sum(found.replayed for found in results) == sum(len(trace.rounds) for trace in traces)


def test_results_have_a_trace_only_where_it_is_wanted(monkeypatch):
    two = pair()
    results = two.generate(["hello", "world"], seed=1, max_new_tokens=8, temperature=1.0, trace={"tokens": 3, "rounds": 2})
    plain = two.generate(["hello", "world"], seed=1, max_new_tokens=8, temperature=1.0)
    for traced, other in zip(results, plain, strict=True):
        assert traced.token_ids == other.token_ids == traced.trace.tokens
        assert traced.trace.text == other.text
        assert traced.trace.texts[traced.token_ids[0]] == Words().decode(traced.token_ids[:1])
        assert traced.trace.target == "GPT2LMHeadModel"
        assert other.trace is None
        assert "trace" not in traced.to_json()
    monkeypatch.setattr(Recorder, "__init__", None)  # any use fails
    two.generate("hello", seed=1, max_new_tokens=8)
    with pytest.raises(TypeError):
        two.generate("hello", seed=1, max_new_tokens=8, trace=True)


@pytest.mark.parametrize(
    ("trace", "message"),
    [("yes", "give a TraceSettings"), (1, "give a TraceSettings"), ({"tokens": 0}, "1 or more"), ({"more": 1}, "'more'")],
)
def test_other_settings_are_refused(trace, message):
    with pytest.raises(ConfigError, match=message):
        pair().generate("hello", max_new_tokens=2, trace=trace)


def test_a_chat_has_a_trace_and_its_stream_is_refused(tmp_path):
    chat = load(save_chat(tmp_path))
    messages = [{"role": "user", "content": "hello"}]
    answer = chat.chat(messages, max_new_tokens=6, seed=1, trace=True)
    assert answer.trace is not None
    assert answer.trace.tokens == answer.token_ids
    with pytest.raises(ConfigError, match="recorder"):
        chat.chat(messages, max_new_tokens=6, stream=True, trace=True)


@pytest.mark.parametrize("draft", ["block", None])
@pytest.mark.parametrize("method", [Method(), Method(beta=300, tau=50.0)])
def test_a_translation(draft, method, translation):
    translator = load_translator(translation / "target", None if draft is None else translation / draft)
    if draft is None and method.beta:
        method = Method(method="ngram", beta=300, tau=50.0)
    [result, _] = translator.translate(sentences(2), method=method, max_new_tokens=8, trace={"tokens": 400})
    trace = result.trace
    assert trace is not None
    assert trace.source
    assert trace.tokens == result.token_ids
    assert (trace.mask is None) == (draft is None)
    assert (trace.beta, trace.tau) == (method.beta, method.tau)
    found = replay(trace)
    assert not found.differences
    if method.beta:
        assert all(one.choices[0].token == one.choices[0].kept[0] for one in trace.rounds)
