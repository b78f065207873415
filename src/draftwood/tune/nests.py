"""Large trees that contain all smaller ones of their family, so that one scored tree answers for many shapes.

**Constant branching.** Children are the first of a node's own Gumbel-top-k order, so with the first ``b'_l <= b_l`` children
at depth ``l`` a tree of branching ``b`` contains the one of branching ``b'`` that the same noise would have drawn.

**Stochastic beams.** A node's time of arrival is at least its parent's, and a parent's first child arrives with it
(:class:`draftwood.core.rng.Beam`). Let ``x`` be among the ``w`` first arrivals of a level, and suppose ``w`` nodes of the
level above had arrived before its parent. Each of them has a child that arrives when it does, hence before ``x``: ``w``
nodes are ahead of ``x``, a contradiction. So the parents of the ``w`` first of a level are among the ``w`` first of the
level above; level by level, the ``w`` first arrivals of a beam of width ``W >= w`` are the beam of width ``w`` drawn with
the same noise, and the beam of width 1 is the chain. This needs a child below every node that is asked for one, so a nest is
grown without tokens that end the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from draftwood.core.settings import Method


@final
@dataclass(frozen=True, kw_only=True)
class Nest:
    """A large tree and the trees in it.

    Attributes:
        method: draws the large tree.
        members: what draws each tree in it -> its node numbers in the large one, the root included.
        anchor: the member that decides how the text goes on while the nest is measured.
    """

    method: Method
    members: Mapping[Method, frozenset[int]]
    anchor: Method


def beams(width: int, length: int) -> Nest:
    """Chains and stochastic beams of every width and length up to these."""
    members = {}
    for w in range(1, width + 1):
        for depth in range(1, length + 1):
            named = Method(method="rsd-s", shape=f"{w}x{depth}") if w > 1 else Method(method="chain", shape=f"{depth}")
            members[named] = frozenset([0, *(1 + width * level + i for level in range(depth) for i in range(w))])
    anchor = Method(method="rsd-s", shape=f"{min(2, width)}x{min(4, length)}")
    return Nest(
        method=Method(method="rsd-s", shape=f"{width}x{length}"),
        members=members,
        anchor=anchor if width > 1 else Method(method="chain", shape=f"{min(4, length)}"),
    )


def branchings(branching: Sequence[int]) -> Nest:
    """Trees of constant branching that are nowhere wider than this one and never widen again; no chains, which are beams."""
    found: dict[Method, frozenset[int]] = {}
    for depth in range(1, len(branching) + 1):
        for smaller in _narrowing(branching[:depth]):
            if smaller[0] > 1:
                found[_named(smaller)] = _kept(branching, smaller)
    anchors = [method for method in found if method.shape == "-".join(["2", *["1"] * min(3, len(branching) - 1)])]
    return Nest(method=_named(branching), members=found, anchor=anchors[0])


def _named(branching: Sequence[int]) -> Method:
    return Method(method="rsd-c", shape="-".join(map(str, branching)))


def _narrowing(most: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Branchings up to these, none larger than the one above it."""
    if not most:
        yield ()
        return
    for above in _narrowing(most[:-1]):
        yield from ((*above, b) for b in range(1, min(most[-1], above[-1] if above else most[-1]) + 1))


def _kept(branching: Sequence[int], smaller: Sequence[int]) -> frozenset[int]:
    """Node numbers of the smaller tree within the large one, whose levels stand one after the other, siblings together."""
    kept, level, first, size = [0], [0], 1, 1
    for most, few in zip(branching, smaller, strict=False):
        level = [place * most + i for place in level for i in range(few)]
        kept += [first + place for place in level]
        size *= most
        first += size
    return frozenset(kept)
