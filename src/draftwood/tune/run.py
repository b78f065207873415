"""The measurements of ``draftwood tune``: whether prompt lookup or the adaptive tree beats plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import log, sqrt
from statistics import fmean, stdev
from time import perf_counter
from typing import Any, Final, TypeAlias, final

from draftwood.api import Pair
from draftwood.core.settings import Method
from draftwood.runners.protocols import Runner
from draftwood.tune.compare import PLAIN, Write, Written, check_room, in_turn, speed, timed, writer
from draftwood.tune.sizes import Sizes

OnProgress: TypeAlias = Callable[[str, float], object]
"""Called after every text with the current stage and the elapsed share of the time."""

ADAPTIVE: Final = Method(method="adaptive")
LOOKUP: Final = Method(method="lookup")
_SPREAD: Final = 3  # texts that show a spread
_UNSEEN: Final = log(1.05)  # the mean logarithm that is needed without one
_ERRORS: Final = 2.0  # standard errors


def candidates(draft: Runner | None) -> list[Method]:
    """The methods to measure. Each grows its drafts as far as they pay, and the same seed gives the same text with all."""
    return [PLAIN, LOOKUP] if draft is None else [PLAIN, LOOKUP, ADAPTIVE]


def beats(texts: Sequence[Written], others: Sequence[Written]) -> bool:
    """Whether a method is faster than another one by more than the spread of both on the same texts.

    The mean logarithm of the ratios, text by text, must exceed 0 by two standard errors. Less than three texts show no
    spread; then a twentieth is needed.
    """
    ratios = [log(speed([one]) / speed([other])) for one, other in zip(texts, others, strict=True)]
    error = stdev(ratios) / sqrt(len(ratios)) if len(ratios) >= _SPREAD else _UNSEEN / _ERRORS
    return fmean(ratios) > _ERRORS * error


def fastest(found: Mapping[Method, Sequence[Written]]) -> Method:
    """The fastest method of those that beat plain decoding; plain decoding if none does."""
    speeds = {method: speed(texts) for method, texts in found.items() if beats(texts, found[PLAIN])}
    return max(speeds, key=lambda method: speeds[method], default=PLAIN)


@final
@dataclass(frozen=True, kw_only=True)
class Findings:
    """The measurements.

    Attributes:
        measured: temperature -> method -> its texts.
        seconds: time that they took.
    """

    measured: dict[float, dict[Method, list[Written]]]
    seconds: float

    @property
    def choices(self) -> dict[float, Method]:
        """The chosen method at every temperature (:func:`fastest`)."""
        return {t: fastest(found) for t, found in self.measured.items()}

    def ranked(self) -> Iterator[tuple[float, Method, list[Written]]]:
        """All measurements by temperature, then by speed."""
        for temperature, found in sorted(self.measured.items()):
            for method, texts in sorted(found.items(), key=lambda entry: -speed(entry[1])):
                yield temperature, method, texts

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
                {"temperature": t, "method": asdict(method), "measured": figures_of(texts), "texts": len(texts)}
                for t, method, texts in self.ranked()
            ],
        }


def figures_of(texts: Sequence[Written]) -> dict[str, float]:
    """New tokens per target forward, and per second of whole calls."""
    passes = sum(text.passes for text in texts)
    return {
        "tokens_per_round": round(sum(text.tokens for text in texts) / passes, 4),
        "tokens_per_second": round(speed(texts), 2),
    }


def tune(pair: Pair, prompts: Sequence[Sequence[int]], sizes: Sizes, on_progress: OnProgress) -> Findings:
    """Measure the speed of the methods of a pair.

    Args:
        pair: the models.
        prompts: token ids.
        sizes: the extent of the measurements.
        on_progress: where progress is reported.

    Raises:
        ConfigError: a prompt too long for the models' context.
    """
    prompts = list(prompts)[: sizes.prompts]
    check_room(pair, prompts, sizes.max_new_tokens)
    writers = {
        t: {method: writer(pair, method, t, sizes.max_new_tokens) for method in candidates(pair.draft)}
        for t in sorted(set(sizes.temperature))
    }
    return measure(writers, prompts, sizes, on_progress)


def measure(
    writers: Mapping[float, Mapping[Method, Write]],
    prompts: Sequence[Sequence[int]],
    sizes: Sizes,
    on_progress: OnProgress,
    clock: Callable[[], float] = perf_counter,
) -> Findings:
    """Let all methods continue one prompt after another until the time is over; at least one, after a warm-up.

    Args:
        writers: by temperature and method.
        clock: a clock in seconds.
    """
    began = clock()

    def elapsed() -> float:
        return (clock() - began) / (60 * sizes.minutes)

    for write in (write for listed in writers.values() for write in listed.values()):
        timed(write, prompts[-1], sizes.seed)  # engines prepare themselves, and drafts learn what they cost
        on_progress("warm-up", elapsed())
    found = {t: {method: list[Written]() for method in listed} for t, listed in writers.items()}
    number, last = 0, 0.0
    while elapsed() + last / 2 <= 1 or not number:
        before = elapsed()
        for temperature, listed in writers.items():
            for method, text in in_turn(listed, prompts[number % len(prompts)], sizes.seed + number).items():
                found[temperature][method].append(text)
            on_progress(f"text {number + 1}", elapsed())
        number, last = number + 1, elapsed() - before
    return Findings(measured=found, seconds=clock() - began)
