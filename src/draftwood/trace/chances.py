"""Chances of acceptance from stored distributions.

A trace keeps the likeliest tokens of a distribution and the sum of the others, so a chance is known within bounds. An
:class:`Interval` holds the least and the largest value that the rest allows.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch

from draftwood.core.counter_rng import CounterRng
from draftwood.core.draws import Draw
from draftwood.trace.records import Distribution, Trace, TracedRound

_NOTHING: Final = 1e-9


class Interval(NamedTuple):
    """A number that lies between two others."""

    low: float
    high: float


def overlap(target: Distribution, proposal: Distribution, weight: float = 1.0) -> Interval:
    """``sum over x of min(p(x), q(x) / w)``: the chance that one draw from the proposal is accepted.

    With ``w = 1`` it is recursive rejection's: a draw ``x`` is accepted with probability ``min(1, p(x) / q(x))``, and the
    mean over ``x`` from ``q`` is the sum. Bounds: tokens in both lists count exactly. A token in one list only meets at most
    the other's rest. What is left of both rests may meet.
    """
    p = dict(zip(target.tokens, target.probs, strict=True))
    q = {token: prob / weight for token, prob in zip(proposal.tokens, proposal.probs, strict=True)}
    both = sum(min(prob, q[token]) for token, prob in p.items() if token in q)
    in_p = min(sum(prob for token, prob in p.items() if token not in q), proposal.rest / weight)
    in_q = min(sum(prob for token, prob in q.items() if token not in p), target.rest)
    neither = min(target.rest - in_q, proposal.rest / weight - in_p)
    return Interval(min(1.0, both), min(1.0, both + in_p + in_q + max(0.0, neither)))


def coupling(target: Distribution, draft: Distribution) -> Interval:
    """The chance that target and draft choose the same token with shared noise.

    Under exponential arrival times ``E_x / p(x)`` and ``E_x / q(x)`` with the same ``E_x``, token ``x`` is first in both if
    ``E_y >= E_x max(p(y) / p(x), q(y) / q(x))`` for all ``y``. Integrated over ``E_x``, this is
    ``1 / sum over y of max(p(y) / p(x), q(y) / q(x))``; the chance is the sum over ``x``. Tokens that are not in both lists
    have the masses ``P`` and ``Q``: their part of the inner sum is from ``max(P / p, Q / q)`` to ``P / p + Q / q``, and
    their part of the outer sum is from 0 to ``min(P, Q)``.
    """
    p = dict(zip(target.tokens, target.probs, strict=True))
    q = dict(zip(draft.tokens, draft.probs, strict=True))
    known = [(p[token], q[token]) for token in p if token in q]
    left_p, left_q = max(0.0, 1.0 - sum(a for a, _ in known)), max(0.0, 1.0 - sum(b for _, b in known))
    low = high = 0.0
    for a, b in known:
        inner = sum(max(c / a, d / b) for c, d in known)
        low += 1.0 / (inner + left_p / a + left_q / b)
        high += 1.0 / (inner + max(left_p / a, left_q / b))
    return Interval(min(1.0, low), min(1.0, high + min(left_p, left_q)))


def first_child(trace: Trace, one: TracedRound, node: int) -> Interval | None:
    """The chance that the first child of a node is accepted; None where a distribution is missing."""
    at = one.nodes[node]
    if at.target is None or at.draft is None:
        return None
    if trace.verifier == "coupled" and one.draw == Draw.SHARED_NOISE:
        return coupling(at.target, at.draft)
    if one.draw == Draw.POINT_MASS:
        return _certain(trace, one, node, [])
    return overlap(at.target, at.draft)


def next_sibling(trace: Trace, one: TracedRound, noise: CounterRng | None, vocab: int) -> Interval | None:
    """The chance that one more child of the last accepted node would have been accepted.

    None where that node had no children, or its draft distribution is not stored. The next token's distribution ``r`` is
    what the rejected children left. Another child would be drawn from ``Q``: the draft's distribution without the drafted
    tokens, or with them for independent draws, or its likeliest token that was not drafted where children are certain.

    * Recursive rejection: ``sum of min(r, Q)``.
    * Traversal verification: a node of weight ``w`` with residual ``r`` accepts a further child with ``a = sum of min(w r,
      Q)``. Its own weight becomes ``(w - a) / (1 - a)``, so the path runs through the node with probability ``w`` as before.
      Given that it does, the further token comes with ``a / w = sum of min(r, Q / w)``.
    * Shared noise: the target's choice and the noise are known. The next child is the token of largest ``log q + noise``
      that was not drafted. Of tokens that are not stored, with mass ``m``, one exceeds ``s`` with probability
      ``1 - exp(-m exp(-s))``, the distribution of the maximum of Gumbel noise.
    """
    end = one.path[-1] if one.path else 0
    taken = {node.token: node.draft_prob or 0.0 for node in one.nodes if node.parent == end}
    found = one.nodes[end].draft
    if not taken or found is None:
        return None
    if one.draw == Draw.SHARED_NOISE:
        return _shared(one, found, list(taken), noise, vocab)
    if one.draw == Draw.POINT_MASS:
        return _certain(trace, one, end, list(taken))
    left = 1.0 if one.draw == Draw.INDEPENDENT else 1.0 - sum(taken.values())
    if left <= _NOTHING:
        return Interval(0.0, 0.0)
    if one.draw == Draw.INDEPENDENT:
        taken = {}
    listed = {token: prob / left for token, prob in zip(found.tokens, found.probs, strict=True) if token not in taken}
    rest = found.rest - sum(prob for token, prob in taken.items() if token not in found.tokens)
    proposal = Distribution(tokens=list(listed), probs=list(listed.values()), rest=max(0.0, rest) / left)
    return overlap(one.next_from, proposal, _weight(trace, one, end))


def _weight(trace: Trace, one: TracedRound, end: int) -> float:
    """The weight of the path's end; 1 outside traversal verification."""
    chances = [trial.chance for trial in one.trials if trial.node == end]
    return chances[0] or 1.0 if trace.verifier == "traversal" and chances else 1.0


def _certain(trace: Trace, one: TracedRound, node: int, taken: list[int]) -> Interval:
    """The chance of the draft's likeliest token that is not taken."""
    draft, at = one.nodes[node].draft, one.nodes[node]
    assert draft is not None
    left = [token for token in draft.tokens if token not in taken]
    if trace.verifier == "tolerance":
        kept = next((choice.kept for choice in one.choices if choice.node == node), [])
        return Interval(float(left[0] in kept), float(left[0] in kept)) if left else Interval(0.0, 1.0)
    proposal = Distribution(tokens=left[:1], probs=[1.0], rest=0.0) if left else Distribution(tokens=[], probs=[], rest=1.0)
    return overlap((one.next_from if taken else at.target) or one.next_from, proposal)


def _shared(
    one: TracedRound, draft: Distribution, taken: list[int], noise: CounterRng | None, vocab: int
) -> Interval | None:
    wanted = one.next_token
    left = [(token, prob) for token, prob in zip(draft.tokens, draft.probs, strict=True) if token not in taken]
    if noise is None or not left:
        return None
    tokens = torch.tensor([token for token, _ in left])
    made = noise.at([one.position]).shared(len(one.path), 1, vocab, tokens)
    assert made is not None
    scores = {token: math.log(prob) + g for (token, prob), g in zip(left, made[0, 0].tolist(), strict=True)}
    best = max(scores, key=lambda token: scores[token])
    other = 1.0 - math.exp(-draft.rest * math.exp(-scores[best]))  # a token that is not stored comes first
    if best == wanted:
        return Interval(1.0 - other, 1.0)
    return Interval(0.0, 0.0) if wanted in scores else Interval(0.0, other)
