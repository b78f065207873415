"""Trees that the native library grows in one call are those that are grown level by level."""

import math
import random

import pytest
import torch

from draftwood.core.errors import NumericsError
from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.draft.adaptive.block_grower import BlockGrower
from draftwood.draft.adaptive.budget import Budget
from draftwood.draft.adaptive.controllers import Controllers
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import build
from draftwood.engine.requests import Request
from draftwood.runners.factory import make_runners
from draftwood.sampling.settings import Sampling
from tests.differences import difference
from tests.helpers import tiny_hidden, tiny_model, tiny_published

VOCAB = 40
SAMPLINGS = {
    "greedy": [Sampling(temperature=0.0)],
    "whole": [Sampling(temperature=1.0)],
    "cut": [Sampling(temperature=0.7, top_k=9, top_p=0.9)],
    "mixed": [Sampling(temperature=0.0), Sampling(temperature=1.3, min_p=0.05), Sampling(temperature=1.0)],
}


class Recorded(Budget):
    """A budget of given gains and prices that records its levels."""

    def __init__(self, gain, price):
        self.records, self._gain, self._price = [], gain, price

    def gain(self, depth):
        return self._gain**depth

    def price(self, nodes):
        return self._price * nodes

    def refuse_level(self, depth, above):
        self.records.append((depth, above))

    def end_level(self, depth, above, values, nodes, seconds):
        assert seconds is None or 0.0 < seconds < 10.0
        self.records.append((depth, above, *values, nodes))


class Fickle(Budget):
    """Decisions that differ from round to round."""

    def __init__(self, seed):
        self.records, self._random = [], random.Random(seed)

    def drafts(self, above):
        return self._random.random() < 0.8

    def gain(self, depth):
        return self._random.choice([1.0, 1.0, 0.3, -math.inf])

    def price(self, nodes):
        return 0.05 * nodes

    def tree_size(self, values):
        return self._random.randint(0, len(values))


def drafter_of(kind, model):
    return tiny_published(model, kind, proposes=30) if kind == "dflash" else tiny_hidden(model, block=5, proposes=30)


def written(kind, samplings, budget, monkeypatch, *, takes=None, stops=(), method="adaptive"):
    """Texts, their trees with what they say of themselves, and what was learnt."""
    with monkeypatch.context() as patch:
        if takes is not None:
            patch.setattr(BlockGrower, "takes", takes)
        model = tiny_model("native", VOCAB, 1)
        target, draft = make_runners(model, drafter_of(kind, model), backend="native")[:2]
        controllers = Controllers(budget=budget)
        greedy = all(one.greedy for one in samplings)
        drafter, verifier = build(Method(method=method), draft, greedy=greedy, controllers=controllers)
        trees, drafts = [], []
        with Decoder(target, drafter, verifier).batch() as batch:
            for row, sampling in enumerate(samplings):
                limits = Limits(max_new_tokens=17 + row, stop_token_ids=stops, ignore_eos=True)
                batch.add(Request(prompt=[3, 1, 4, 1, 5, 3, 1, 4][row:], seed=row, limits=limits), sampling)
            while len(batch):
                for piece in batch.step():
                    tree = piece.round.tree
                    parts = tree.tokens, tree.parents, tree.valid
                    trees.append((piece.row, piece.tokens, *(part.tolist() for part in parts), tree.stop))
                    if tree.ranking is not None:
                        drawn = [row for row, count in enumerate(tree.drafted) if count]
                        drafts.append(tree.ranking().dense()[drawn, 0])  # of roots: others may have no children
        return trees, drafts, budget.records, controllers.acceptance.weights


@pytest.mark.parametrize("kind", ["hidden", "dflash"])
@pytest.mark.parametrize("samplings", SAMPLINGS)
@pytest.mark.parametrize(("gain", "price"), [(1.0, 0.0), (0.8, 0.2), (0.5, 0.05)])
def test_trees_are_those_that_are_grown_level_by_level(kind, samplings, gain, price, monkeypatch):
    grown = [
        written(kind, SAMPLINGS[samplings], Recorded(gain, price), monkeypatch, takes=takes, stops=(7, 9))
        for takes in (None, lambda *_: False)
    ]
    (trees, drafts, records, weights), (by_level, of_levels, to_budget, learnt) = grown
    assert trees == by_level
    assert any(len(tree[2][0]) > 3 for tree in trees)
    assert [len(one) for one in records] == [len(one) for one in to_budget]
    assert all(one == pytest.approx(other, rel=1e-5) for one, other in zip(records, to_budget, strict=True))
    assert weights == pytest.approx(learnt, rel=1e-4)
    assert len(drafts) == len(of_levels) > 3
    pairs = [[part.exp().nan_to_num(2.0) for part in pair] for pair in zip(drafts, of_levels, strict=True)]  # NaN: not ready
    assert max(difference(*pair) for pair in pairs) < 1e-5


@pytest.mark.parametrize("kind", ["hidden", "dflash"])
@pytest.mark.parametrize("samplings", SAMPLINGS)
def test_trees_that_grow_at_will_change_no_text(kind, samplings, monkeypatch):
    texts = []
    for seed in (1, 2, None):
        method = "adaptive" if seed else "ar"
        trees = written(kind, SAMPLINGS[samplings], Fickle(seed), monkeypatch, stops=(7,), method=method)[0]
        texts.append({row: [token for at, new, *_ in trees if at == row for token in new] for row, *_ in trees})
        assert (len({len(tree[2][0]) for tree in trees}) > 4) == bool(seed)
    assert texts[0] == texts[1] == texts[2]


def test_control_other_prices_give_other_trees(monkeypatch):
    found = [written("hidden", SAMPLINGS["whole"], Recorded(0.8, price), monkeypatch)[0] for price in (0.0, 0.2)]
    assert found[0] != found[1]


def test_the_library_grows_trees_of_scores_that_are_only_scaled(monkeypatch):
    calls, expand = [], BlockGrower.expand
    monkeypatch.setattr(BlockGrower, "expand", lambda self, draft: calls.append(1) or expand(self, draft))
    written("hidden", SAMPLINGS["mixed"], Recorded(1.0, 0.0), monkeypatch)
    assert calls
    calls.clear()
    written("hidden", [Sampling(temperature=1.0, repetition_penalty=1.2)], Recorded(1.0, 0.0), monkeypatch)
    assert not calls


def test_scores_that_are_no_numbers_are_an_error_of_the_draft(monkeypatch):
    model = tiny_model("native", VOCAB, 1)
    drafter = tiny_hidden(model, block=5)
    with torch.no_grad():
        drafter.markov_out.weight.fill_(torch.nan)
    monkeypatch.setattr("tests.adaptive.test_block_grower.drafter_of", lambda *_: drafter)
    with pytest.raises(NumericsError, match="draft model's scores hold NaN"):
        written("hidden", SAMPLINGS["whole"], Recorded(1.0, 0.0), monkeypatch)
