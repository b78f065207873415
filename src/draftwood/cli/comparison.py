"""``--compare``: the speeds of a method and of plain decoding on one text, which both write in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, final

from draftwood.engine.requests import Request, Result
from draftwood.hardware.machine import available_memory
from draftwood.verify import Verifier

MOST: Final = 5
"""Runs of each, at most."""
SECONDS: Final = 10.0
"""The time of all runs after the first of each; a run that does not fit in is left out."""
GENERATED: Final = 32
"""Tokens that ``transformers`` writes: its speed hardly depends on their number."""
NOTHING: Final = "Nothing to compare: the method is plain decoding itself."


@final
@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Speeds of a method and of plain decoding.

    Attributes:
        shown, plain: the first text by the method, and the first by plain decoding.
        speeds: tokens per second of both, in pairs of runs that stand next to each other in time.
        transformers: tokens per second of ``generate`` on the same weights, where it was measured.
    """

    shown: Result
    plain: Result
    speeds: list[tuple[float, float]]
    transformers: float | None = None

    @property
    def ratios(self) -> list[float]:
        """The speed-up of every pair of runs; a text without a measured time counts as equally fast."""
        return [ours / theirs if theirs else 1.0 for ours, theirs in self.speeds]

    @property
    def medians(self) -> tuple[float, float]:
        return median(ours for ours, _ in self.speeds), median(theirs for _, theirs in self.speeds)

    @property
    def identical(self) -> bool:
        return self.plain.token_ids == self.shown.token_ids

    def to_json(self) -> dict[str, Any]:
        """JSON values; ``tokens_per_second`` is plain decoding's. Speeds and speed-up are medians."""
        ratios, (ours, theirs) = self.ratios, self.medians
        return {
            "runs": len(ratios),
            "method_tokens_per_second": round(ours, 2),
            "tokens_per_second": round(theirs, 2),
            "speed_up": round(median(ratios), 3),
            "speed_up_range": [round(min(ratios), 3), round(max(ratios), 3)],
            "identical": self.identical,
        } | ({} if self.transformers is None else {"transformers_tokens_per_second": round(self.transformers, 2)})

    def sentences(self, verifier: Verifier, dtype: str) -> str:
        """Speeds, and whether the two texts are the same; ``dtype`` is the number format of the target."""
        ratios, (ours, theirs) = self.ratios, self.medians
        spread = f"{min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} runs of each" if ratios[1:] else "one run of each"
        generate = ""
        if self.transformers:
            generate = f"{ours / self.transformers:.1f} times transformers' generate ({self.transformers:.1f}) and "
        return (
            f"By turns: {ours:.1f} tokens/s, {generate}run by run {median(ratios):.2f} times plain decoding "
            f"({theirs:.1f}; {spread}). "
            f"'draftwood tune' takes more texts. {self._difference(verifier, dtype)}"
        )

    def _difference(self, verifier: Verifier, dtype: str) -> str:
        if self.identical:
            return "The two texts are identical."
        if not verifier.lossless:
            return (
                f"The two texts differ, because verifier {verifier.name} also keeps tokens whose scores are close to "
                f"the target's best. Plain decoding writes: {self.plain.text}"
            )
        if verifier.reads == "argmax":
            ours, theirs = self.shown.token_ids, self.plain.token_ids
            pairs = enumerate(zip(ours, theirs, strict=False))
            at = next((i for i, (own, other) in pairs if own != other), min(len(ours), len(theirs)))
            return (
                f"The two texts differ from token {at} on: two scores were so close there that rounding in "
                f"{dtype.removeprefix('torch.')} decided; --dtype float64 makes this rarer."
            )
        why = f"verifier {verifier.name} uses other random numbers"
        return f"The two texts differ because {why}; their distribution is the same."


def by_turns(
    shown: Result, ours: Callable[[], Result], theirs: Callable[[], Result], generate: Callable[[], float | None]
) -> Comparison:
    """Let plain decoding write the text, and then both again, while the time lasts.

    The first text of each only warms up, unless there is time for no other. The order changes from pair to pair, so that a
    machine that becomes slower or faster affects both alike.

    Args:
        shown: the method's text that was shown.
        ours, theirs: write the text again, by the method and by plain decoding.
        generate: returns :attr:`Comparison.transformers`.
    """
    plain = theirs()
    first = (shown, plain)
    runs: list[tuple[Result, Result]] = []
    spent = 0.0
    while len(runs) < MOST and spent + _seconds(runs[-1] if runs else first) <= SECONDS:
        if len(runs) % 2:
            own, other = ours(), theirs()
        else:
            other, own = theirs(), ours()
        runs.append((own, other))
        spent += _seconds(runs[-1])
    speeds = [(own.stats.tokens_per_second, other.stats.tokens_per_second) for own, other in runs or [first]]
    return Comparison(shown=shown, plain=plain, speeds=speeds, transformers=generate())


def speed_of_transformers(session: Any, request: Request, temperature: float) -> float | None:
    """Tokens per second of the target's ``generate`` after this prompt.

    None for a translation, and where a copy of the weights for PyTorch would take more than half of the memory that is left.
    """
    if session.kind != "language":
        return None
    sizes = session.model.sizes() if hasattr(session.model, "sizes") else ()  # a module lies in memory already
    needed = session.model.dtype.itemsize * sum(count for count, _ in sizes)
    if (room := available_memory()) is not None and needed > room / 2:
        return None
    from draftwood.tune.compare import timed, transformers_writer

    write = transformers_writer(session, temperature, GENERATED)
    timed(write, request.prompt, 0)  # warm-up
    written = timed(write, request.prompt, 0)
    return written.tokens / written.seconds


def _seconds(pair: tuple[Result, Result]) -> float:
    return sum(result.stats.total_seconds for result in pair)
