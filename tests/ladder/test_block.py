"""Blocks from one forward are the chains that are grown level by level. The tests of their distribution are those
of other drafts."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch

from draftwood.core.errors import ConfigError, ModelError, PairingError
from draftwood.core.limits import Limits
from draftwood.core.rounds import Round
from draftwood.core.settings import Method
from draftwood.draft.block import BlockChain
from draftwood.draft.level import LevelDrafter
from draftwood.draft.none import FAILED
from draftwood.draft.policies import ConstantBranching
from draftwood.engine.methods import BLOCK, build
from draftwood.engine.requests import Request
from draftwood.sampling.counter_rng import CounterRng
from draftwood.sampling.settings import Sampling
from tests.helpers import begin, decoder, sampler_of, tiny_runner
from tests.ladder.pairs import random_blocks
from tests.tables import BlockTableRunner

ROWS, VOCAB, LENGTH = 16, 7, 5
LIMITS = [LENGTH] * 8 + [0, 1, 2, 3] * 2
SAMPLINGS = pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.6, top_k=3), Sampling(temperature=0.0)])
STOPS = pytest.mark.parametrize("stops", [frozenset(), frozenset({1, 5})])


def blocks(length=LENGTH, seed=0):
    table = 1.5 * torch.randn(VOCAB, length, VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    table[3, 2] = -torch.inf  # after token 3, nothing is possible at the third position
    return BlockTableRunner(table)


def trees(drafter, sampling, limits, stops=frozenset()):
    texts = [[r % VOCAB, (3 * r) % VOCAB] for r in range(ROWS)]
    sampler = sampler_of(sampling, texts, VOCAB, stops=stops)
    rng = CounterRng(range(ROWS), greedy=sampling.greedy).at([1 + r for r in range(ROWS)])
    begin(drafter.runner, [t[:-1] for t in texts], roots=[t[-1] for t in texts])
    return drafter.draft([t[-1] for t in texts], sampler, rng, limits)


@SAMPLINGS
@STOPS
def test_a_block_is_the_chain_that_is_grown_level_by_level(sampling, stops):
    block = trees(BlockChain(blocks()), sampling, LIMITS, stops)
    levels = trees(LevelDrafter(blocks(), ConstantBranching((1,) * LENGTH)), sampling, LIMITS, stops)
    lengths = block.valid.sum(1) - 1
    assert len(set(lengths.tolist())) > 3
    assert max(lengths) == block.max_depth == block.size - 1
    assert np.array_equal(block.valid, levels.valid[:, : block.size])
    assert not levels.valid[:, block.size :].any()
    for name in ("tokens", "parents", "depths"):
        ours, theirs = getattr(block, name), getattr(levels, name)[:, : block.size]
        assert np.array_equal(ours[block.valid], theirs[block.valid])
    assert np.array_equal(block.ancestors[block.valid], levels.ancestors[:, : block.size, : block.size][block.valid])
    assert block.draw == levels.draw
    if sampling.greedy:
        assert block.draft_log_probs is None
    else:
        ours, theirs = block.draft_logp, levels.draft_logp[:, : block.size - 1]
        assert torch.equal(ours.nan_to_num(1.0), theirs.nan_to_num(1.0))


def test_a_forward_that_fails_is_a_root_alone_that_the_draft_has_not_read():
    drafter, read = BlockChain(blocks()), []

    def fails():
        raise ModelError("no forward")

    drafter.runner.score_block = fails
    drafter.runner.commit = lambda nodes, hidden: read.append(nodes)
    tree = trees(drafter, Sampling(), LIMITS)
    assert (tree.size, tree.stop) == (1, FAILED)
    drafter.commit(Mock(spec=Round, joined=[[0]] * ROWS, hidden=None))
    assert read == [[[]] * ROWS]


def test_the_tree_is_as_long_as_the_longest_row_needs():
    short = trees(BlockChain(blocks()), Sampling(), [2] * ROWS)
    assert (short.size, short.draft_logp.shape[1]) == (3, 2)
    runner = BlockChain(blocks())
    runner.runner.score_block = None  # without room it is not called
    none = trees(runner, Sampling(), [0] * ROWS)
    assert none.valid.tolist() == [[True]] * ROWS


@pytest.mark.parametrize("scores", [torch.full((VOCAB, 3, VOCAB), -torch.inf), torch.zeros(VOCAB, 3, VOCAB)])
@pytest.mark.parametrize("method", ["block", "chain", "iid", "rsd-c", "rsd-s", "dynamic", "shared-noise"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_without_any_possible_token_drafts_nothing(method, temperature, scores):
    """As a masked block has none where its positions end."""
    shape = {"chain": "3", "iid": "2x3", "rsd-s": "2x3"}.get(method)
    nodes = 6 if method == "shared-noise" else None  # a tree of fixed size: others are drafted where that pays
    draft = BlockTableRunner(scores.double())
    made = decoder(tiny_runner(VOCAB, 1), draft, method, shape, nodes=nodes, greedy=temperature == 0)
    request = Request(prompt=[1, 2], seed=3, limits=Limits(max_new_tokens=6))
    [result] = made.generate([request], Sampling(temperature=temperature))
    assert len(result.token_ids) == 6
    assert (result.stats.drafted > 0) == bool(scores.isfinite().all())


def test_auto_drafts_blocks_where_the_draft_fills_them():
    draft = random_blocks(3, 3)
    for greedy, verifier in ((False, "recursive"), (True, "greedy")):
        drafter, verify = build(Method(), draft, greedy=greedy)
        assert (type(drafter), drafter.runner.block, verify.name) == (BlockChain, draft.block, verifier)
    assert build(Method(shape="2"), draft, greedy=False)[0].runner.block == 2
    assert build(Method(nodes=5), draft, greedy=False)[0].name == "shared-noise"
    assert build(Method(method="shared-noise"), draft, greedy=False)[0].grower.shape.depth == draft.block
    assert build(Method(), tiny_runner(3, 1), greedy=False)[0].name == "adaptive"
    draft.block = 25
    assert build(Method(), draft, greedy=True)[0].runner.block == BLOCK < 25


@pytest.mark.parametrize(("method", "shape"), [
    ("block", "4"), ("chain", "4"), ("rsd-c", "1-1-1-1"), ("rsd-s", "2x4"), ("iid", "2x4"), ("dynamic", "2x4"),
    ("shared-noise", "2x4"), ("shared-noise", "1-1-1-1"),
])  # fmt: skip
def test_shapes_deeper_than_the_block_are_refused(method, shape):
    message = f"shape '{shape}' of method '{method}' is 4 tokens deep, but the draft fills blocks of 3"
    with pytest.raises(ConfigError, match=message):
        build(Method(method=method, shape=shape), random_blocks(3, 3), greedy=False)


def test_a_draft_that_fills_no_blocks_is_refused():
    with pytest.raises(PairingError, match=r"method 'block' needs .* \(TorchRunner\) does not: use --method chain"):
        build(Method(method="block"), tiny_runner(3, 1), greedy=False)
