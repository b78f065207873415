"""The candidate methods of a pair, the methods of the next rung, and the final choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from draftwood.core.methods import METHODS, MethodSpec
from draftwood.core.settings import Method
from draftwood.runners.protocols import Runner
from draftwood.tune.measure import Speed

PLAIN: Final = Method(method="ar")
ADAPTIVE: Final = Method(method="adaptive")
LOOKUP: Final = Method(method="ngram", shape=METHODS["ngram"].shape)
GROWN_LOOKUP: Final = Method(method="lookup")
GROWING: Final = (ADAPTIVE, GROWN_LOOKUP)  # the first of those that are nearly as fast is chosen
GROWING_SHARE: Final = 0.95  # of the best speed: short runs are no more exact, and the best of many runs is too high


def candidates(draft: Runner | None, *, greedy: bool) -> list[Method]:
    """The methods to measure at temperature 0 (``greedy``, where all verifiers are the same) or above it."""
    if draft is None:
        return [PLAIN, LOOKUP, GROWN_LOOKUP]
    return [PLAIN, LOOKUP, *(m for spec in METHODS.values() if spec.needs == "draft" for m in _of_spec(spec, greedy))]


def _of_spec(spec: MethodSpec, greedy: bool) -> list[Method]:
    """Traversal accepts more and takes longer, which pays in large trees: the medium shape is run with both verifiers."""
    methods = [Method(method=spec.name, shape=shape) for shape in spec.tuned]
    if greedy or len(spec.tuned_verifiers) == 1:
        return methods
    small, medium, large = methods
    first, second = spec.tuned_verifiers
    return [
        replace(small, verifier=first),
        replace(medium, verifier=first),
        replace(medium, verifier=second),
        replace(large, verifier=second),
    ]


def faster_half(found: Mapping[Method, Speed]) -> list[Method]:
    """The faster half of the methods, at least two, and those that may be chosen without being the fastest: plain decoding,
    and those that grow as far as they pay.

    A method without measured rounds counts as fast.
    """
    ranked = sorted(found, key=lambda method: found[method].tokens_per_second, reverse=True)
    kept = {*ranked[: max(2, -(-len(ranked) // 2))], PLAIN, *GROWING}
    return [method for method in found if method in kept]


def fastest(found: Mapping[Method, Speed]) -> Method:
    """The fastest of the methods that wrote all texts: others may have had easier ones.

    Plain decoding is chosen unless a method is faster by more than the spread of its texts: the fastest of many methods
    looks faster than it is. Of those methods, one that grows as far as it pays is chosen if it is nearly as fast, because it
    adapts to texts unlike the measured ones.
    """
    most, plain = max(speed.texts for speed in found.values()), found.get(PLAIN)
    speeds = {
        method: speed.tokens_per_second
        for method, speed in found.items()
        if speed.texts == most and (plain is None or speed.beats(plain))
    }
    if not speeds:
        return PLAIN
    best = max(speeds, key=lambda method: speeds[method])
    growing = [method for method in GROWING if speeds.get(method, 0.0) >= GROWING_SHARE * speeds[best]]
    return growing[0] if growing else best
