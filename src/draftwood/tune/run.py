"""The measurements of ``draftwood tune``: every rung of a ladder measures the faster half of the methods before.

Source: successive halving (Karnin et al. 2013, ICML; Jamieson and Talwalkar 2016, arXiv 1502.07943). Every rung has the
same time, so the few best methods write most texts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias, final

from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from draftwood.core.settings import Method
from draftwood.tune.choose import candidates, faster_half, fastest
from draftwood.tune.compare import check_room
from draftwood.tune.measure import ROOM, Speed, Timed, timed
from draftwood.tune.sizes import Sizes

OnProgress: TypeAlias = Callable[[str, float], object]
"""Called after every text with the current stage and the elapsed share of the time."""
Write: TypeAlias = Callable[[Method, float, Sequence[int], int, int], list[Timed]]
"""Times the rounds of one text, as :func:`timed`: method, temperature, prompt, seed, new tokens."""

_WARM_UP = 2  # the unmeasured first text of a method is shorter by this factor


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
        """The chosen method at every temperature (:func:`draftwood.tune.choose.fastest`)."""
        return {t: fastest(found) for t, found in self.measured.items()}

    def ranked(self) -> Iterator[tuple[float, Method, Speed]]:
        """All measurements by temperature, then from most to fewest texts, then by speed."""
        for temperature, found in sorted(self.measured.items()):
            for method, speed in sorted(found.items(), key=lambda entry: (-entry[1].texts, -entry[1].tokens_per_second)):
                yield temperature, method, speed

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
        for found in self._found.values():
            for method, speed in found.items():
                _check_rounds(method, speed)
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


def _check_rounds(method: Method, found: Speed) -> None:
    if not found.rounds:
        raise ConfigError(
            f"the texts ended before a whole round of {method.method} {method.shape or ''} was seen: give other prompts, or "
            "raise max_new_tokens"
        )
