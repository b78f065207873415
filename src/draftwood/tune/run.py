"""The measurements of ``draftwood tune``: every rung of a ladder measures the faster half of the methods before.

Source: successive halving (Karnin et al. 2013, ICML; Jamieson and Talwalkar 2016, arXiv 1502.07943). Every rung has the
same time, so the few best methods write most texts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, Final, TypeAlias, final

from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from draftwood.core.methods import METHODS, MethodSpec
from draftwood.core.settings import Method
from draftwood.runners.protocols import Runner
from draftwood.tune.compare import PLAIN, check_room
from draftwood.tune.measure import ROOM, Speed, Timed, timed
from draftwood.tune.sizes import Sizes

OnProgress: TypeAlias = Callable[[str, float], object]
"""Called after every text with the current stage and the elapsed share of the time."""
Write: TypeAlias = Callable[[Method, float, Sequence[int], int, int], list[Timed]]
"""Times the rounds of one text, as :func:`timed`: method, temperature, prompt, seed, new tokens."""

_WARM_UP = 2  # the unmeasured first text of a method is shorter by this factor
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


@final
@dataclass(frozen=True, kw_only=True)
class Findings:
    """The measurements.

    Attributes:
        measured: temperature -> method -> its speed.
        seconds: time that they took.
    """

    measured: dict[float, dict[Method, Speed]]
    seconds: float

    @property
    def choices(self) -> dict[float, Method]:
        """The chosen method at every temperature (:func:`fastest`)."""
        return {t: fastest(found) for t, found in self.measured.items()}

    def ranked(self) -> Iterator[tuple[float, Method, Speed]]:
        """All measurements by temperature, then from most to fewest texts, then by speed."""
        for temperature, found in sorted(self.measured.items()):
            for method, speed in sorted(found.items(), key=lambda entry: (-entry[1].texts, -entry[1].tokens_per_second)):
                yield temperature, method, speed

    def changes(self, before: Mapping[float, Method], name_of: Callable[[Method], str]) -> Iterator[str]:
        """What method ``auto`` is from now on at each temperature, and what it was before, in sentences."""
        for temperature, method in sorted(self.choices.items()):
            was = before.get(temperature)
            old = "nothing was measured before" if was is None else f"before: {name_of(was)}"
            yield f"At temperature {temperature:g}, auto is {name_of(method)} ({'as before' if was == method else old})."

    def to_json(self) -> dict[str, Any]:
        """Plain values; one entry per method and temperature."""
        return {
            "seconds": round(self.seconds, 1),
            "checks": [
                {"temperature": t, "method": asdict(method), "measured": _figures(speed), "texts": speed.texts}
                for t, method, speed in self.ranked()
            ],
        }


def _figures(found: Speed) -> dict[str, float]:
    return {
        "tokens_per_round": round(found.tokens_per_round, 4),
        "seconds_per_round": round(found.seconds_per_round, 6),
        "tokens_per_second": round(found.tokens_per_second, 2),
    }


def tune(pair: Pair, prompts: Sequence[Sequence[int]], sizes: Sizes, on_progress: OnProgress) -> Findings:
    """Measure the speed of the methods of a pair.

    Args:
        pair: the models.
        prompts: token ids.
        sizes: the extent of the measurements.
        on_progress: where progress is reported.

    Raises:
        ConfigError: a prompt too long for the models' context, or texts that end with their first round.
    """
    prompts = list(prompts)[: sizes.prompts]
    check_room(pair, prompts, sizes.max_new_tokens, spare=ROOM)
    methods = {t: candidates(pair.draft, greedy=t == 0) for t in sorted(set(sizes.temperature))}
    return Ladder(methods, prompts, sizes, partial(timed, pair), on_progress).findings()


@final
class Ladder:
    """Measurements in progress.

    Args:
        methods: temperature -> methods to measure.
        prompts: token ids.
        sizes: the extent of the measurements.
        write: times a text.
        on_progress: where progress is reported.
        clock: a clock in seconds.
    """

    def __init__(
        self,
        methods: dict[float, list[Method]],
        prompts: Sequence[Sequence[int]],
        sizes: Sizes,
        write: Write,
        on_progress: OnProgress,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._methods = methods
        self._prompts = prompts
        self._sizes = sizes
        self._write = write
        self._on_progress = on_progress
        self._clock = clock
        self._start = clock()
        self._texts = 0  # written by every remaining method
        self._found = {t: {method: Speed() for method in listed} for t, listed in methods.items()}

    def findings(self) -> Findings:
        """Measure everything.

        Raises:
            ConfigError: texts that end with their first round.
        """
        self._warm_up()
        rungs = max(1, (max(map(len, self._methods.values())) - 1).bit_length())
        for rung in range(1, rungs + 1):
            self._run_rung(f"rung {rung} of {rungs}", rung / rungs)
            self._methods = {t: faster_half({m: self._found[t][m] for m in ms}) for t, ms in self._methods.items()}
        for method, speed in (measured for found in self._found.values() for measured in found.items()):
            if not speed.rounds:
                raise ConfigError(
                    f"the texts ended before a whole round of {method.method} {method.shape or ''} was seen: give other "
                    "prompts, or raise max_new_tokens"
                )
        return Findings(measured=self._found, seconds=self._clock() - self._start)

    def _elapsed(self) -> float:
        """The elapsed share of the time."""
        return (self._clock() - self._start) / (60 * self._sizes.minutes)

    def _warm_up(self) -> None:
        """Write a short text with every method: engines prepare themselves, and adaptive trees learn costs."""
        tokens = -(-self._sizes.max_new_tokens // _WARM_UP)
        for temperature, method in self._shuffled():
            self._write(method, temperature, self._prompts[-1], self._sizes.seed, tokens)
            self._on_progress("warm-up", self._elapsed())

    def _run_rung(self, name: str, until: float) -> None:
        """Write a text with every remaining method, and more while there is time."""
        while True:
            began = self._elapsed()
            prompt, seed = self._prompts[self._texts % len(self._prompts)], self._sizes.seed + self._texts
            for temperature, method in self._shuffled():
                rounds = self._write(method, temperature, prompt, seed, self._sizes.max_new_tokens)
                self._found[temperature][method].add(rounds)
                self._on_progress(name, self._elapsed())
            self._texts += 1
            now = self._elapsed()
            if now + (now - began) / 2 > until:
                return

    def _shuffled(self) -> list[tuple[float, Method]]:
        """The remaining methods, in another order for every text, so that slow changes of the machine affect all alike."""
        cases = [(temperature, method) for temperature, methods in self._methods.items() for method in methods]
        random.Random(self._sizes.seed + self._texts).shuffle(cases)
        return cases
