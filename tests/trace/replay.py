"""A recorded run, checked against the slow reference verifiers (``tests/reference.py``) with the recorded numbers.

The reference walks the tree again and must keep the same path and the same next token. That needs whole distributions: a
round is replayed if every distribution that the reference may read is stored completely (``TraceSettings.tokens``). Of other
rounds the stored numbers must agree with one another: a node is accepted exactly where its uniform number is below its
chance, and what was accepted is the path.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import accumulate
from typing import final

import torch

from draftwood.core.draws import Draw
from draftwood.sampling.counter_rng import CounterRng
from tests import reference
from tests.reference import PlainNode

_COMPLETE = 1e-6  # float32 distributions sum to 1 within this
_NEAR = 1e-5  # rounding may decide a comparison that is closer than this


@final
@dataclass
class Replay:
    """The result.

    Attributes:
        replayed: rounds that the reference verifier walked.
        agreed: rounds whose stored numbers were compared with one another only.
        differences: what was found, with the round's number first.
    """

    replayed: int = 0
    agreed: int = 0
    differences: list[str] = field(default_factory=list)


def replay(trace):
    """Check all rounds of a trace."""
    found, vocab = Replay(), 1 + _largest_token(trace.rounds)
    for one in trace.rounds:
        problems = _disagreements(trace, one)
        if not problems and _is_complete(trace, one):
            found.replayed += 1
            path, token = _VERDICTS[trace.verifier](trace, one, vocab)
            if (path, token) != (one.path, one.next_token):
                problems = [f"the reference keeps {path} and {token}, the trace {one.path} and {one.next_token}"]
        else:
            found.agreed += 1
        found.differences += [f"round {one.number}: {problem}" for problem in problems]
    return found


def _disagreements(trace, one):
    """Stored numbers that contradict one another."""
    problems = []
    for trial in one.trials:
        if trial.chance is None or trial.uniform is None:
            continue
        near = abs(trial.uniform - trial.chance) < _NEAR
        if not near and (trial.uniform < trial.chance) != trial.accepted:
            problems.append(f"node {trial.node}: {trial.uniform} against {trial.chance} was accepted: {trial.accepted}")
        if trace.verifier == "recursive":
            ratio = trial.target_prob / trial.draft_prob if trial.draft_prob else math.inf
            if not abs(trial.chance - (1.0 if ratio > 1.0 else ratio)) <= _NEAR:
                problems.append(f"node {trial.node}: its chance is {trial.chance}, its probabilities give {ratio}")
    accepted = [trial.node for trial in one.trials if trial.accepted]
    wanted = one.path[-1:] if trace.verifier == "traversal" else one.path
    if one.trials and accepted != wanted:
        problems.append(f"its tests accepted {accepted}, its path is {one.path}")
    for choice, node in zip(one.choices, one.path, strict=False):
        if one.nodes[node].token not in choice.kept:
            problems.append(f"node {node} is on the path, but the target chose {choice.token}")
    return problems


def _is_complete(trace, one):
    """Whether all distributions that the reference may read are stored completely."""
    inner = {node.parent for node in one.nodes}
    read = [node.target for node in one.nodes]
    if trace.verifier in ("recursive", "traversal") and one.draw != Draw.POINT_MASS:
        read += [one.nodes[node].draft for node in inner if node is not None]
    return all(found is not None and found.rest <= _COMPLETE for found in read)


def plain_tree(one, vocab):
    """The tree of a round with whole distributions; nodes keep their numbers."""
    nodes = []
    for i, node in enumerate(one.nodes):
        nodes.append(PlainNode(i, node.token, node.depth, _vector(node.target, vocab), _vector(node.draft, vocab)))
        if node.parent is not None:
            nodes[node.parent].children.append(nodes[i])
    return nodes[0]


def _vector(found, vocab):
    """A whole distribution, or None where none was stored."""
    probs = {} if found is None else dict(zip(found.tokens, found.probs, strict=True))
    return [probs.get(token, 0.0) for token in range(vocab)] if probs else None


def _index(uniform):
    """Choose by inversion of the cumulative sum; without a number, the largest."""

    def choose(weights):
        if uniform is None:
            return max(range(len(weights)), key=weights.__getitem__)
        sums = list(accumulate(weights))
        return next(i for i, total in enumerate(sums) if total > uniform * sums[-1])

    return choose


def _recursive(trace, one, vocab):
    uniforms = {trial.node: trial.uniform for trial in one.trials}

    def coin(node, p, q):
        uniform = uniforms.get(node.index)
        return uniform is not None and p > 0 and uniform * q < p

    return reference.recursive(plain_tree(one, vocab), Draw(one.draw), coin, _index(one.uniform))


def _traversal(trace, one, vocab):
    pick, die = _index(one.path_uniform), _index(one.uniform)
    return reference.traversal(plain_tree(one, vocab), Draw(one.draw), pick, die)


def _match(trace, one, vocab):
    """The target's choice at each node, with the noise of the seed."""
    root = plain_tree(one, vocab)
    noise = None
    if trace.verifier == "coupled" and trace.temperature > 0:
        rng = CounterRng([trace.seed]).at([one.position])
        made = rng.shared(0, 1 + max(node.depth for node in one.nodes), vocab, torch.arange(vocab))
        noise = None if made is None else made[0].tolist()

    def choose(node):
        scores = [math.log(p) if p > 0 else -math.inf for p in node.target]
        own = [0.0] * vocab if noise is None else noise[node.depth]
        return max(range(vocab), key=lambda token: scores[token] + own[token])

    return reference.match(root, choose)


def _tolerance(trace, one, vocab):
    beta, tau = 1 if trace.beta is None else trace.beta, 0.0 if trace.tau is None else trace.tau
    return reference.tolerance(plain_tree(one, vocab), beta, tau)


_VERDICTS = {"recursive": _recursive, "traversal": _traversal, "coupled": _match, "greedy": _match, "tolerance": _tolerance}


def _largest_token(rounds):
    """The largest token id in stored rounds."""
    nodes = [node for one in rounds for node in one.nodes]
    stored = [kept.tokens for node in nodes for kept in (node.target, node.draft) if kept is not None]
    return max(0, *(one.next_token for one in rounds), *(node.token for node in nodes), *(max(some) for some in stored))
