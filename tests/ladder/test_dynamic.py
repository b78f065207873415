"""Sampled trees grown best-first and cut to a budget: exact, since a node's priority does not depend on its own token."""

from __future__ import annotations

import math

import pytest
import torch

from draftwood.core.draws import Draw
from draftwood.core.errors import ConfigError
from draftwood.core.settings import Method
from draftwood.draft.adaptive.candidates import Children
from draftwood.draft.adaptive.expand import SampledExpander
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import build
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling.settings import Sampling
from draftwood.verify.recursive import Recursive
from draftwood.verify.traversal import Traversal
from tests.helpers import best_first, ragged, tiny_gpt, tiny_runner
from tests.ladder.test_rung3_tape import EXACT, WRONG, distance, runners

BOTH = pytest.mark.parametrize("verifier", [Recursive, Traversal])


class Shapes:
    """A drafter that notes the forms of its trees, per depth limit."""

    def __init__(self, inner):
        self.inner, self.seen = inner, set()
        self.name, self.draw, self.runner, self.commit = inner.name, inner.draw, inner.runner, inner.commit

    def draft(self, root, sampler, rng, limits):
        tree = self.inner.draft(root, sampler, rng, limits)
        for limit, parents, valid in zip(limits, tree.host.parents, tree.host.valid, strict=True):
            self.seen.add((limit, tuple(p for p, real in zip(parents, valid, strict=True) if real)))
        return tree


@pytest.mark.parametrize(("nodes", "width", "length", "vocab", "new", "verifier"), [
    (4, 2, 2, 3, 3, Recursive), (4, 2, 2, 3, 3, Traversal), (3, 2, 2, 4, 3, Traversal)
])  # fmt: skip
def test_cut_trees_give_the_targets_joint_distribution(nodes, width, length, vocab, new, verifier):
    target, draft = runners(vocab)
    drafter = Shapes(best_first(draft, SampledExpander(2), nodes=nodes, width=width, depth=length))
    assert distance(Decoder(target, drafter, verifier()), new) < EXACT
    first_round = {form for limit, form in drafter.seen if limit == new - 1}
    assert len(first_round) > 1  # after one and the same prompt, what was drawn decided the form
    assert max(map(len, first_round)) <= nodes + 1


@BOTH
def test_distribution_under_temperature_and_top_p(verifier):
    def warped(scores, _text):
        p = (scores / 0.7).softmax(-1)
        ordered, tokens = p.sort(descending=True)
        kept = torch.zeros_like(p).scatter(0, tokens, ordered * (ordered.cumsum(0) - ordered < 0.8))
        return kept / kept.sum()

    target, draft = runners(4)
    engine = Decoder(target, best_first(draft, SampledExpander(2), nodes=3, width=2, depth=2), verifier())
    assert distance(engine, 2, Sampling(temperature=0.7, top_p=0.8), warped) < EXACT


class Vain:
    """Children have their own probability as priority, so a node's own token decides whether the node stays."""

    name, draw, count = "dynamic", Draw.WITHOUT_REPLACEMENT, 2

    def expand(self, logp, rng, depth, first):
        drawn = rng.ordered(logp, 2, first, 0).tolist()
        return [
            [
                Children(own := [t for t in tokens if t >= 0], [max(float(distribution[t]), math.log(1e-30)) for t in own])
                for tokens, distribution in zip(row, distributions, strict=True)
            ]
            for row, distributions in zip(drawn, logp, strict=True)
        ]

    def learn(self, children, choice):
        pass


@BOTH
def test_control_values_that_know_their_own_token_are_seen(verifier):
    target, draft = runners(3)
    assert distance(Decoder(target, best_first(draft, Vain(), nodes=1, width=1, depth=1), verifier()), 2) > WRONG


VOCAB = 23


def decoder(verifier="auto", *, greedy=False, nodes=9, shape="3x5", layers=1, seed=2, eos=()):
    draft = TorchRunner(tiny_gpt(VOCAB, seed, layers=layers), drafts=True)
    drafter, verify = build(Method(method="dynamic", nodes=nodes, shape=shape, verifier=verifier), draft, greedy=greedy)
    return Decoder(tiny_runner(VOCAB, 1), drafter, verify, eos=eos)


@pytest.mark.parametrize("verifier", ["recursive", "traversal", "coupled"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.6, top_k=7)])
@pytest.mark.parametrize("eos", [(), (0, 1, 2)])  # rows differ: nothing is drafted below an end of text
def test_a_batch_is_its_rows_one_by_one_and_a_seed_repeats_its_text(verifier, sampling, eos):
    together = [r.token_ids for r in decoder(verifier, eos=eos).generate(ragged(18), sampling)]
    alone = [decoder(verifier, eos=eos).generate([r], sampling)[0].token_ids for r in ragged(18)]
    assert together == alone
    again = decoder(verifier, eos=eos)
    again.generate(ragged(18)[::-1], sampling)  # what other requests brought changes nothing
    assert [r.token_ids for r in again.generate(ragged(18), sampling)] == together


class Slots:
    """Children as ever, and a note of the noise that they were drawn with: per draft, the slots of each level."""

    def __init__(self, inner):
        self.inner, self.name, self.draw, self.count = inner, inner.name, inner.draw, inner.count
        self.slots = []

    def expand(self, logp, rng, depth, first):
        if depth == 0:
            self.slots.append([])
        self.slots[-1].append(range(first, first + logp.shape[1]))
        return self.inner.expand(logp, rng, depth, first)

    def learn(self, children, choice):
        self.inner.learn(children, choice)


def test_every_node_has_a_slot_of_noise_of_its_own_that_only_the_depth_decides():
    slots_of = Slots(SampledExpander(3))
    draft = TorchRunner(tiny_gpt(VOCAB, 2, layers=1), drafts=True)
    drafter = best_first(draft, slots_of, nodes=9, width=3, depth=5)
    Decoder(tiny_runner(VOCAB, 1), drafter, Recursive(), eos=(0, 1, 2)).generate(ragged(18), Sampling())
    assert max(map(len, slots_of.slots)) > 2  # levels deep enough to collide
    assert len({tuple(map(len, levels)) for levels in slots_of.slots}) > 1  # frontiers of different size
    for levels in slots_of.slots:
        slots = [slot for level in levels for slot in level]
        assert len(set(slots)) == len(slots)
        assert [level.start for level in levels] == [0, 1, 4, 7, 10][: len(levels)]


@pytest.mark.parametrize("verifier", ["recursive", "traversal"])
def test_the_target_as_its_own_drafter_accepts_every_first_choice(verifier):
    made = decoder(verifier, layers=2, seed=1)
    for result in made.generate(ragged(18), Sampling()):
        histogram = result.stats.histogram
        assert histogram[0] <= 1  # only the last round may have room for nothing


def test_temperature_zero_writes_the_greedy_text():
    sampling = Sampling(temperature=0.0)
    plain, verify = build(Method(method="ar"), None, greedy=True)
    expected = [r.token_ids for r in Decoder(tiny_runner(VOCAB, 1), plain, verify).generate(ragged(18), sampling)]
    assert [r.token_ids for r in decoder(greedy=True).generate(ragged(18), sampling)] == expected


def test_options_are_read_and_bad_ones_refused():
    drafter, verifier = build(Method(method="dynamic"), tiny_runner(VOCAB, 2), greedy=False)
    assert (drafter.grower.shape.nodes, verifier.name, drafter.draw) == (14, "traversal", Draw.WITHOUT_REPLACEMENT)
    with pytest.raises(ConfigError, match="does not fit method 'dynamic': give width x length"):
        build(Method(method="dynamic", shape="2-2"), tiny_runner(VOCAB, 2), greedy=False)
