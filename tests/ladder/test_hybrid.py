"""Hybrid trees on rungs 1 and 3: exact with the drawn child first, and seen where one of their rules is broken."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from draftwood.core.draws import Draw
from draftwood.core.limits import Limits
from draftwood.core.settings import Sampling
from draftwood.draft.hybrid import HybridBeam, HybridBranching
from draftwood.draft.level import LevelDrafter
from draftwood.engine.decode import Decoder
from draftwood.engine.requests import Request
from draftwood.exactness.tape import total_variation
from draftwood.verify.recursive import Recursive
from draftwood.verify.traversal import Traversal
from tests.helpers import decoder
from tests.ladder.test_rung1_fractions import BOTH, Builder, F, V, accepted, distance, output_distribution
from tests.ladder.test_rung3_tape import (
    EXACT,
    WRONG,
    Wrapped,
    at_temperature,
    engine_distribution,
    reference_distribution,
    runners,
)
from tests.ladder.test_rung3_tape import other_temperature as other_distribution

# ---- rung 1: rational numbers ----


def best_of(distribution, count):
    return [x for x in sorted(range(V), key=lambda x: -distribution[x]) if distribution[x] > 0][:count]


def one_and_best(script, distribution, count):
    """One token drawn from the rest of the distribution, then the best ones; the drawn one is None where nothing is left."""
    certain = best_of(distribution, count - 1)
    rest = [F(0) if x in certain else q for x, q in enumerate(distribution)]
    return (script.fork(rest) if any(rest) else None), certain


def put(make, texts, node, token, drawn):
    texts[make.count] = (*texts[node.index], token)
    child = make.node(texts[make.count])
    child.drawn = drawn
    node.children.append(child)
    return child


def branching(script, shape, children=one_and_best):
    make = Builder()
    root = make.node(())
    texts, level = {0: ()}, [root]
    for count in shape:
        below = []
        for node in level:
            one, certain = children(script, node.draft, count)
            below += [put(make, texts, node, one, True)] if one is not None else []
            below += [put(make, texts, node, token, False) for token in certain]
        level = below
    return root, texts


def beam(script, width, length, drop=False):
    make = Builder()
    root = make.node(())
    texts, level = {0: ()}, [(root, F(1))]
    for _ in range(length):
        every = [(value * q, node, x) for node, value in level for x, q in enumerate(node.draft) if value * q > 0]
        chosen = sorted(every, key=lambda c: -c[0])[: width - 1]
        taken = {(node.index, x) for _, node, x in chosen}
        rest = {node.index: [q * ((node.index, x) not in taken) for x, q in enumerate(node.draft)] for node, _ in level}
        room = [value * sum(rest[node.index]) for node, value in level]
        below = []
        if max(room) > 0:
            at = max(range(len(level)), key=room.__getitem__)
            node = level[at][0]
            x = script.fork(rest[node.index])
            if not (drop and rest[node.index][x] < F(1, 4)):
                below.append((put(make, texts, node, x, True), room[at]))
        below += [(put(make, texts, node, x, False), value) for value, node, x in chosen]
        level = below
    return root, texts


SHAPES = [(1,), (2,), (3,), (1, 1), (2, 1), (1, 2), (2, 2), (3, 1), (3, 2)]
BEAMS = [(1, 2), (2, 1), (2, 2), (3, 1), (3, 2), (4, 2)]


@BOTH
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_hybrid_branching_is_exact(shape, verifier):
    assert distance(output_distribution(lambda s: branching(s, shape), Draw.HYBRID, verifier=verifier)) == 0


@BOTH
@pytest.mark.parametrize(("width", "length"), BEAMS)
def test_hybrid_beams_are_exact(width, length, verifier):
    assert distance(output_distribution(lambda s: beam(s, width, length), Draw.HYBRID, verifier=verifier)) == 0


def drawn_last(root):
    for node in [root, *root.children]:
        node.children.sort(key=lambda child: child.drawn)


def drawn_distribution_for_a_certain_child(root):
    """Another child stands first, and takes the drawn one's distribution."""
    if len(root.children) > 1:
        root.children.reverse()
        for child in root.children:
            child.drawn = child is root.children[0]


def drop_unlikely(root):
    for node in [root, *root.children]:
        node.children = [c for c in node.children if not c.drawn or node.draft[c.token] > F(1, 4)]


def from_the_whole_distribution(script, distribution, count):
    return script.fork(distribution), best_of(distribution, count - 1)


def best_of_the_others(script, distribution, count):
    one = script.fork(distribution)
    return one, best_of([F(0) if x == one else q for x, q in enumerate(distribution)], count - 1)


@BOTH
@pytest.mark.parametrize(("tree", "tamper"), [
    (partial(branching, shape=(2, 2)), drop_unlikely),
    (partial(branching, shape=(2, 2)), drawn_distribution_for_a_certain_child),
    (partial(beam, width=2, length=2), drawn_distribution_for_a_certain_child),
])  # fmt: skip
def test_control_hybrid_trees_that_are_changed_after_the_draw_are_seen(tree, tamper, verifier):
    assert distance(output_distribution(tree, Draw.HYBRID, tamper, verifier)) > F(1, 1000)


@BOTH
@pytest.mark.parametrize("children", [from_the_whole_distribution, best_of_the_others])
def test_control_hybrid_children_that_do_not_follow_their_distribution_are_seen(children, verifier):
    tree = lambda s: branching(s, (2, 1), children)  # noqa: E731
    assert distance(output_distribution(tree, Draw.HYBRID, verifier=verifier)) > F(1, 1000)


@BOTH
def test_control_a_beam_that_drops_what_it_drew_is_seen(verifier):
    assert distance(output_distribution(lambda s: beam(s, 2, 2, drop=True), Draw.HYBRID, verifier=verifier)) > F(1, 1000)


@BOTH
def test_the_drawn_child_may_stand_last_with_its_own_distribution_but_then_less_is_accepted(verifier):
    def last(script):
        root, texts = branching(script, (2, 1))
        drawn_last(root)
        return root, texts

    assert distance(output_distribution(last, Draw.HYBRID, verifier=verifier)) == 0
    assert accepted(last, Draw.HYBRID, verifier) < accepted(lambda s: branching(s, (2, 1)), Draw.HYBRID, verifier)


@BOTH
@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_verifier_could_accept_more_of_hybrid_siblings(count, verifier):
    """``p(A) + sum of min(p, Q_1)``: a certain token is output no more often than p, a drawn one neither more than Q_1."""
    root, _ = branching(None, ())
    certain = best_of(root.draft, count - 1)
    rest = [F(0) if x in certain else q for x, q in enumerate(root.draft)]
    most = sum(root.target[a] for a in certain) + sum(min(p, q / sum(rest)) for p, q in zip(root.target, rest, strict=True))
    assert accepted(lambda s: branching(s, (count,)), Draw.HYBRID, verifier) == most


# ---- rung 3: the real engine ----


class Tampered:
    """A growth that changes the levels of another one."""

    def __init__(self, inner, change):
        self.inner, self.change = inner, change
        self.name, self.draw, self.widths, self.branching = inner.name, inner.draw, inner.widths, inner.branching

    def expand(self, level, logp, rng):
        return self.change(self.inner, level, logp, rng)


def drops_unlikely_draws(inner, level, logp, rng):
    grown = inner.expand(level, logp, rng)
    p = logp.flatten(1).gather(1, grown.parents * logp.shape[-1] + grown.tokens.clamp(min=0))
    return replace(grown, tokens=torch.where(grown.drawn & (p < -1.2), -1, grown.tokens))


def draws_from_the_whole_distribution(inner, level, logp, rng):
    grown = inner.expand(level, logp, rng)
    slot, of = (level.depth, len(inner.widths)) if isinstance(inner, HybridBeam) else (level.first, level.of)
    at = grown.parents[:, : 1 if isinstance(inner, HybridBeam) else None : inner.branching]
    again = rng.independent(logp.take_along_dim(at.unsqueeze(-1), dim=1), 1, slot, of).squeeze(-1)
    tokens = grown.tokens.clone()
    tokens[grown.drawn] = torch.where(grown.tokens[grown.drawn] < 0, -1, again.flatten())
    return replace(grown, tokens=tokens)


def takes_another_for_the_drawn_one(inner, level, logp, rng):
    grown = inner.expand(level, logp, rng)
    return replace(grown, tokens=grown.tokens.flip(1), parents=grown.parents.flip(1))


@pytest.mark.parametrize("verifier", [Recursive, Traversal])
@pytest.mark.parametrize(
    "change", [drops_unlikely_draws, draws_from_the_whole_distribution, takes_another_for_the_drawn_one]
)
@pytest.mark.parametrize("policy", [HybridBranching((2,)), HybridBeam(2, 2)], ids=["2", "2x2"])
def test_control_hybrid_trees_that_break_a_rule_are_seen(policy, change, verifier):
    target, draft = runners(3)
    expected = reference_distribution(target.model, 2, at_temperature(1.0))
    honest = Decoder(target, LevelDrafter(draft, policy), verifier())
    assert total_variation(engine_distribution(honest, 2, Sampling()), expected) < EXACT
    broken = Decoder(target, LevelDrafter(draft, Tampered(policy, change)), verifier())
    assert total_variation(engine_distribution(broken, 2, Sampling()), expected) > WRONG


@BOTH
def test_a_drawn_child_that_does_not_stand_first_is_taken_for_certain_and_that_is_exact(verifier):
    """Any token may be tried as a certain one: then only the tree counts, not how it came about."""
    target, draft = runners(3)

    def draw_last(tree):
        flip = lambda part: torch.cat([part[:, :1], part[:, 1:].flip(1)], dim=1)  # noqa: E731
        return replace(tree, tokens=flip(tree.tokens), drawn=flip(tree.drawn)) if tree.drawn is not None else tree

    engine = decoder(target, draft, "hybrid", "2", verifier)
    other = Decoder(target, Wrapped(engine.pipeline.drafter, draw_last), engine.pipeline.verifier)
    assert (
        total_variation(
            engine_distribution(other, 2, Sampling()), reference_distribution(target.model, 2, at_temperature(1.0))
        )
        < EXACT
    )


@BOTH
def test_control_another_recorded_distribution_is_seen(verifier):
    target, draft = runners(3)
    engine = decoder(target, draft, "hybrid", "2x2", verifier)
    lying = Decoder(target, Wrapped(engine.pipeline.drafter, other_distribution), engine.pipeline.verifier)
    assert (
        total_variation(
            engine_distribution(lying, 2, Sampling()), reference_distribution(target.model, 2, at_temperature(1.0))
        )
        > WRONG
    )


# ---- the trees themselves ----


def first_tree(shape, sampling, batch=1, vocab=3):
    target, draft = runners(vocab)
    engine = decoder(target, draft, "hybrid", shape, greedy=sampling.greedy)
    requests = [Request(prompt=(0, 1), seed=s, limits=Limits(max_new_tokens=20)) for s in range(batch)]
    stream = engine.stream(requests, sampling)
    return next(stream)[0].round.tree


@pytest.mark.parametrize("shape", ["3-2", "3x3", "2x3"])
def test_the_draw_stands_first_and_never_among_its_certain_siblings(shape):
    tree = first_tree(shape, Sampling(), batch=64, vocab=4)
    tokens, _, _ = tree.lists
    seen = set()
    for row in range(tree.rows):
        for children in tree.children[row]:
            drawn = [tree.drawn[row, child].item() for child in children]
            assert not any(drawn[1:])
            assert len({tokens[row][child] for child in children}) == len(children)
            distribution = tree.draft_logp[row, tree.parents[row, children[0]]] if children else None
            certain = [distribution[tokens[row][c]].item() for c in children if not tree.drawn[row, c]]
            assert certain == sorted(certain, reverse=True)
            seen.add((len(children), drawn[:1] == [True]))
    if shape == "2x3":
        assert seen == {(0, False), (1, True), (1, False), (2, True)}  # every kind of node that this beam can have


@pytest.mark.parametrize("shape", ["3-2", "3x3"])
def test_at_temperature_0_all_children_are_the_best(shape):
    tree = first_tree(shape, Sampling(temperature=0.0), vocab=4)
    assert (tree.draw, tree.drawn, tree.draft_logp) == (Draw.POINT_MASS, None, None)
    _, draft = runners(4)
    with torch.no_grad():
        distribution = draft.model(input_ids=torch.tensor([[0, 1]])).logits[0, -1]
    assert tree.tokens[0, 1:4].tolist() == distribution.topk(3).indices.tolist()


@pytest.mark.parametrize(("shape", "top_k", "first"), [
    ("3", 1, 1), ("3", 2, 2), ("3", 0, 3), ("9", 0, 4), ("9x2", 0, 4), ("3x2", 1, 1),
])  # fmt: skip
def test_no_child_is_made_up_where_the_support_is_smaller(shape, top_k, first):
    tree = first_tree(shape, Sampling(top_k=top_k), batch=32, vocab=4)
    kept = tree.draft_logp[:, 0] > -torch.inf
    for row in range(tree.rows):
        tokens = [tree.lists[0][row][child] for child in tree.children[row][0]]
        assert len(set(tokens)) == len(tokens) == first
        assert kept[row, tokens].all()
