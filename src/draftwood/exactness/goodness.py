"""Goodness of fit: a test of texts of any origin against the target's distribution, by the target alone.

Each new token becomes a PIT value: its position, from 0 to 1, in the target's distribution at its own prefix. This is a
randomised probability integral transform (Brockwell 2007). If the texts follow the target, PIT values are uniform and
independent, for any prompts. The target scores each finished text in one plain forward, without trees or caches. Tokens are
ordered by the ratio of the draft's distribution to the target's, so a bias towards the draft collects at one end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.api import Pair
from draftwood.core.draft_kind import CAUSAL
from draftwood.core.rounds import Stats
from draftwood.engine.decode import Decoder
from draftwood.engine.pipeline import PLAIN
from draftwood.exactness.evidence import pit
from draftwood.exactness.score_faults import Detectable, ScoreFaults
from draftwood.runners.context import vocabulary
from draftwood.sampling.rows import Row
from draftwood.sampling.sampler import Sampler
from draftwood.sampling.settings import Sampling

BINS = 32
SIGNIFICANCE = 1e-4
SHARES = {"marginal": 0.5, "accepted": 0.1}  # of the significance, where there are several tests
MAX_OTHERS = 50  # tests that share the rest equally; with fewer tests the levels stay the same


@final
@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One test of several.

    Attributes:
        name: what is tested.
        p_value: the probability of a result as extreme by chance alone, at most.
        level: the test fails at or below it. All levels add up to at most :data:`SIGNIFICANCE` (weighted Bonferroni).
    """

    name: str
    p_value: float
    level: float

    @property
    def fails(self) -> bool:
        """Chance alone does not explain the result."""
        return not self.p_value > self.level


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The base of the results of a check.

    Attributes:
        exact: no test fails, and drafted tokens were accepted if the method drafts any.
        drafted, accepted: number of drafted nodes that the target scored, and of those that were accepted.
        unproven: no test fails, but no drafted token was accepted, so nothing is shown.
    """

    exact: bool
    drafted: int = 0
    accepted: int = 0
    unproven: bool = False

    @property
    def verdict(self) -> str:
        """The first words of a summary."""
        if self.unproven:
            return "NO PROOF, since no drafted token was accepted: give more samples, or prompts that the draft knows"
        return "exact" if self.exact else "NOT exact"

    @property
    def drafts(self) -> str:
        """The numbers of drafted and accepted nodes in words."""
        return f"{self.accepted:,} of {self.drafted:,} drafted nodes were accepted"

    def after(self, decoder: Decoder, stats: Iterable[Stats]) -> Self:
        """The result of texts with these statistics."""
        total = Stats()
        for one in stats:
            total.add(one)
        accepted = sum(count * rounds for count, rounds in total.accepted.items())
        unproven = self.exact and not accepted and decoder.pipeline.drafter.name != PLAIN
        exact = self.exact and not unproven
        return replace(self, exact=exact, drafted=total.drafted, accepted=accepted, unproven=unproven)


@final
@dataclass(frozen=True, kw_only=True)
class Report(Outcome):
    """The result of a check.

    Attributes:
        tokens: number of new tokens that were tested.
        differing: at temperature 0, the number of tokens that are not the target's best at their own prefix.
        gap: at temperature 0, the largest difference between the best log-probability and that of such a token.
        allowed: at temperature 0, the gap that rounding may cause in the target's number format.
        total_variation: distance of the histogram of PIT values from the uniform one; None at temperature 0.
        expected: the distance that chance alone gives on average.
        detectable: the distance that would be found nine times in ten.
        faults: faults of the scores that would be found nine times in ten; None at temperature 0.
        p_value: of the chi-squared test of the histogram (the marginal test).
        other: with a target whose scores are the same bits in any forward, and a verifier that follows its own choice: texts
            that are not those of plain decoding. None of others.
        tests: all tests that were made, the marginal one first; none at temperature 0.
    """

    tokens: int
    differing: int | None = None
    gap: float | None = None
    allowed: float | None = None
    total_variation: float | None = None
    expected: float | None = None
    detectable: float | None = None
    faults: Detectable | None = None
    p_value: float | None = None
    other: int | None = None
    tests: tuple[Evidence, ...] = ()

    def summary(self) -> str:
        """The verdict and its reasons, as one line."""
        if self.gap is not None:
            return (
                f"{self.verdict}. {self.tokens} tokens at temperature 0, {self.differing} below the target's best score, by "
                f"{self.gap:.2g} at most ({self.allowed:.2g} is allowed for rounding){self._plain()}; {self.drafts}"
            )
        faults = "" if self.faults is None else "".join(f", {words}" for words in self.faults.words())
        return (
            f"{self.verdict}. {self.tokens} tokens in the target's own distribution: total variation "
            f"{self.total_variation:.4f}, by chance {self.expected:.4f}; found nine times in ten: {self.detectable:.4f}"
            f"{faults}; p = {self.p_value:.3g}"
            f"{self._others()}{self._plain()}; {self.drafts}"
        )

    def _plain(self) -> str:
        if self.other is None:
            return ""
        return f"; {self.other} texts are not plain decoding's" if self.other else "; texts are those of plain decoding"

    def _others(self) -> str:
        """The test with the smallest ratio of p-value to level, and how many tests fail."""
        if len(self.tests) < 2:
            return ""
        first, failing = min(self.tests, key=lambda t: t.p_value / t.level), sum(test.fails for test in self.tests)
        shown = f"{first.name!r} (p = {first.p_value:.2g}, level {first.level:.2g})"
        if failing:
            return f". {failing} of {len(self.tests)} tests fail, first {shown}"
        return f". {len(self.tests)} tests, the nearest to failing is {shown}"


def goodness_of_fit(
    pit: Float[Tensor, "token"], others: Sequence[tuple[str, float]] = (), faults: ScoreFaults | None = None
) -> Report:
    """The report on PIT values, which should be uniform in (0, 1).

    Args:
        others: names and p-values of further tests of the same texts; the level is split by :data:`SHARES`.
        faults: the tests against faults of the scores, if they are among the others.
    """
    n = len(pit)
    counts = torch.histc(pit.double(), BINS, 0.0, 1.0)
    chi = float(((counts - n / BINS) ** 2 / (n / BINS)).sum())
    outside = float(counts.sum()) < n  # of all bins, such as NaN
    p_value = 0.0 if outside else float(torch.special.gammaincc(torch.tensor((BINS - 1) / 2), torch.tensor(chi / 2)))
    rest = (1 - sum(SHARES.values())) / max(MAX_OTHERS, len(others))
    tests = [
        Evidence(name=name, p_value=p, level=SIGNIFICANCE * (SHARES.get(name, rest) if others else 1))
        for name, p in (("marginal", p_value), *others)
    ]
    # A shift of this noncentrality is significant nine times in ten, with 31 degrees of freedom. Among shifts of equal total
    # variation, the shift between two halves has the least noncentrality, n (2 tv)^2, and is the hardest to find.
    noncentrality = 63 if others else 60
    return Report(
        tokens=n,
        total_variation=float((counts / n - 1 / BINS).abs().sum() / 2),
        expected=math.sqrt(BINS / (2 * math.pi * n)),
        detectable=math.sqrt(noncentrality / n) / 2,
        faults=None if faults is None else faults.detectable(SIGNIFICANCE * rest),
        p_value=p_value,
        exact=not any(test.fails for test in tests),
        tests=tuple(tests),
    )


def rounding(dtype: torch.dtype) -> float:
    """The difference in a log-probability that two forwards of different shape may have."""
    return max(1e-3, 64 * torch.finfo(dtype).eps)


def scores_of(model: Any, ids: list[int], new: int) -> Float[Tensor, "1 token vocab"]:
    """Scores at the prefixes of the last ``new`` tokens of ``ids``, from one forward over the text."""
    with torch.inference_mode():
        text = torch.tensor([ids[:-1]], device=model.device).clamp(max=vocabulary(model)[0] - 1)
        scores: Tensor = model(input_ids=text, use_cache=False).logits[:, -new:].cpu()
        return scores


def _sampler(pair: Pair, prompt: list[int], sampling: Sampling) -> Sampler:
    """The sampler of one row without new tokens."""
    return Sampler([Row(tokens=prompt, sampling=sampling)], pair.target.vocab_size)


def target_distribution(
    pair: Pair, prompt: list[int], ids: list[int], sampling: Sampling, *, first: int = 0
) -> Float[Tensor, "token vocab"]:
    """Log-probabilities at the prefixes of ``ids``, the new tokens of a text, from that of ``first`` tokens on."""
    scores = scores_of(pair.model, prompt + ids, len(ids) - first)
    found = _sampler(pair, prompt, sampling).target(scores, lambda: [[ids[:i] for i in range(first, len(ids))]])
    found.require_all()
    return found.settled.dense()[0]


def pit_values(
    logp: Float[Tensor, "token vocab"],
    pair: Pair,
    prompt: list[int],
    ids: list[int],
    sampling: Sampling,
    generator: torch.Generator,
) -> Float[Tensor, "token"]:
    """The PIT values of the new tokens ``ids`` of a text.

    Args:
        logp: the target's distributions at their prefixes.
        pair: tokens are ordered by the ratio of the draft's distribution to the target's; without a draft that reads texts,
            or with a text that is too long for it, by the target's own.
        generator: draws the point within a token's own probability.
    """
    draft, order, length = pair.draft, logp, len(prompt) + len(ids)
    if draft is not None and draft.kind is CAUSAL and (draft.max_length is None or length <= draft.max_length):
        scores = scores_of(pair.draft_model, prompt + ids, len(ids))
        draft_logp = (
            _sampler(pair, prompt, sampling).draft(scores, lambda: [[ids[:i] for i in range(len(ids))]]).settled.dense()[0]
        )
        order = torch.nan_to_num(draft_logp - logp, 0.0)
    share = torch.rand(len(ids), generator=generator, dtype=torch.float64)
    return pit(logp.exp(), torch.tensor(ids), share, order)
