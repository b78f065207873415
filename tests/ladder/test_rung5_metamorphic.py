"""Rung 5: relations that must hold between runs of the real engine on its real noise."""

import math
from functools import cache
from itertools import product

import pytest
import torch

from draftwood.core.errors import PairingError
from draftwood.core.limits import Limits
from draftwood.draft.adaptive.expand import GumbelExpander
from draftwood.draft.adaptive.lookup import PromptLookup
from draftwood.draft.level import LevelDrafter
from draftwood.draft.policies import ConstantBranching, StochasticBeam
from draftwood.engine.decode import Decoder
from draftwood.engine.requests import Request
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling.counter_rng import CounterRoundRng
from draftwood.sampling.rows import Row
from draftwood.sampling.settings import Sampling
from draftwood.verify.coupled import Coupled
from draftwood.verify.recursive import Recursive
from tests.helpers import Generous, always, best_first, decoder, ragged, tiny_gpt, tiny_runner
from tests.ladder.pairs import HIDDEN, SEQ2SEQ, VOCAB, pair, requests_of, self_drafting


def texts(engine, sampling, requests=None):
    return [r.token_ids for r in engine.generate(requests or ragged(), sampling)]


METHODS = [
    ("chain", "3", None), ("iid", "2x3", None), ("rsd-c", "2-2-1", None), ("rsd-s", "3x3", None), ("dynamic", None, None),
    ("dynamic", "3x5", 9), ("shared-noise", "2-2", None), ("shared-noise", "3x4", 9), ("adaptive", None, None),
    ("ngram", "3", None), ("ar", None, None),
]  # fmt: skip
MATCHED = ("shared-noise", "adaptive")  # never accepted by chance


@pytest.mark.parametrize(("kind", "method", "shape", "nodes", "full", "verifier"), [
    *(("model", *tree, verifier) for verifier in ("auto", "traversal") for tree in [
        ("chain", "3", None, 3), ("iid", "2x3", None, 3), ("rsd-c", "2-2-1", None, 3), ("rsd-s", "3x3", None, 3),
    ]),
    ("model", "shared-noise", "2-2", None, 2, "auto"), ("model", "shared-noise", "1x4", 24, 4, "auto"),
    *((kind, *tree, "auto") for kind in SEQ2SEQ for tree in [
        ("chain", "3", None, 3), ("rsd-c", "2-2-1", None, 3), ("rsd-s", "3x3", None, 3), ("shared-noise", "2-2", None, 2),
    ]),
])  # fmt: skip
@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.6])
def test_the_target_as_its_own_drafter_accepts_every_token(kind, method, shape, nodes, full, verifier, temperature):
    """It sees every error of cache, mask, position and source: every round of every row goes to full depth."""
    engine = decoder(*self_drafting(kind), method, shape, verifier, nodes=nodes, greedy=temperature == 0)
    requests = requests_of(kind)
    for request, result in zip(requests, engine.generate(requests, Sampling(temperature=temperature)), strict=True):
        rounds, rest = divmod(request.limits.max_new_tokens, full + 1)
        expected = [0] * (full + 1)
        expected[full] = rounds
        if rest:
            expected[rest - 1] += 1  # the last round is only as deep as the limit allows
        assert result.stats.histogram == expected


def test_control_a_drafter_that_keeps_other_nodes_is_seen():
    draft = tiny_runner(VOCAB, 1)
    engine = decoder(tiny_runner(VOCAB, 1), draft, "chain", "3")
    commit = draft.commit
    draft.commit = lambda nodes, hidden=None: commit([path[:1] * len(path) for path in nodes])
    results = engine.generate(ragged(), Sampling())
    assert any(r.stats.accepted[0] for r in results)


def test_control_a_drafter_that_reads_another_source_is_seen():
    target, draft = self_drafting("marian")
    encoded = draft._encoded
    draft._encoded = lambda rows: encoded([Row(tokens=row.tokens, source=[7, 3]) for row in rows])
    results = decoder(target, draft, "chain", "3").generate(requests_of("marian"), Sampling())
    assert any(r.stats.accepted[0] for r in results)


WAYS = [
    ("auto", 0.0, ()), ("auto", 1.0, ()), ("auto", 1.0, (0, 1, 2)), ("traversal", 0.0, ()), ("traversal", 1.0, ()),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "method", "shape", "nodes", "verifier", "temperature", "eos"), [
    *(("model", *tree, *way) for tree in METHODS for way in WAYS if way[0] == "auto" or tree[0] not in MATCHED),
    ("model", "ngram", "3", None, "recursive", 1.0, ()),  # "auto" of the other drawn trees is that
    *(("block", *tree, None, "auto", 1.0, eos) for eos in [(), (0, 1, 2)] for tree in [
        ("block", None), ("block", "3"), ("rsd-s", "2x4"), ("shared-noise", None),
    ]),
    *((kind, *tree, None, "auto", 1.0, ()) for kind in HIDDEN for tree in [
        ("chain", "3"), ("rsd-c", "2-2-1"), ("rsd-s", "3x3"), ("adaptive", None),
    ]),
    *((kind, *tree, None, "auto", 1.0, ()) for kind in SEQ2SEQ for tree in [
        ("ar", None), ("chain", "3"), ("rsd-s", "3x3"), ("shared-noise", "2-2"),
    ]),
])  # fmt: skip
def test_a_batch_is_its_rows_one_by_one(kind, method, shape, nodes, verifier, temperature, eos):
    """Rows end at tokens of their own, below which nothing is drafted; what other requests brought changes nothing."""
    sampling = Sampling(temperature=temperature, top_p=0.9, repetition_penalty=1.1)
    runners = pair(kind, VOCAB, 15 if kind in HIDDEN else None)
    engine = decoder(*runners, method, shape, verifier, nodes=nodes, greedy=sampling.greedy, eos=eos)
    requests = requests_of(kind, 16)
    together = texts(engine, sampling, requests)
    assert [texts(engine, sampling, [request])[0] for request in requests] == together
    assert texts(engine, sampling, requests[::-1]) == together[::-1]
    assert eos or len({tuple(t) for t in together}) == len(together)


class Fickle(Generous):
    """Decisions that differ from round to round: no draft, one level, many levels, and some or no pruning."""

    def __init__(self):
        self.calls = self.rounds = 0

    def drafts(self, above):
        self.rounds += 1
        return self.rounds % 4 > 0

    def gain(self, depth):
        self.calls += 1
        return 1.0 if self.calls % 5 else -math.inf

    def tree_size(self, values):
        return min(len(values), (9, 5, 2, 0)[self.rounds // 2 % 4])


@pytest.mark.parametrize("lookup", [None, PromptLookup(6)])
def test_a_tree_that_grows_and_shrinks_at_will_changes_no_text(lookup):
    target, draft = pair("model")
    plain = texts(decoder(target, None, "ar"), Sampling())
    for one in (draft, tiny_runner(VOCAB, 1)):
        drafter = best_first(one, GumbelExpander(6), nodes=9, width=3, depth=5, budgets=always(Fickle()), lookup=lookup)
        engine = Decoder(target, drafter, Coupled())
        assert texts(engine, Sampling()) == plain
        sizes = {p.round.tree.size for pieces in engine.stream(ragged(), Sampling()) for p in pieces}
        assert 1 in sizes  # rounds without a draft, whose tokens the drafter reads later
        assert len(sizes) > 2


@cache
def drafts():
    """Other models, the target itself, fewer and more tokens than it has, and at last a context that is too short."""
    models = [tiny_gpt(VOCAB, 3, layers=1), tiny_gpt(VOCAB, 1), tiny_gpt(VOCAB - 8, 2, layers=1)]
    models += [tiny_gpt(VOCAB + 9, 2, layers=1), tiny_gpt(VOCAB, 2, layers=1, context=12)]
    return [pair("model")[1], *(TorchRunner(model, drafts=True) for model in models)]


@pytest.mark.parametrize(("method", "shape", "nodes"), METHODS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_coupled_text_does_not_depend_on_the_draft(method, shape, nodes, temperature):
    """Also where a prompt holds tokens that the draft lacks; beyond the draft's context the target goes on alone."""
    sampling, target = Sampling(temperature=temperature), pair("model")[0]
    limits = Limits(max_new_tokens=8)
    requests = [*ragged(), Request(prompt=[1, VOCAB - 1, 3], limits=limits), Request(prompt=list(range(14)), limits=limits)]
    plain = texts(decoder(target, None, "ar", greedy=sampling.greedy), sampling, requests)
    for draft in drafts():
        engine = decoder(target, draft, method, shape, "coupled", nodes=nodes, greedy=sampling.greedy)
        results = engine.generate(requests, sampling)
        assert [r.token_ids for r in results] == plain
    if method not in ("adaptive", "ngram", "ar"):
        assert results[0].stats.drafted > 0 == results[-1].stats.drafted


@pytest.mark.parametrize(("method", "shape", "nodes"), METHODS)
def test_greedy_text_does_not_depend_on_the_draft_or_the_verifier(method, shape, nodes):
    sampling, (target, draft) = Sampling(temperature=0.0), pair("model")
    plain = texts(decoder(target, None, "ar", greedy=True), sampling)
    for verifier in ("greedy", "coupled", "recursive", "traversal"):
        if method in MATCHED and verifier in ("recursive", "traversal"):
            with pytest.raises(PairingError, match="shared_noise"):
                decoder(target, draft, method, shape, verifier, nodes=nodes, greedy=True)
        else:
            assert texts(decoder(target, draft, method, shape, verifier, nodes=nodes, greedy=True), sampling) == plain


@pytest.mark.parametrize(("kind", "backend", "method", "shape"), [
    *(("block", "torch", method, None) for method in ["block", "chain", "rsd-c", "rsd-s", "dynamic", "shared-noise"]),
    *((kind, backend, *tree) for kind, backend in [*product(HIDDEN, ["torch", "native"]), ("mtp", "native")] for tree in [
        ("chain", "3"), ("rsd-c", "2-2-1"), ("rsd-s", "3x3"), ("shared-noise", "2-2-1"), ("adaptive", None), ("ngram", "3"),
    ]),
])  # fmt: skip
def test_greedy_texts_of_a_batch_are_those_of_plain_decoding_one_by_one(kind, backend, method, shape):
    sampling, (target, draft) = Sampling(temperature=0.0), pair(kind, VOCAB, None if kind == "block" else 15, backend)
    plain = decoder(target, None, "ar", greedy=True)
    results = decoder(target, draft, method, shape, greedy=True).generate(ragged(), sampling)
    assert [r.token_ids for r in results] == [texts(plain, sampling, [request])[0] for request in ragged()]
    assert all(r.lossless for r in results)


def test_one_child_trees_are_chains():
    sampling, (target, draft) = Sampling(temperature=0.8), pair("model")
    chain = texts(decoder(target, draft, "chain", "3"), sampling)
    assert texts(decoder(target, draft, "rsd-c", "1-1-1"), sampling) == chain
    assert texts(Decoder(target, LevelDrafter(draft, StochasticBeam(1, 3)), Recursive()), sampling) == chain


@pytest.mark.parametrize(("method", "shape", "nodes"), [
    ("chain", "4", None), ("iid", "3x3", None), ("rsd-c", "2-2-2", None), ("rsd-s", "3x4", None), ("dynamic", "3x5", 9),
])  # fmt: skip
def test_no_noise_is_used_twice_in_a_round(method, shape, nodes, monkeypatch):
    rounds, arrivals = {}, CounterRoundRng._arrivals

    def recorded(self, log_q, first):
        seen, slots = rounds.setdefault(tuple(self._positions), set()), set(range(first, first + log_q.shape[1]))
        assert not slots & seen
        seen |= slots
        return arrivals(self, log_q, first)

    monkeypatch.setattr(CounterRoundRng, "_arrivals", recorded)
    engine = decoder(*pair("model"), method, shape, nodes=nodes)
    engine.generate([Request(prompt=[1, 2], limits=Limits(max_new_tokens=20))], Sampling())
    assert len(rounds) > 3
    assert max(map(len, rounds.values())) > 3


def test_support_that_runs_out_makes_smaller_trees_and_the_same_distribution_of_shapes():
    """Top-k 2 leaves two tokens: three children cannot be drawn, and none is made up."""
    engine = decoder(*pair("model"), "rsd-c", "3-3")
    for pieces in engine.stream(ragged(), Sampling(top_k=2)):
        tree = pieces[0].round.tree
        if tree.size > 4:
            assert tree.valid[:, 1:4].sum(1).max() <= 2
            assert tree.draft_logp is not None
            drawn = tree.draft_logp[:, 0].gather(1, torch.from_numpy(tree.tokens[:, 1:4]))
            assert (drawn.numpy()[tree.valid[:, 1:4]] > -torch.inf).all()


def test_a_branching_larger_than_the_vocabulary_is_cut():
    target, draft = pair("model")
    engine = Decoder(target, LevelDrafter(draft, ConstantBranching((40,))), Recursive())
    rounds = list(engine.stream(ragged(), Sampling()))
    assert rounds[0][0].round.tree.valid[:, 1:].sum(1).tolist() == [VOCAB] * 4
    assert [len(text) for text in texts(engine, Sampling())] == [24, 21, 18, 15]
