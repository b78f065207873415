"""Blocks from one forward: exact at every position, under every way of growing trees."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from draftwood.core.counter_rng import CounterRng
from draftwood.core.errors import ConfigError, PairingError
from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.draft.adaptive.drafter import BestFirstDrafter
from draftwood.draft.adaptive.expand import GumbelExpander
from draftwood.draft.adaptive.growers import BlockGrower, LevelGrower, TreeShape
from draftwood.draft.level import LevelDrafter
from draftwood.draft.policies import ConstantBranching
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import BLOCK, build
from draftwood.engine.requests import Request
from draftwood.exactness.tape import total_variation
from draftwood.sampling.settings import Sampling
from draftwood.verify.coupled import Greedy
from draftwood.verify.recursive import Recursive
from draftwood.verify.traversal import Traversal
from tests.helpers import RAGGED, begin, decoder, sampler_of, tiny_runner
from tests.ladder.test_rung3_tape import (
    EXACT,
    PROMPT,
    SHARED,
    WRONG,
    Wrapped,
    at_temperature,
    engine_distribution,
    other_temperature,
    reference_distribution,
)
from tests.tables import BlockTableRunner

BOTH = pytest.mark.parametrize("verifier", ["recursive", "traversal"])


def random_blocks(vocab, block):
    generator = torch.Generator().manual_seed(2)
    return BlockTableRunner(1.5 * torch.randn(vocab, block, vocab, generator=generator, dtype=torch.float64))


@cache
def pair(vocab: int, block: int = 3):
    """A target, and a draft whose block depends on the root alone."""
    return tiny_runner(vocab, 1), random_blocks(vocab, block)


@BOTH
@pytest.mark.parametrize(("method", "shape", "vocab", "length"), [
    ("block", "1", 3, 3), ("block", "2", 3, 3), ("block", None, 2, 4), ("auto", "2", 2, 4),
    ("chain", "2", 3, 3), ("rsd-c", "2-1", 2, 4), ("rsd-s", "2x2", 2, 4), ("iid", "2x2", 2, 4), ("dynamic", "2x2", 3, 3),
])  # fmt: skip
def test_blocks_give_the_targets_joint_distribution(method, shape, vocab, length, verifier):
    target, draft = pair(vocab)
    engine = decoder(target, draft, method, shape, verifier, nodes=4 if method == "dynamic" else None)
    distribution = engine_distribution(engine, length, Sampling())
    assert total_variation(distribution, reference_distribution(target.model, length, at_temperature(1.0))) < EXACT


def penalised(scores, text):
    """As by a repetition penalty of 1.7 and a frequency penalty of 0.3."""
    scores = scores.clone()
    for token in set(text):
        scores[token] = scores[token] * 1.7 if scores[token] < 0 else scores[token] / 1.7
    for token in text[len(PROMPT) :]:
        scores[token] -= 0.3
    return scores.softmax(-1)


@BOTH
@pytest.mark.parametrize(("sampling", "expected", "eos"), [
    (Sampling(temperature=0.7), at_temperature(0.7), None), (Sampling(temperature=0.7), at_temperature(0.7), 2),
    (Sampling(repetition_penalty=1.7, frequency_penalty=0.3), penalised, None),
])  # fmt: skip
def test_temperature_penalties_and_an_end_token_inside_the_block(verifier, sampling, expected, eos):
    """Penalties see the drafted tokens before each place."""
    target, draft = pair(3)
    engine = decoder(target, draft, "block", "2", verifier, eos=() if eos is None else (eos,))
    distribution = engine_distribution(engine, 3, sampling)
    assert total_variation(distribution, reference_distribution(target.model, 3, expected, eos=eos)) < EXACT


@pytest.mark.parametrize(("method", "shape"), [
    ("block", "2"), ("shared-noise", "2-2"), ("shared-noise", "1-1-1"), ("shared-noise", "2x2"),
])  # fmt: skip
def test_coupled_text_is_plain_decodings_text_for_every_noise(method, shape):
    target, draft = pair(3)
    distribution = engine_distribution(decoder(target, draft, method, shape, "coupled"), 3, Sampling(), SHARED)
    plain = engine_distribution(decoder(target, None, "ar", None, "coupled"), 3, Sampling(), SHARED)
    assert len(plain) > 3
    assert total_variation(distribution, plain) < EXACT


def end_at_unlikely(tree):
    """A level that depends on its own token: the chain ends before a drafted token that the draft finds unlikely."""
    if tree.draft_logp is None:
        return tree
    own = tree.draft_logp.gather(2, tree.tokens[:, 1:, None]).squeeze(2)
    likely = torch.nn.functional.pad((own > -1.2).long().cumprod(1), (1, 0), value=1).bool()
    return replace(tree, valid=tree.valid & likely)


@pytest.mark.parametrize("verifier", [Recursive, Traversal])
@pytest.mark.parametrize(("change", "length"), [(other_temperature, 2), (end_at_unlikely, 3)])
def test_control_trees_that_were_drawn_otherwise_than_they_say_are_seen(change, length, verifier):
    target, draft = pair(3)
    expected = reference_distribution(target.model, length, at_temperature(1.0))
    engine = Decoder(target, Wrapped(chain(draft, 2), change), verifier())
    assert total_variation(engine_distribution(engine, length, Sampling()), expected) > WRONG


# ---- the same chain as level by level ----

ROWS, VOCAB, LENGTH = 16, 7, 5
LIMITS = [LENGTH] * 8 + [0, 1, 2, 3] * 2
SAMPLINGS = pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.6, top_k=3), Sampling(temperature=0.0)])
STOPS = pytest.mark.parametrize("stops", [frozenset(), frozenset({1, 5})])


def blocks(length=LENGTH, seed=0):
    table = 1.5 * torch.randn(VOCAB, length, VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    table[3, 2] = -torch.inf  # after token 3, nothing is possible at the third position
    return BlockTableRunner(table)


def chain(runner, length=LENGTH):
    return build(Method(method="block", shape=str(length)), runner, greedy=False)[0]


def trees(drafter, sampling, limits, stops=frozenset()):
    texts = [[r % VOCAB, (3 * r) % VOCAB] for r in range(ROWS)]
    sampler = sampler_of(sampling, texts, VOCAB, stops=stops)
    rng = CounterRng(range(ROWS), greedy=sampling.greedy).at([1 + r for r in range(ROWS)])
    begin(drafter.runner, [t[:-1] for t in texts])
    return drafter.draft(torch.tensor([t[-1] for t in texts]), sampler, rng, limits)


@SAMPLINGS
@STOPS
def test_a_block_is_the_chain_that_is_grown_level_by_level(sampling, stops):
    block = trees(chain(blocks()), sampling, LIMITS, stops)
    levels = trees(LevelDrafter(blocks(), ConstantBranching((1,) * LENGTH)), sampling, LIMITS, stops)
    lengths = block.valid.sum(1) - 1
    assert len(set(lengths.tolist())) > 3
    assert max(lengths) == block.max_depth == block.size - 1
    assert torch.equal(block.valid, levels.valid[:, : block.size])
    assert not levels.valid[:, block.size :].any()
    for name in ("tokens", "parents", "depths"):
        ours, theirs = getattr(block, name), getattr(levels, name)[:, : block.size]
        assert torch.equal(ours[block.valid], theirs[block.valid])
    assert torch.equal(block.ancestors[block.valid], levels.ancestors[:, : block.size, : block.size][block.valid])
    assert (block.draw, block.branching) == (levels.draw, levels.branching)
    if sampling.greedy:
        assert block.draft_log_probs is None
    else:
        drawn = block.valid[:, 1:]
        assert torch.equal(block.draft_logp[drawn], levels.draft_logp[:, : block.size - 1][drawn])


class ByLevels:
    """A block's scores behind the interface of a runner that scores level by level."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        if name in ("ahead", "block"):
            raise AttributeError(name)
        return getattr(self._inner, name)


@SAMPLINGS
@STOPS
@pytest.mark.parametrize("nodes", [1, 4, 11])
def test_a_tree_of_shared_noise_from_one_forward_is_the_one_grown_level_by_level(sampling, stops, nodes):
    shape = TreeShape(nodes, nodes, LENGTH)
    made = at_once(blocks(), shape)
    grown = BestFirstDrafter(LevelGrower(ByLevels(blocks()), GumbelExpander(3), shape))
    tree, other = (trees(drafter, sampling, LIMITS, stops) for drafter in (made, grown))
    assert tree.valid.sum(1).tolist() == other.valid.sum(1).tolist()
    assert max(tree.valid.sum(1)) == nodes + 1
    assert [paths(tree, row) for row in range(ROWS)] == [paths(other, row) for row in range(ROWS)]
    assert max(len(path) for row in range(ROWS) for path in paths(tree, row)) > min(2, nodes - 1)


def at_once(runner, shape):
    return BestFirstDrafter(BlockGrower(runner, expander := GumbelExpander(3), shape, LevelGrower(runner, expander, shape)))


def paths(tree, row):
    return sorted(tuple(prefix) for prefix in tree.prefixes()[row] if prefix is not None)


def test_a_tree_from_one_forward_asks_once_and_only_for_its_depth():
    counts = []
    runner = blocks()
    ahead = runner.score_block
    runner.score_block = lambda root, count: (counts.append(count), ahead(root, count))[1]
    trees(at_once(runner, TreeShape(9, 3, 4)), Sampling(), [LENGTH] * ROWS)
    assert counts == [4]
    trees(at_once(runner, TreeShape(9, 3, 4)), Sampling(), [0] * ROWS)
    assert counts == [4]


def test_the_tree_is_as_long_as_the_longest_row_needs():
    short = trees(chain(blocks()), Sampling(), [2] * ROWS)
    assert (short.size, short.draft_logp.shape[1]) == (3, 2)
    drafter = chain(blocks())
    drafter.runner.score_block = None  # without room it is not called
    none = trees(drafter, Sampling(), [0] * ROWS)
    assert none.valid.tolist() == [[True]] * ROWS


# ---- whole texts ----

PROMPTS = RAGGED
WORDS = 23


def engine(method="block", verifier="auto", *, greedy=False, eos=(), draft=None, **more):
    draft = draft or random_blocks(WORDS, 6)
    made = build(Method(method=method, verifier=verifier, **more), draft, greedy=greedy)
    return Decoder(tiny_runner(WORDS, 1), *made, eos=eos)


def requests(new=9):
    return [Request(prompt=p, seed=i, limits=Limits(max_new_tokens=new + 3 * i)) for i, p in enumerate(PROMPTS)]


@pytest.mark.parametrize(("method", "shape"), [("block", None), ("block", "3"), ("rsd-s", "2x4"), ("shared-noise", None)])
@pytest.mark.parametrize("eos", [(), (0, 1, 2)])
def test_a_batch_is_its_rows_one_by_one(method, shape, eos):
    together = [r.token_ids for r in engine(method, shape=shape, eos=eos).generate(requests(), Sampling())]
    alone = [engine(method, shape=shape, eos=eos).generate([r], Sampling())[0].token_ids for r in requests()]
    assert together == alone


@pytest.mark.parametrize("method", ["block", "chain", "rsd-c", "rsd-s", "dynamic", "shared-noise"])
def test_temperature_zero_writes_the_greedy_text(method):
    zero = Sampling(temperature=0.0)
    plain = Decoder(tiny_runner(WORDS, 1), None, Greedy()).generate(requests(), zero)
    results = engine(method, greedy=True).generate(requests(), zero)
    assert [r.token_ids for r in results] == [r.token_ids for r in plain]
    assert all(r.lossless for r in results)


@pytest.mark.parametrize("scores", [torch.full((VOCAB, 3, VOCAB), -torch.inf), torch.zeros(VOCAB, 3, VOCAB)])
@pytest.mark.parametrize("method", ["block", "chain", "iid", "rsd-c", "rsd-s", "dynamic", "shared-noise"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_without_any_possible_token_drafts_nothing(method, temperature, scores):
    """As a masked block has none where its positions end."""
    shape = {"chain": "3", "iid": "2x3", "rsd-s": "2x3"}.get(method)
    nodes = 6 if method == "shared-noise" else None  # a tree of fixed size: others are drafted where that pays
    made = build(Method(method=method, shape=shape, nodes=nodes), BlockTableRunner(scores.double()), greedy=temperature == 0)
    results = Decoder(tiny_runner(VOCAB, 1), *made).generate(
        [Request(prompt=[1, 2], seed=3, limits=Limits(max_new_tokens=6))], Sampling(temperature=temperature)
    )
    assert len(results[0].token_ids) == 6
    assert (results[0].stats.drafted > 0) == bool(scores.isfinite().all())


# ---- names and shapes ----


def test_auto_drafts_blocks_where_the_draft_fills_them():
    draft = random_blocks(3, 3)
    for greedy, verifier in ((False, "recursive"), (True, "greedy")):
        drafter, verify = build(Method(), draft, greedy=greedy)
        assert (drafter.name, drafter.grower.shape.depth, verify.name) == ("block", draft.block, verifier)
    assert build(Method(shape="2"), draft, greedy=False)[0].grower.shape.depth == 2
    assert build(Method(nodes=5), draft, greedy=False)[0].name == "shared-noise"
    assert build(Method(method="shared-noise"), draft, greedy=False)[0].grower.shape.depth == draft.block
    assert build(Method(), tiny_runner(3, 1), greedy=False)[0].name == "adaptive"
    draft.block = 25
    assert build(Method(), draft, greedy=True)[0].grower.shape.depth == BLOCK < 25


@pytest.mark.parametrize(("method", "shape"), [
    ("block", "4"), ("chain", "4"), ("rsd-c", "1-1-1-1"), ("rsd-s", "2x4"), ("iid", "2x4"), ("dynamic", "2x4"),
    ("shared-noise", "2x4"), ("shared-noise", "1-1-1-1"),
])  # fmt: skip
def test_shapes_deeper_than_the_block_are_refused(method, shape):
    message = f"shape '{shape}' of method '{method}' is 4 tokens deep, but the draft fills blocks of 3"
    with pytest.raises(ConfigError, match=message):
        build(Method(method=method, shape=shape), pair(3)[1], greedy=False)


def test_a_draft_that_fills_no_blocks_is_refused():
    with pytest.raises(PairingError, match=r"method 'block' needs .* \(TorchRunner\) does not.*train spec-drafter"):
        build(Method(method="block"), tiny_runner(3, 1), greedy=False)
    with pytest.raises(PairingError, match="needs a draft model"):
        build(Method(method="block"), None, greedy=False)
    with pytest.raises(ConfigError, match="shape '2-2' does not fit method 'block': give a length such as 10"):
        build(Method(method="block", shape="2-2"), pair(3)[1], greedy=False)
