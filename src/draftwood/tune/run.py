"""The whole of ``draftwood tune``: costs, acceptance, expectation, and a check by real runs, within a given time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count, product
from time import perf_counter
from typing import Any, TypeAlias, cast, final

from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from draftwood.core.methods import MethodName
from draftwood.core.settings import Method
from draftwood.core.verifiers import VerifierName
from draftwood.runners.protocols import BlockRunner
from draftwood.tune.choose import PLAIN, Estimate, acceptance, estimates, fastest, finalists, leaders, unexpected
from draftwood.tune.costs import SHAPES, Costs, fit
from draftwood.tune.measure import BEAMS, BRANCHINGS, ROOM, Forwards, Runs, Speed, Timed, widths_of
from draftwood.tune.replay import Replay
from draftwood.tune.sizes import Sizes
from draftwood.verify.traversal import Traversal

OnProgress: TypeAlias = Callable[[str, float], object]
"""Called after every text with what is being done and the share of the time that is gone."""

_FORWARDS = 4  # of every size in every pass
_TESTED_AFTER = 3  # texts: the next ones only for methods that may still be the fastest
_UNTIL = {"costs": 0.2, "acceptance": 0.45, "check": 1.0}  # shares of the time


@final
@dataclass(frozen=True, kw_only=True)
class Findings:
    """What was measured.

    Attributes:
        costs: seconds by what is done, at the speed that the machine had during the check.
        expected: temperature -> method -> what is expected of it at this speed.
        measured: temperature -> method -> how fast it was.
        seconds: how long it took.
    """

    costs: Costs
    expected: dict[float, dict[Method, Estimate]]
    measured: dict[float, dict[Method, Speed]]
    seconds: float

    @property
    def choices(self) -> dict[float, Method]:
        """The fastest method at every temperature (:func:`draftwood.tune.choose.fastest`), of those that wrote all texts:
        other texts may have been easier."""
        return {t: fastest(_of_most_texts(found)) for t, found in self.measured.items()}

    def checks(self) -> Iterator[tuple[float, Method, Estimate | None, Speed]]:
        """Expectation and measurement side by side; of a temperature what wrote most texts first, then by speed."""
        for temperature, found in sorted(self.measured.items()):
            for method, speed in sorted(found.items(), key=lambda entry: (-entry[1].texts, -entry[1].tokens_per_second)):
                yield temperature, method, self.expected[temperature].get(method), speed

    def to_json(self) -> dict[str, Any]:
        """Plain values; one entry per estimate and check."""
        return {
            "seconds": round(self.seconds, 1),
            "costs": self.costs.to_json(),
            "checks": [
                {
                    "temperature": t,
                    "method": asdict(m),
                    "expected": e and _figures(e),
                    "measured": _figures(s),
                    "texts": s.texts,
                }
                for t, m, e, s in self.checks()
            ],
            "expected": [
                {"temperature": t, "method": asdict(m), **_figures(e)}
                for t, found in self.expected.items()
                for m, e in found.items()
            ],
        }


def _of_most_texts(found: Mapping[Method, Speed]) -> dict[Method, float]:
    most = max(speed.texts for speed in found.values())
    return {method: speed.tokens_per_second for method, speed in found.items() if speed.texts == most}


def _figures(found: Estimate | Speed) -> dict[str, float]:
    return {
        "tokens_per_round": round(found.tokens_per_round, 4),
        "seconds_per_round": round(found.seconds_per_round, 6),
        "tokens_per_second": round(found.tokens_per_second, 2),
    }


@final
class Tuning:
    """A run under way.

    Args:
        pair: the models.
        prompts: token ids.
        sizes: how much is measured.
        tell: where progress is reported.

    Raises:
        ConfigError: a prompt that leaves no room in the models' context.
    """

    def __init__(self, pair: Pair, prompts: Sequence[Sequence[int]], sizes: Sizes, on_progress: OnProgress) -> None:
        self.pair = pair
        self.prompts = list(prompts)[: sizes.prompts]
        self.sizes = sizes
        self.on_progress = on_progress
        self.runs = Runs(pair, sizes.max_new_tokens)
        self._by_level = pair.draft is not None and not isinstance(pair.draft, BlockRunner)
        self.temperatures = sorted(set(sizes.temperature))
        self.start = perf_counter()
        longest = max(map(len, self.prompts)) + sizes.max_new_tokens + ROOM
        contexts = [runner.max_length for runner in (pair.target, pair.draft) if runner and runner.max_length]
        if contexts and longest > min(contexts):
            raise ConfigError(
                f"a prompt and {sizes.max_new_tokens} new tokens (and {ROOM} to spare) make {longest}, but the models' "
                f"context is {min(contexts)}: give shorter prompts, or lower max_new_tokens"
            )

    def findings(self) -> Findings:
        """Measure everything."""
        costs = self._costs()
        accepted = self._acceptance()
        widths = {m: widths_of(m, self.pair) for found in accepted.values() for m in found}
        ahead = {t: estimates(accepted[t], costs, widths) for t in self.temperatures}
        asked = {t: finalists(ahead[t], unexpected(self.pair.draft)) for t in self.temperatures}
        meanwhile, measured = self._check(asked)
        costs = costs.at_speed_of(meanwhile)
        expected = {t: estimates(accepted[t], costs, widths) for t in self.temperatures}
        return Findings(costs=costs, expected=expected, measured=measured, seconds=perf_counter() - self.start)

    def _passes(self, phase: str) -> Iterator[tuple[Sequence[int], int]]:
        """A prompt and a seed for every pass; at least one, and more while there is time."""
        until = self.start + 60 * self.sizes.minutes * _UNTIL[phase]
        for i in count():
            began = perf_counter()
            yield self.prompts[i % len(self.prompts)], self.sizes.seed + i
            now = perf_counter()
            if now + (now - began) / 2 > until:
                return

    def _done(self, phase: str) -> None:
        self.on_progress(phase, (perf_counter() - self.start) / (60 * self.sizes.minutes))

    def _costs(self) -> Costs:
        cases = [case for greedy in sorted({t == 0 for t in self.temperatures}) for case in self._calibration(greedy)]
        widths = {method: widths_of(method, self.pair) for method, _ in cases}
        samples: dict[Method, list[Timed]] = {method: [] for method, _ in cases}
        short = Runs(self.pair, -(-self.sizes.max_new_tokens // 2))  # more of them, and so fewer that are all disturbed
        forwards = Forwards()
        for method, temperature in cases[:: len(cases) - 1 or 1]:  # warm up
            short.timed(method, temperature, self.prompts[0], self.sizes.seed)
        for prompt, seed in self._passes("costs"):
            for i in range(_FORWARDS):
                forwards.take(self.pair, prompt, seed + i)
            for method, temperature in _shuffled(cases, seed):
                rounds = short.timed(method, temperature, prompt, seed)
                samples[method] += [one for one in rounds if one.nodes == sum(widths[method])]
                self._done("costs")
        for method, found in samples.items():
            _ask_for_rounds(method, found)
        return fit(forwards, samples, widths)

    def _calibration(self, greedy: bool) -> list[tuple[Method, float]]:
        """Shapes whose rounds tell all costs; at temperature 0 these have the verifier ``auto``, above it one by name."""
        temperature = 0.0 if greedy else max(self.temperatures)
        verifiers = ("auto",) if greedy else ("recursive", "traversal")
        drawn = [
            Method(method=cast(MethodName, name), shape=shape, verifier=cast(VerifierName, verifier))
            for (name, shapes), verifier in product(SHAPES.items(), verifiers)
            for shape in shapes
        ]
        return [(method, temperature) for method in [PLAIN, *(drawn if self._by_level else [])]]

    def _acceptance(self) -> dict[float, dict[Method, float]]:
        if not self._by_level:
            return {t: {} for t in self.temperatures}
        cases = list(product(self.temperatures, (BEAMS, BRANCHINGS)))
        replays = [Replay(nest, Traversal()) for _, nest in cases]
        for prompt, seed in self._passes("acceptance"):
            for (temperature, nest), replay in zip(cases, replays, strict=True):
                self.runs.write(nest.method, replay, temperature, prompt, seed)
                self._done("acceptance")
        found: dict[float, dict[Method, float]] = {}
        for (temperature, nest), replay in zip(cases, replays, strict=True):
            _ask_for_rounds(nest.method, replay.recursive)
            found.setdefault(temperature, {}).update(acceptance(replay, nest, greedy=temperature == 0))
        return found

    def _check(self, asked: dict[float, list[Method]]) -> tuple[Forwards, dict[float, dict[Method, Speed]]]:
        """Real runs, and single forwards in between: what the machine does by then is no fault of the expectation."""
        forwards = Forwards()
        found = {t: {method: Speed() for method in methods} for t, methods in asked.items()}
        cases = _cases(asked)
        for method, temperature in cases:  # warm up, and let a paced tree learn what things cost
            self.runs.timed(method, temperature, self.prompts[-1], self.sizes.seed)
            self._done("check")
        for done, (prompt, seed) in enumerate(self._passes("check"), 1):
            forwards.take(self.pair, prompt, seed)
            for method, temperature in _shuffled(_cases(asked), seed):
                found[temperature][method].add(self.runs.timed(method, temperature, prompt, seed))
                self._done("check")
            if done >= min(_TESTED_AFTER, len(self.prompts)):
                asked = {t: leaders({m: found[t][m] for m in methods}) for t, methods in asked.items()}
        for method, temperature in cases:
            _ask_for_rounds(method, found[temperature][method].rounds)
        return forwards, found


def _ask_for_rounds(method: Method, found: Sequence[Any]) -> None:
    if not found:
        raise ConfigError(
            f"the texts ended before a whole round of {method.method} {method.shape or ''} was seen: give other prompts, or "
            "raise max_new_tokens"
        )


def _cases(asked: Mapping[float, Sequence[Method]]) -> list[tuple[Method, float]]:
    return [(method, temperature) for temperature, methods in asked.items() for method in methods]


def _shuffled(cases: Sequence[tuple[Method, float]], seed: int) -> list[tuple[Method, float]]:
    """All cases in an order of their own, so that what changes with time does not fall on the same one."""
    order = list(cases)
    random.Random(seed).shuffle(order)
    return order
