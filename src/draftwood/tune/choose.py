"""From acceptance and costs to tokens per second, and which methods are worth a real run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean
from typing import Final, final

from draftwood.core.methods import METHODS, MethodSpec
from draftwood.core.settings import Method
from draftwood.runners.protocols import BlockRunner, Runner
from draftwood.tune.costs import SHAPES, Costs
from draftwood.tune.measure import Speed
from draftwood.tune.nests import Nest
from draftwood.tune.replay import Replay

PLAIN = Method(method="ar")
ADAPTIVE = Method(method="adaptive")
ABOUT = 0.95  # of a speed: a short run hardly tells more, the highest of many being too high by chance
BEHIND = 0.4  # of the fastest: so far apart may be what methods of the same speed do on one text


def _tuned(specs: Iterable[MethodSpec]) -> list[Method]:
    return [Method(method=spec.name, shape=shape) for spec in specs for shape in spec.tuned]


[LOOKUP] = _tuned([METHODS["ngram"]])
WHOLE: Final = _tuned(spec for spec in METHODS.values() if spec.needs == "draft" and spec.name not in SHAPES)
"""Trees that none of another shape contains: only a run shows how fast they are."""


@final
@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a method is expected to do.

    Attributes:
        tokens_per_round: block efficiency.
    """

    method: Method
    tokens_per_round: float
    seconds_per_round: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens_per_round / self.seconds_per_round


def acceptance(replay: Replay, nest: Nest, *, greedy: bool) -> dict[Method, float]:
    """Block efficiency of every member under every verifier; at temperature 0 all verifiers are one."""
    recursive, traversal = (
        [1 + fmean(column) for column in zip(*r, strict=True)] for r in (replay.recursive, replay.traversal)
    )
    if greedy:
        return dict(zip(nest.members, recursive, strict=True))
    return {
        **{replace(m, verifier="recursive"): mean for m, mean in zip(nest.members, recursive, strict=True)},
        **{replace(m, verifier="traversal"): mean for m, mean in zip(nest.members, traversal, strict=True)},
    }


def estimates(
    accepted: Mapping[Method, float], costs: Costs, widths: Mapping[Method, Sequence[int]]
) -> dict[Method, Estimate]:
    """What plain decoding and every drawn tree are expected to do."""
    return {
        method: Estimate(
            method=method, tokens_per_round=tokens, seconds_per_round=costs.of_round(method, widths.get(method, ()))
        )
        for method, tokens in {PLAIN: 1.0, **accepted}.items()
    }


def unexpected(draft: Runner | None) -> list[Method]:
    """Methods about which only a run can tell. A draft that scores whole blocks makes one forward a round: what trees cost
    level by level says nothing about it, and longer blocks cost hardly more than shorter ones."""
    if draft is None:
        return []
    if not isinstance(draft, BlockRunner):
        return WHOLE
    lengths = {draft.block, -(-draft.block // 2), -(-draft.block // 4)}
    blocks = [Method(method="block", shape=str(length)) for length in sorted(lengths)]
    return [*blocks, Method(method="shared-noise")]


def finalists(found: Mapping[Method, Estimate], others: Sequence[Method]) -> list[Method]:
    """What is worth a real run: of each way of drawing the shape and verifier with the best expectation, and ``others``.
    Neighbouring shapes of one kind differ by less than a run can show."""
    best: dict[str, Estimate] = {}
    for estimate in found.values():
        name = estimate.method.method
        if name not in best or estimate.tokens_per_second > best[name].tokens_per_second:
            best[name] = estimate
    drawn = [estimate.method for name, estimate in best.items() if name != PLAIN.method]
    return [PLAIN, LOOKUP, *others, *drawn]


def leaders(found: Mapping[Method, Speed]) -> list[Method]:
    """Those that may still turn out to be the choice, so that what time is left shows which of them is: the more texts they
    wrote, the less they may be behind."""
    speeds = {method: speed.tokens_per_second for method, speed in found.items() if speed.rounds}
    texts = max(speed.texts for speed in found.values())
    least = (1.0 - BEHIND / sqrt(texts)) * max(speeds.values(), default=0.0)
    return [method for method in found if speeds.get(method, least) >= least or method == ADAPTIVE]


def fastest(speeds: Mapping[Method, float]) -> Method:
    """The method that wrote most tokens per second; the adaptive one where it is about as fast, as texts are not all like
    those that were measured, and it follows each."""
    best = max(speeds, key=lambda method: speeds[method])
    return ADAPTIVE if speeds.get(ADAPTIVE, 0.0) >= ABOUT * speeds[best] else best
