"""What is tried for a pair, who goes on to the next rung, and which method is the choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from draftwood.core.settings import Method, MethodName
from draftwood.engine.methods import DEFAULT_SHAPES
from draftwood.runners.protocols import BlockRunner, Runner
from draftwood.tune.measure import Speed

PLAIN: Final = Method(method="ar")
ADAPTIVE: Final = Method(method="adaptive")
LOOKUP: Final = Method(method="ngram", shape=DEFAULT_SHAPES["ngram"])
SHARED: Final = Method(method="shared-noise")
ABOUT: Final = 0.95  # of a speed: a short run hardly tells more, the highest of many being too high by chance
_DRAWN: Final[Mapping[MethodName, tuple[str, str, str]]] = {
    "chain": ("2", "4", "7"),
    "rsd-c": ("2-1", "2-2-1", "3-2-1-1"),
    "rsd-s": ("2x2", "4x3", "4x6"),
}
"""A small, a middling and a large shape of each family whose children are drawn."""
_OTHERS: Final = (
    ADAPTIVE,
    SHARED,
    Method(method="dynamic"),
    Method(method="hybrid", shape=DEFAULT_SHAPES["hybrid"]),
)


def candidates(draft: Runner | None, *, greedy: bool) -> list[Method]:
    """All methods that are tried at temperature 0 (``greedy``, where all verifiers are one) or above it."""
    if draft is None:
        return [PLAIN, LOOKUP]
    if isinstance(draft, BlockRunner):
        lengths = {draft.block, -(-draft.block // 2), -(-draft.block // 4)}
        return [PLAIN, LOOKUP, SHARED, *(Method(method="block", shape=str(length)) for length in sorted(lengths))]
    drawn = [method for name, shapes in _DRAWN.items() for method in _of_family(name, *shapes, greedy)]
    return [PLAIN, LOOKUP, *_OTHERS, *drawn]


def _of_family(name: MethodName, small: str, middling: str, large: str, greedy: bool) -> list[Method]:
    """Traversal accepts more and takes longer, which pays in large trees: both verifiers are tried on the middling shape."""
    if greedy:
        return [Method(method=name, shape=shape) for shape in (small, middling, large)]
    return [
        Method(method=name, shape=small, verifier="recursive"),
        Method(method=name, shape=middling, verifier="recursive"),
        Method(method=name, shape=middling, verifier="traversal"),
        Method(method=name, shape=large, verifier="traversal"),
    ]


def faster_half(found: Mapping[Method, Speed]) -> list[Method]:
    """The methods that go on: the faster half, at least two, and the adaptive one, as it may be the choice without being the
    fastest. One whose texts ended before anything could be measured goes on."""
    ranked = sorted(found, key=lambda method: found[method].tokens_per_second, reverse=True)
    kept = {*ranked[: max(2, -(-len(ranked) // 2))], ADAPTIVE}
    return [method for method in found if method in kept]


def fastest(found: Mapping[Method, Speed]) -> Method:
    """The fastest of the methods that wrote all texts, as the texts of others may have been easier.

    The adaptive one where it is about as fast: it follows each text, and not all are like those that were measured.
    """
    most = max(speed.texts for speed in found.values())
    speeds = {method: speed.tokens_per_second for method, speed in found.items() if speed.texts == most}
    best = max(speeds, key=lambda method: speeds[method])
    return ADAPTIVE if speeds.get(ADAPTIVE, 0.0) >= ABOUT * speeds[best] else best
