"""Rung 5: relations that must hold between runs of the real engine on its real noise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
import torch

from draftwood.core.counter_rng import CounterRng, CounterRoundRng
from draftwood.core.limits import Limits
from draftwood.draft.adaptive.expand import GumbelExpander
from draftwood.draft.adaptive.lookup import PromptLookup
from draftwood.draft.level import LevelDrafter
from draftwood.draft.policies import ConstantBranching, StochasticBeam
from draftwood.engine.decode import Decoder
from draftwood.engine.requests import Request
from draftwood.sampling.settings import Sampling
from draftwood.verify.coupled import Coupled
from draftwood.verify.recursive import Recursive
from tests.helpers import Generous, always, best_first, decoder, ragged, tiny_runner

VOCAB = 23


@cache
def runner(seed: int, layers: int = 2):
    return tiny_runner(VOCAB, seed, layers=layers)


def texts(engine, sampling, requests=None):
    return [r.token_ids for r in engine.generate(requests or ragged(), sampling)]


METHODS = [
    ("chain", "3", None), ("iid", "2x3", None), ("rsd-c", "2-2-1", None), ("rsd-s", "3x3", None),
    ("shared-noise", "2-2", None), ("shared-noise", "3x4", 9), ("adaptive", None, None), ("ngram", "3", None),
    ("ar", None, None),
]  # fmt: skip
MATCHED = ("shared-noise", "adaptive")  # never accepted by chance


@pytest.mark.parametrize(("method", "shape", "nodes"), [
    ("chain", "3", None), ("iid", "2x3", None), ("rsd-c", "2-2-1", None), ("rsd-s", "3x3", None),
    ("shared-noise", "2-2", None), ("shared-noise", "1x4", 24),
])  # fmt: skip
@pytest.mark.parametrize("verifier", ["auto", "traversal"])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.6])
def test_the_target_as_its_own_drafter_accepts_every_token(method, shape, nodes, temperature, verifier):
    """It sees every error of cache, mask and position: every round of every row goes to full depth."""
    sampling = Sampling(temperature=temperature)
    if method == "shared-noise" and verifier == "traversal":
        pytest.skip("shared noise is matched, never accepted by chance")
    engine = decoder(runner(1), tiny_runner(VOCAB, 1), method, shape, verifier, nodes=nodes, greedy=sampling.greedy)
    full = {"3": 3, "2x3": 3, "2-2-1": 3, "3x3": 3, "2-2": 2, "1x4": 4}[shape]
    results = engine.generate(ragged(), sampling)
    for request, result in zip(ragged(), results, strict=True):
        rounds, rest = divmod(request.limits.max_new_tokens, full + 1)
        expected = [0] * (full + 1)
        expected[full] = rounds
        if rest:
            expected[rest - 1] += 1  # the last round is only as deep as the limit allows
        assert result.stats.histogram == expected


def test_control_a_drafter_that_keeps_other_nodes_is_seen():
    draft = tiny_runner(VOCAB, 1)
    engine = decoder(runner(1), draft, "chain", "3")
    commit = draft.commit
    draft.commit = lambda nodes, hidden=None: commit([path[:1] * len(path) for path in nodes])  # type: ignore[method-assign]
    results = engine.generate(ragged(), Sampling())
    assert any(r.stats.accepted[0] for r in results)


@pytest.mark.parametrize(("method", "shape", "nodes"), METHODS)
@pytest.mark.parametrize("verifier", ["auto", "traversal"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_batch_is_its_rows_one_by_one(method, shape, nodes, temperature, verifier):
    sampling = Sampling(temperature=temperature, top_p=0.9, repetition_penalty=1.1)
    verifier = "auto" if method in MATCHED else verifier
    engine = decoder(runner(1), runner(2, 1), method, shape, verifier, nodes=nodes, greedy=sampling.greedy)
    together = texts(engine, sampling)
    alone = [engine.generate([request], sampling)[0].token_ids for request in ragged()]
    assert together == alone
    assert len({tuple(t) for t in together}) == len(together)


class Fickle(Generous):
    """Decisions that differ from round to round: no draft, one level, many levels, and some or no pruning."""

    def __init__(self) -> None:
        self.calls = self.rounds = 0

    def another_level(self, depth: int, above: float, nodes: int) -> bool:
        self.calls += 1
        self.rounds += depth == 0
        return self.rounds % 4 > 0 if depth == 0 else self.calls % 5 > 0

    def tree_size(self, values: Sequence[float]) -> int:
        return min(len(values), (9, 5, 2, 0)[self.rounds // 2 % 4])


@pytest.mark.parametrize("lookup", [None, PromptLookup(6)])
def test_a_tree_that_grows_and_shrinks_at_will_changes_no_text(lookup):
    plain = texts(decoder(runner(1), None, "ar"), Sampling())
    for draft in (runner(2, 1), tiny_runner(VOCAB, 1)):
        drafter = best_first(draft, GumbelExpander(6), nodes=9, width=3, depth=5, budgets=always(Fickle()), lookup=lookup)
        engine = Decoder(runner(1), drafter, Coupled())
        assert texts(engine, Sampling()) == plain
        sizes = {p.round.tree.size for pieces in engine.stream(ragged(), Sampling()) for p in pieces}
        assert 1 in sizes  # rounds without a draft, whose tokens the drafter reads later
        assert len(sizes) > 2


@pytest.mark.parametrize(("method", "shape", "nodes"), METHODS)
def test_the_same_seed_gives_the_same_text_and_another_seed_another(method, shape, nodes):
    engine = decoder(runner(1), runner(2, 1), method, shape, nodes=nodes)
    first, again, other = (texts(engine, Sampling(), ragged(seed=seed)) for seed in (11, 11, 1))
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(("method", "shape", "nodes"), METHODS)
def test_coupled_text_does_not_depend_on_the_draft(method, shape, nodes):
    plain = texts(decoder(runner(1), None, "ar"), Sampling())
    for draft in (runner(2, 1), runner(3, 1), tiny_runner(VOCAB, 1)):
        assert texts(decoder(runner(1), draft, method, shape, "coupled", nodes=nodes), Sampling()) == plain


@pytest.mark.parametrize(("method", "shape", "nodes"), METHODS)
def test_greedy_text_does_not_depend_on_the_draft_or_the_verifier(method, shape, nodes):
    sampling = Sampling(temperature=0.0)
    plain = texts(decoder(runner(1), None, "ar", greedy=True), sampling)
    for verifier in ("greedy", "coupled", "recursive", "traversal"):
        if method in MATCHED and verifier in ("recursive", "traversal"):
            continue  # refused when it is built, whatever the temperature
        assert texts(decoder(runner(1), runner(2, 1), method, shape, verifier, nodes=nodes, greedy=True), sampling) == plain


def test_one_child_trees_are_chains():
    sampling = Sampling(temperature=0.8)
    chain = texts(decoder(runner(1), runner(2, 1), "chain", "3"), sampling)
    assert texts(decoder(runner(1), runner(2, 1), "rsd-c", "1-1-1"), sampling) == chain
    beam = Decoder(runner(1), LevelDrafter(runner(2, 1), StochasticBeam(1, 3)), Recursive())
    assert texts(beam, sampling) == chain


class Recorder:
    """Records the draft slots that a round uses; none may be used twice."""

    def __init__(self, source: CounterRng) -> None:
        self.source, self.slots = source, []

    def select(self, rows):
        return self

    def at(self, positions):
        real = CounterRoundRng(self.source, positions)
        seen: set[int] = set()
        self.slots.append(seen)

        def record(name, per_child):
            original = getattr(real, name)

            def recorded(log_q, *rest):
                count, first, of = (rest[0], rest[1], rest[2]) if name != "beam" else (1, rest[3], rest[4])
                slots = set(range(first, first + log_q.shape[1] * (count if per_child else 1)))
                assert not slots & seen
                assert max(slots) < of
                seen.update(slots)
                return original(log_q, *rest)

            setattr(real, name, recorded)

        record("ordered", False)
        record("independent", True)
        record("beam", False)
        return real


@pytest.mark.parametrize(("method", "shape"), [
    ("chain", "4"), ("iid", "3x3"), ("rsd-c", "2-2-2"), ("rsd-s", "3x4"),
])  # fmt: skip
def test_no_noise_is_used_twice_in_a_round(method, shape):
    engine = decoder(runner(1), runner(2, 1), method, shape)
    recorder = Recorder(CounterRng([3]))
    engine.generate([Request(prompt=[1, 2], limits=Limits(max_new_tokens=20))], Sampling(), noise=recorder)
    assert len(recorder.slots) > 3
    assert all(recorder.slots[:-2])


def test_support_that_runs_out_makes_smaller_trees_and_the_same_distribution_of_shapes():
    """Top-k 2 leaves two tokens: three children cannot be drawn, and none is made up."""
    engine = decoder(runner(1), runner(2, 1), "rsd-c", "3-3")
    for pieces in engine.stream(ragged(), Sampling(top_k=2)):
        tree = pieces[0].round.tree
        if tree.size > 4:
            assert tree.valid[:, 1:4].sum(1).max() <= 2
            assert tree.draft_logp is not None
            drawn = tree.draft_logp[:, 0].gather(1, tree.tokens[:, 1:4])
            assert (drawn[tree.valid[:, 1:4]] > -torch.inf).all()


def test_a_branching_larger_than_the_vocabulary_is_cut():
    engine = Decoder(runner(1), LevelDrafter(runner(2, 1), ConstantBranching((40,))), Recursive())
    rounds = list(engine.stream(ragged(), Sampling()))
    assert rounds[0][0].round.tree.valid[:, 1:].sum(1).tolist() == [VOCAB] * 4
    assert [len(text) for text in texts(engine, Sampling())] == [24, 21, 18, 15]
