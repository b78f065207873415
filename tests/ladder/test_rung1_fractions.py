"""Rung 1: every draft tree times every branch of the verifier, in rational numbers: total variation exactly zero.

The plain verifiers do the arithmetic; the trees are enumerated from the sampling rules themselves (Gumbel-top-k is an
ordered sample without replacement; a stochastic beam is an exponential race over the leaves).
"""

from collections import defaultdict
from fractions import Fraction
from itertools import product

import pytest

from draftwood.core.draws import Draw
from tests.reference import PlainNode, match, recursive, traversal

V = 3
F = Fraction
# Distributions by prefix; some tokens are impossible for one model and possible for the other.
TARGET = {
    (): [F(1, 2), F(1, 3), F(1, 6)],
    (0,): [F(1, 10), F(7, 10), F(1, 5)],
    (1,): [F(0), F(2, 5), F(3, 5)],
    (2,): [F(1, 3), F(1, 3), F(1, 3)],
}
DRAFT = {
    (): [F(1, 5), F(1, 5), F(3, 5)],
    (0,): [F(1, 2), F(1, 2), F(0)],
    (1,): [F(4, 9), F(4, 9), F(1, 9)],
    (2,): [F(1, 7), F(2, 7), F(4, 7)],
}
LAST = [F(2, 11), F(4, 11), F(5, 11)]  # the target's distribution after two tokens


def target_distribution(text):
    return TARGET.get(tuple(text), LAST)


class Script:
    """Fork by fork enumeration with rational weights."""

    def __init__(self, script):
        self.script, self.played, self.weight, self.others = script, [], F(1), []

    def fork(self, weights):
        total = sum(weights)
        possible = [i for i, w in enumerate(weights) if w > 0]
        at = len(self.played)
        choice = self.script[at] if at < len(self.script) else possible[0]
        if at >= len(self.script):
            self.others += [[*self.played, i] for i in possible[1:]]
        self.played.append(choice)
        self.weight *= F(weights[choice]) / total
        return choice


def enumerate_exactly(run):
    distribution, waiting = defaultdict(F), [[]]
    while waiting:
        script = Script(waiting.pop())
        distribution[run(script)] += script.weight
        waiting += script.others
    assert sum(distribution.values()) == 1
    return dict(distribution)


class Builder:
    """A tree under construction, and the texts of its nodes."""

    def __init__(self):
        self.texts = {}
        self.root = self._node(())

    def _node(self, text):
        node = PlainNode(len(self.texts), (-1, *text)[-1], len(text), target_distribution(text), DRAFT.get(text))
        self.texts[node.index] = text
        return node

    def child(self, node, token):
        node.children.append(self._node((*self.texts[node.index], token)))
        return node.children[-1]


def expand(script, shape, sampler):
    """A tree of constant branching; ``sampler(script, distribution, count)`` gives the children's tokens."""
    tree = Builder()
    level = [tree.root]
    for count in shape:
        level = [tree.child(node, token) for node in level for token in sampler(script, node.draft, count)]
    return tree.root, tree.texts


def without_replacement(script, distribution, count):
    left, out = list(distribution), []
    for _ in range(count):
        if sum(left) == 0:
            break
        out.append(script.fork(left))
        left[out[-1]] = F(0)
    return out


def independent(script, distribution, count):
    return [script.fork(distribution) for _ in range(count)]


def likeliest(script, distribution, count):
    return sorted(range(V), key=lambda x: -distribution[x])[:count]


def beam(script, width, length):
    """Stochastic beam search as an exponential race over prefixes (see tape.py), in rationals."""
    tree = Builder()
    level = [(tree.root, F(1))]
    for _ in range(length):
        left = {n.index: [w * q for q in n.draft] for n, w in level}
        arrived, chosen = [], []
        while len(chosen) < width:
            runners = [(n, x) for n, _w in level[: len(arrived)] for x in range(V) if left[n.index][x] > 0]
            rate = [1 - sum(w for _n, w in level[: len(arrived)])] if len(arrived) < len(level) else []
            rates = [left[n.index][x] for n, x in runners] + rate
            if not any(rates):
                break
            event = script.fork(rates)
            if event < len(runners):
                node, x = runners[event]
            else:
                node = level[len(arrived)][0]
                arrived.append(node)
                x = script.fork(left[node.index])
            chosen.append((node, x, left[node.index][x]))
            left[node.index][x] = F(0)
        level = [(tree.child(node, x), weight) for node, x, weight in chosen]
    return tree.root, tree.texts


def verify(script, root, draw, verifier):
    """Accepted nodes and the next token."""

    def coin(_node, p, q):
        yes = min(F(1), F(p) / q) if q else F(int(p > 0))
        return script.fork([yes, 1 - yes]) == 0

    if verifier == "recursive":
        return recursive(root, draw, coin, script.fork)
    return traversal(root, draw, script.fork, script.fork)


def output_distribution(tree, draw, tamper=None, verifier="recursive"):
    """The distribution of the first two tokens: what a round leaves open is filled in by the target."""

    def run(script):
        root, texts = tree(script)
        if tamper is not None:
            tamper(root)
        path, token = verify(script, root, draw, verifier)
        text = [*(texts[path[-1]] if path else ()), token]
        while len(text) < 2:
            text.append(script.fork(target_distribution(text)))
        return tuple(text[:2])

    return enumerate_exactly(run)


EXPECTED = {(a, b): TARGET[()][a] * TARGET[(a,)][b] for a, b in product(range(V), repeat=2)}


def distance(distribution):
    return sum(abs(distribution.get(k, F(0)) - v) for k, v in EXPECTED.items()) / 2


BOTH = pytest.mark.parametrize("verifier", ["recursive", "traversal"])
SHAPES = [(1,), (2,), (3,), (1, 1), (2, 1), (1, 2), (2, 2), (3, 1)]


@BOTH
@pytest.mark.parametrize(("sampler", "draw", "shape"), [
    *((without_replacement, Draw.WITHOUT_REPLACEMENT, shape) for shape in SHAPES),
    *((independent, Draw.INDEPENDENT, shape) for shape in [(1,), (2,), (3,), (2, 1)]),
    *((likeliest, Draw.POINT_MASS, shape) for shape in [(1,), (2,), (3,), (2, 2)]),
])  # fmt: skip
def test_trees_of_constant_branching_are_exact(sampler, draw, shape, verifier):
    assert distance(output_distribution(lambda s: expand(s, shape, sampler), draw, verifier=verifier)) == 0


@BOTH
@pytest.mark.parametrize(("width", "length"), [(1, 2), (2, 1), (2, 2), (3, 1), (3, 2)])
def test_rsd_s_is_exact(width, length, verifier):
    assert distance(output_distribution(lambda s: beam(s, width, length), Draw.WITHOUT_REPLACEMENT, verifier=verifier)) == 0


def test_greedy_match_gives_the_greedy_text():
    best = lambda node: max(range(V), key=lambda x: node.target[x])  # noqa: E731
    for shape in SHAPES:
        root, texts = expand(None, shape, likeliest)
        path, token = match(root, best)
        text = [*(texts[path[-1]] if path else ()), token]
        expected = [best(PlainNode(0, -1, 0, target_distribution(text[:i]), None)) for i in range(len(text))]
        assert text == expected


def reverse(root):
    for node in [root, *root.children]:
        node.children.reverse()


def sort_by_draft(root):
    if root.draft is not None:
        root.children.sort(key=lambda c: -root.draft[c.token])
        for child in root.children:
            sort_by_draft(child)


def drop_unlikely(root):
    root.children = [c for c in root.children if root.draft[c.token] > F(1, 4)]


@BOTH
@pytest.mark.parametrize(("tree", "tamper"), [
    *((lambda s: expand(s, (2, 1), without_replacement), tamper) for tamper in [reverse, sort_by_draft, drop_unlikely]),
    (lambda s: beam(s, 2, 2), sort_by_draft),
])  # fmt: skip
def test_control_siblings_out_of_draw_order_or_dropped_are_seen(tree, tamper, verifier):
    assert distance(output_distribution(tree, Draw.WITHOUT_REPLACEMENT, tamper, verifier)) > F(1, 1000)


@BOTH
@pytest.mark.parametrize(("sampler", "draw"), [
    (without_replacement, Draw.INDEPENDENT), (independent, Draw.WITHOUT_REPLACEMENT), (likeliest, Draw.WITHOUT_REPLACEMENT),
])  # fmt: skip
def test_control_a_wrong_distribution_of_siblings_is_seen(sampler, draw, verifier):
    assert distance(output_distribution(lambda s: expand(s, (2,), sampler), draw, verifier=verifier)) > F(1, 1000)


def block_verification(root):
    """The distribution of the number of accepted tokens of a chain, in the letters of Block Verification (arXiv 2403.10444):
    the target is ``M_b``, the draft ``M_s``, and the last accepted position the largest ``i`` with ``eta_i <= h_i``."""
    node, p_i, h = root, F(1), []
    while node.children:
        m_b, m_s, (child,) = node.target, node.draft, node.children
        if node is not root:
            s_i = sum(max(p_i * b - s, 0) for b, s in zip(m_b, m_s, strict=True))
            h.append(s_i / (s_i + 1 - p_i))
        p_i = min(p_i * m_b[child.token] / m_s[child.token], F(1))
        node = child
    h.append(p_i)
    distribution, above = [], F(1)
    for h_i in reversed(h):
        distribution.append(above * h_i)
        above *= 1 - h_i
    return [above, *reversed(distribution)]


def test_on_a_chain_traversal_is_block_verification():
    def run(script):
        root, _ = expand(script, (1, 1), without_replacement)
        expected = block_verification(root)
        got = enumerate_exactly(lambda s: len(traversal(root, Draw.WITHOUT_REPLACEMENT, s.fork, s.fork)[0]))
        assert [got.get(n, 0) for n in range(3)] == expected
        return tuple(expected)

    assert len(enumerate_exactly(run)) > 3  # chains that differ were seen


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (2, 2)], ids=str)
def test_traversal_accepts_more_than_recursion_on_the_same_trees(shape):
    def accepted(verifier):
        def run(script):
            root, _ = expand(script, shape, without_replacement)
            return len(verify(script, root, Draw.WITHOUT_REPLACEMENT, verifier)[0])

        return sum(n * p for n, p in enumerate_exactly(run).items())

    assert accepted("traversal") > accepted("recursive")
