"""The whole of ``draftwood tune``: a ladder of measurements, on every rung the faster half of the methods of the last one.

Source: successive halving (Karnin et al. 2013, ICML; Jamieson and Talwalkar 2016, arXiv 1502.07943). Every rung gets the
same time, so that most texts are written by the few methods between which the choice lies.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, TypeAlias, final

from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from draftwood.core.settings import Method
from draftwood.tune.choose import candidates, faster_half, fastest
from draftwood.tune.measure import ROOM, Runs, Speed, Timed
from draftwood.tune.sizes import Sizes

OnProgress: TypeAlias = Callable[[str, float], object]
"""Called after every text with what is being done and the share of the time that is gone."""
Write: TypeAlias = Callable[[Method, float, Sequence[int], int, int], list[Timed]]
"""Writes one text and times its rounds, as :meth:`Runs.timed`: method, temperature, prompt, seed, new tokens."""

_WARM_UP = 2  # the part of a text that every method writes first, unmeasured: half


@final
@dataclass(frozen=True, kw_only=True)
class Findings:
    """What was measured.

    Attributes:
        measured: temperature -> method -> how fast it was.
        seconds: how long it took.
    """

    measured: dict[float, dict[Method, Speed]]
    seconds: float

    @property
    def choices(self) -> dict[float, Method]:
        """The fastest method at every temperature (:func:`draftwood.tune.choose.fastest`)."""
        return {t: fastest(found) for t, found in self.measured.items()}

    def ranked(self) -> Iterator[tuple[float, Method, Speed]]:
        """All measurements, by temperature; of a temperature what wrote most texts first, then by speed."""
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
    """Measure what is fastest for a pair.

    Args:
        pair: the models.
        prompts: token ids.
        sizes: how much is measured.
        tell: where progress is reported.

    Raises:
        ConfigError: a prompt that leaves no room in the models' context, or texts that end with their first round.
    """
    prompts = list(prompts)[: sizes.prompts]
    longest = max(map(len, prompts)) + sizes.max_new_tokens + ROOM
    contexts = [runner.max_length for runner in (pair.target, pair.draft) if runner and runner.max_length]
    if contexts and longest > min(contexts):
        raise ConfigError(
            f"a prompt and {sizes.max_new_tokens} new tokens (and {ROOM} to spare) make {longest}, but the models' "
            f"context is {min(contexts)}: give shorter prompts, or lower max_new_tokens"
        )
    asked = {t: candidates(pair.draft, greedy=t == 0) for t in sorted(set(sizes.temperature))}
    return Ladder(asked, prompts, sizes, Runs(pair).timed, on_progress).findings()


@final
class Ladder:
    """Measurements under way.

    Args:
        asked: temperature -> methods that are tried.
        prompts: token ids.
        sizes: how much is measured.
        write: writes a text.
        tell: where progress is reported.
        clock: seconds since any moment.
    """

    def __init__(
        self,
        asked: dict[float, list[Method]],
        prompts: Sequence[Sequence[int]],
        sizes: Sizes,
        write: Write,
        on_progress: OnProgress,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._asked = asked
        self._prompts = prompts
        self._sizes = sizes
        self._write = write
        self._tell = on_progress
        self._clock = clock
        self._start = clock()
        self._texts = 0  # that every method left has written
        self._found = {t: {method: Speed() for method in methods} for t, methods in asked.items()}

    def findings(self) -> Findings:
        """Measure everything.

        Raises:
            ConfigError: texts that end with their first round.
        """
        self._warm_up()
        rungs = max(1, (max(map(len, self._asked.values())) - 1).bit_length())
        for rung in range(1, rungs + 1):
            self._climb(f"rung {rung} of {rungs}", rung / rungs)
            self._asked = {t: faster_half({m: self._found[t][m] for m in ms}) for t, ms in self._asked.items()}
        for found in self._found.values():
            for method, speed in found.items():
                _ask_for_rounds(method, speed)
        return Findings(measured=self._found, seconds=self._clock() - self._start)

    def _gone(self) -> float:
        """The share of the time that is gone."""
        return (self._clock() - self._start) / (60 * self._sizes.minutes)

    def _warm_up(self) -> None:
        """A short text by every method: first calls prepare what later ones use, and an adaptive tree learns what things
        cost."""
        tokens = -(-self._sizes.max_new_tokens // _WARM_UP)
        for temperature, method in self._shuffled():
            self._write(method, temperature, self._prompts[-1], self._sizes.seed, tokens)
            self._tell("warm-up", self._gone())

    def _climb(self, name: str, until: float) -> None:
        """A text by every method that is left, and more while there is time."""
        while True:
            began = self._gone()
            prompt, seed = self._prompts[self._texts % len(self._prompts)], self._sizes.seed + self._texts
            for temperature, method in self._shuffled():
                rounds = self._write(method, temperature, prompt, seed, self._sizes.max_new_tokens)
                self._found[temperature][method].add(rounds)
                self._tell(name, self._gone())
            self._texts += 1
            now = self._gone()
            if now + (now - began) / 2 > until:
                return

    def _shuffled(self) -> list[tuple[float, Method]]:
        """What is left, in an order of its own for every text, so that what changes with time does not fall on the same
        method."""
        cases = [(temperature, method) for temperature, methods in self._asked.items() for method in methods]
        random.Random(self._sizes.seed + self._texts).shuffle(cases)
        return cases


def _ask_for_rounds(method: Method, found: Speed) -> None:
    if not found.rounds:
        raise ConfigError(
            f"the texts ended before a whole round of {method.method} {method.shape or ''} was seen: give other prompts, or "
            "raise max_new_tokens"
        )
