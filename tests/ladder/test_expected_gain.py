"""Drawn trees that end where another level is not expected to bring enough: exact, a function of the row alone, and what
they expect follows its formula."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from draftwood.core.errors import ConfigError
from draftwood.core.methods import taking
from draftwood.core.settings import Method
from draftwood.draft.expected_gain import ExpectedGain
from draftwood.draft.level import LevelDrafter
from draftwood.draft.policies import ConstantBranching
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import build
from draftwood.engine.requests import Request
from draftwood.sampling.settings import Sampling
from draftwood.verify.recursive import Recursive
from draftwood.verify.traversal import Traversal
from tests.adaptive.clocked import ClockedRunner
from tests.helpers import ragged, tiny_runner
from tests.ladder.test_rung3_tape import BOTH, EXACT, WRONG, Wrapped, distance, runners
from tests.tables import TableRunner

# ---- rung 3: the joint distribution ----


class Depths:
    """A drafter whose trees' depths are written down, with the limits of their rows."""

    def __init__(self, inner):
        self.inner, self.seen = inner, set()
        self.name, self.draw, self.runner, self.commit = inner.name, inner.draw, inner.runner, inner.commit

    def draft(self, root, sampler, rng, limits):
        tree = self.inner.draft(root, sampler, rng, limits)
        reached = (tree.depths * tree.valid).amax(dim=1).tolist()
        self.seen |= set(zip(reached, limits, strict=True))
        return tree

    def after(self, limit):
        return {depth for depth, seen in self.seen if seen == limit}


CASES = [
    ("chain", "2", 3, 4, 0.6), ("chain", "3", 2, 4, 0.765), ("rsd-c", "2-2", 3, 3, 0.85), ("rsd-c", "2-1", 2, 4, 0.93),
    ("rsd-s", "2x2", 3, 3, 0.7), ("rsd-s", "2x3", 2, 4, 0.93), ("iid", "2x2", 2, 4, 0.93),
]  # fmt: skip


def engine(target, draft, method, shape, min_gain, verifier="auto", *, greedy=False):
    chosen = Method(method=method, shape=shape, verifier=verifier, min_gain=min_gain)
    drafter, verify = build(chosen, draft, greedy=greedy)
    return Decoder(target, drafter, verify)


@BOTH
@pytest.mark.parametrize(("method", "shape", "vocab", "length", "min_gain"), CASES)
def test_trees_of_chosen_depth_give_the_targets_joint_distribution(method, shape, vocab, length, min_gain, verifier):
    target, draft = runners(vocab)
    made = engine(target, draft, method, shape, min_gain, verifier)
    counting = Depths(made.pipeline.drafter)
    assert distance(Decoder(target, counting, made.pipeline.verifier), length) < EXACT
    assert len(counting.after(length - 1)) > 1  # in the first round, after one prompt, what was drawn decided the depth


@BOTH
@pytest.mark.parametrize(("method", "shape", "min_gain"), [("chain", "2", 0.6), ("rsd-s", "2x2", 0.7)])
def test_control_a_level_that_is_taken_back_is_seen(method, shape, min_gain, verifier):
    """Where the newest nodes promise too little, they are dropped themselves: drawn tokens decide on their own nodes."""
    target, draft = runners(3)
    made = engine(target, draft, method, shape, min_gain, verifier)

    def take_back(tree):
        poor = (tree.depths * tree.valid).amax(dim=1) == 1
        return replace(tree, valid=tree.valid & ~(poor.unsqueeze(1) & (tree.depths == 1)))

    assert distance(Decoder(target, Wrapped(made.pipeline.drafter, take_back), made.pipeline.verifier), 3) > WRONG


class Tampered:
    """A growth that changes the levels of another one."""

    def __init__(self, inner, change):
        self.inner, self.change = inner, change
        self.name, self.draw, self.widths, self.branching = inner.name, inner.draw, inner.widths, inner.branching

    def expand(self, level, logp, rng):
        return self.change(self.inner, level, logp, rng)


@pytest.mark.parametrize("verifier", [Recursive, Traversal])
def test_control_a_level_that_is_decided_on_after_its_draw_is_seen(verifier):
    target, draft = runners(3)

    def only_likely(inner, level, logp, rng):
        grown = inner.expand(level, logp, rng)
        p = logp.flatten(1).gather(1, grown.parents * logp.shape[-1] + grown.tokens.clamp(min=0))
        return replace(grown, tokens=torch.where(p.amax(dim=1, keepdim=True) < -0.9, -1, grown.tokens))

    assert (
        distance(Decoder(target, LevelDrafter(draft, Tampered(ConstantBranching((1,)), only_likely)), verifier()), 2) > WRONG
    )


# ---- rung 5: relations between runs on the real noise ----
ROWS = [("chain", "4", 0.45), ("rsd-c", "2-2-1", 0.6), ("rsd-s", "3x4", 0.6), ("iid", "2x3", 0.6)]


@cache
def runner(seed, layers=2):
    return tiny_runner(23, seed, layers=layers, spread=0.9)


def texts(engine, sampling, requests):
    return [r.token_ids for r in engine.generate(requests, sampling)]


@BOTH
@pytest.mark.parametrize(("method", "shape", "min_gain"), ROWS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_batch_is_its_rows_and_the_same_seed_gives_the_same_text(method, shape, min_gain, temperature, verifier):
    sampling = Sampling(temperature=temperature, top_p=0.95)
    made = engine(runner(1), runner(2, 1), method, shape, min_gain, verifier, greedy=sampling.greedy)
    counting = Depths(made.pipeline.drafter)
    together = texts(Decoder(runner(1), counting, made.pipeline.verifier), sampling, ragged())
    assert together == texts(made, sampling, ragged())
    alone = [texts(made, sampling, [request])[0] for request in ragged()]
    assert together == alone
    assert len({depth for depth, limit in counting.seen if limit >= 4}) > 1
    if sampling.greedy:
        assert together == texts(engine(runner(1), None, "ar", None, None, greedy=True), sampling, ragged())


@pytest.mark.parametrize(("method", "shape", "min_gain"), ROWS)
def test_coupled_text_does_not_depend_on_the_depth(method, shape, min_gain):
    plain = texts(engine(runner(1), None, "ar", None, None), Sampling(), ragged())
    assert texts(engine(runner(1), runner(2, 1), method, shape, min_gain, "coupled"), Sampling(), ragged()) == plain


@BOTH
@pytest.mark.parametrize(("method", "shape", "min_gain"), [("chain", "4", 0.45), ("rsd-c", "2-2-1", 0.75)])
def test_the_target_as_its_own_drafter_accepts_every_level_that_was_drawn(method, shape, min_gain, verifier):
    """Errors of the draft's memory after trees that ended early would be seen."""
    made = engine(runner(1), tiny_runner(23, 1, spread=0.9), method, shape, min_gain, verifier)
    depths = set()
    for pieces in made.stream(ragged(40), Sampling()):
        tree = pieces[0].round.tree
        drawn = (tree.depths * tree.valid).amax(dim=1).tolist()
        assert [len(piece.round.paths[piece.round_row]) for piece in pieces] == [drawn[piece.round_row] for piece in pieces]
        depths |= set(drawn)
    assert len(depths) > 2


def test_least_0_is_the_full_shape_and_least_1_drafts_hardly_anything():
    full = texts(engine(runner(1), runner(2, 1), "rsd-s", "3x4", None), Sampling(), ragged())
    assert texts(engine(runner(1), runner(2, 1), "rsd-s", "3x4", 0.0), Sampling(), ragged()) == full
    made = engine(runner(1), runner(2, 1), "rsd-s", "3x4", 1.0)
    assert sum(r.stats.drafted for r in made.generate(ragged(), Sampling())) == 0


# ---- what is expected ----


@pytest.mark.parametrize(
    ("min_gain", "forwards", "depth"), [(0.7, 1, 0), (0.5, 2, 1), (0.3, 3, 2), (0.2, 3, 3), (0.0, 3, 3)]
)
def test_a_level_is_drawn_where_it_is_expected_to_bring_enough_and_no_forward_follows_the_last(min_gain, forwards, depth):
    """Two equally likely tokens everywhere: a draw counts 0.625, so three levels count 0.625, 0.39 and 0.24."""
    table = torch.tensor([[0.0, 0.0, -torch.inf]] * 3, dtype=torch.float64)
    counted = ClockedRunner(table, [0.0], lambda *_: 0.0)
    drafter = LevelDrafter(counted, ConstantBranching((1, 1, 1)), min_gain)
    stream = Decoder(TableRunner(table), drafter, Recursive()).stream([Request(prompt=[0], seed=1)], Sampling())
    tree = next(stream)[0].round.tree
    stream.close()
    assert (counted.forwards, tree.size - 1) == (forwards, depth)


def test_shares_of_siblings():
    """Of two draws at ``a = 0.625`` one is accepted with 0.625 + 0.375 * 0.625, and each has its share of that."""
    expected = ExpectedGain(0.6, rows=2)
    distributions = torch.tensor([[[0.5, 0.5]], [[1.0, 0.0]]]).log()
    assert torch.equal(expected.mask(distributions, 2), distributions)
    expected.descend([[0, 1], [0, -1]], [[0, 0], [0, 0]])
    assert expected._reach == [[0.625, 0.375 * 0.625], [1.0, 0.0]]
    below = torch.tensor([[[0.2, 0.8], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]]]).log()
    gain = 0.625 * (1 + 0.8**2) / 2 + 0.375 * 0.625 * 0.625
    assert 0.625 < gain < 0.66
    left = expected.mask(below, 1)
    assert torch.equal(left, below)
    expected._min_gain = 0.625 + 1e-6
    left = expected.mask(below, 1)
    assert torch.equal(left[0], below[0])
    assert (left[1] == -torch.inf).all()
    assert expected.open
    expected._min_gain = gain + 1e-6
    assert (expected.mask(below, 1) == -torch.inf).all()
    assert not expected.open


@pytest.mark.parametrize("name", ["auto", "ar", "ngram", "shared-noise"])
def test_least_is_refused_where_no_levels_are_drawn(name):
    others = ", ".join(taking("min_gain"))
    with pytest.raises(ConfigError, match=rf"min_gain is 0.5, but method '{name}' .* choose one of {others}"):
        Method(method=name, min_gain=0.5)


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan"), True, "much"])
def test_least_is_a_number_from_0_to_1(wrong):
    with pytest.raises(ConfigError, match=r"min_gain is .* give a"):
        Method(method="chain", min_gain=wrong)
    assert build(Method(method="chain", min_gain=1), TableRunner(torch.zeros(1)), greedy=False)[0].min_gain == 1.0
