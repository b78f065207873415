"""What is tried for a pair, who goes on to the next rung, and which method is the choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from draftwood.core.methods import METHODS, MethodSpec
from draftwood.core.settings import Method
from draftwood.runners.protocols import BlockRunner, Runner
from draftwood.tune.measure import Speed

PLAIN: Final = Method(method="ar")
ADAPTIVE: Final = Method(method="adaptive")
LOOKUP: Final = Method(method="ngram", shape=METHODS["ngram"].shape)
SHARED: Final = Method(method="shared-noise")
ABOUT: Final = 0.95  # of a speed: a short run hardly tells more, the highest of many being too high by chance


def candidates(draft: Runner | None, *, greedy: bool) -> list[Method]:
    """All methods that are tried at temperature 0 (``greedy``, where all verifiers are one) or above it."""
    if draft is None:
        return [PLAIN, LOOKUP]
    if isinstance(draft, BlockRunner):
        lengths = {draft.block, -(-draft.block // 2), -(-draft.block // 4)}
        return [PLAIN, LOOKUP, SHARED, *(Method(method="block", shape=str(length)) for length in sorted(lengths))]
    return [PLAIN, LOOKUP, *(m for spec in METHODS.values() if spec.needs == "draft" for m in _of_spec(spec, greedy))]


def _of_spec(spec: MethodSpec, greedy: bool) -> list[Method]:
    """Traversal accepts more and takes longer, which pays in large trees: both verifiers are tried on the middling shape."""
    methods = [Method(method=spec.name, shape=shape) for shape in spec.tuned]
    if greedy or len(spec.tuned_verifiers) == 1:
        return methods
    small, middling, large = methods
    first, second = spec.tuned_verifiers
    return [
        replace(small, verifier=first),
        replace(middling, verifier=first),
        replace(middling, verifier=second),
        replace(large, verifier=second),
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
