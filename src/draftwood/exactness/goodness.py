"""Do texts follow the target's distribution? Judged by the target alone, whoever wrote them.

Each new token is turned into its place in the target's own distribution at its own prefix (a randomised probability integral
transform; Brockwell 2007): if the texts follow the target, these places are uniform and independent, whatever the prompts.
The target is asked by one plain forward over each finished text, without trees or caches. Tokens are put in the order of the
draft's distribution over the target's, so that a text that leans towards the draft piles up at one end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.sampling import Sampler
from draftwood.core.settings import Sampling
from draftwood.runners.protocols import ModelRunner

BINS = 32
SIGNIFICANCE = 1e-4
SHARES = {"marginal": 0.5, "accepted": 0.1}  # of the significance, where there are several tests
MOST_OTHERS = 50  # tests that share the rest equally; fewer use less, so that no level depends on what came out


@final
@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One test of several.

    Attributes:
        name: what is tested.
        p_value: how often chance alone gives as much, at most.
        level: below it the test fails. The levels of all tests add up to :data:`SIGNIFICANCE` at most (weighted Bonferroni).
    """

    name: str
    p_value: float
    level: float

    @property
    def fails(self) -> bool:
        """Chance does not explain it."""
        return self.p_value <= self.level


@final
@dataclass(frozen=True, kw_only=True)
class Report:
    """What was found.

    Attributes:
        tokens: new tokens that were judged.
        differing: at temperature 0, tokens that are not the target's best at their own prefix.
        gap: at temperature 0, the largest distance by which such a token's log-probability lies below the best one.
        allowed: at temperature 0, the gap that rounding may make in the target's number format.
        total_variation: distance of the places' histogram from the uniform one, None at temperature 0.
        expected: what chance alone gives for it.
        detectable: the distance that would be found nine times in ten.
        p_value: how often chance alone gives as much (chi-squared).
        exact: nothing speaks against it at the level of significance: no test fails.
        tests: all tests that were made, this one first; none at temperature 0.
    """

    tokens: int
    differing: int | None
    gap: float | None
    allowed: float | None
    total_variation: float | None
    expected: float | None
    detectable: float | None
    p_value: float | None
    exact: bool
    tests: tuple[Evidence, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def told(self) -> str:
        """The verdict and its reasons."""
        verdict = "exact" if self.exact else "NOT exact"
        if self.gap is not None:
            return (
                f"{verdict}. {self.tokens} tokens at temperature 0, {self.differing} below the target's best score, by "
                f"{self.gap:.2g} at most ({self.allowed:.2g} is allowed for rounding)"
            )
        return (
            f"{verdict}. {self.tokens} tokens in the target's own distribution: total variation {self.total_variation:.4f}, "
            f"by chance {self.expected:.4f}; {self.detectable:.4f} is found nine times in ten; p = {self.p_value:.3g}"
            f"{self._others()}"
        )

    def _others(self) -> str:
        """The test that fails first, by its p-value over its level; without failures, the one that comes nearest to it."""
        if len(self.tests) < 2:
            return ""
        first, failing = min(self.tests, key=lambda t: t.p_value / t.level), sum(test.fails for test in self.tests)
        told = f"{first.name!r} (p = {first.p_value:.2g}, level {first.level:.2g})"
        if failing:
            return f". {failing} of {len(self.tests)} tests fail, first {told}"
        return f". {len(self.tests)} tests, the nearest to failing is {told}"


def judged(places: Float[Tensor, "token"], others: Sequence[tuple[str, float]] = ()) -> Report:
    """The report on places that should be uniform in (0, 1).

    Args:
        others: names and p-values of further tests of the same texts; the level is split by :data:`SHARES`.
    """
    n = len(places)
    counts = torch.histc(places.double(), BINS, 0.0, 1.0)
    chi = float(((counts - n / BINS) ** 2 / (n / BINS)).sum())
    p_value = float(torch.special.gammaincc(torch.tensor((BINS - 1) / 2), torch.tensor(chi / 2)))
    rest = (1 - sum(SHARES.values())) / max(MOST_OTHERS, len(others))
    tests = [
        Evidence(name=name, p_value=p, level=SIGNIFICANCE * (SHARES.get(name, rest) if others else 1))
        for name, p in (("marginal", p_value), *others)
    ]
    # Nine times in ten a shift of this noncentrality is significant with 31 degrees of freedom. Of all shifts of one total
    # variation the one between two halves has the least noncentrality, n (2 tv)^2, and so is found last.
    noncentrality = 63 if others else 60
    return Report(
        tokens=n,
        differing=None,
        gap=None,
        allowed=None,
        total_variation=float((counts / n - 1 / BINS).abs().sum() / 2),
        expected=math.sqrt(BINS / (2 * math.pi * n)),
        detectable=math.sqrt(noncentrality / n) / 2,
        p_value=p_value,
        exact=not any(test.fails for test in tests),
        tests=tuple(tests),
    )


def rounding(dtype: torch.dtype) -> float:
    """How far two forwards of different shape may differ in a log-probability."""
    return max(1e-3, 64 * torch.finfo(dtype).eps)


def judged_greedy(gaps: Float[Tensor, "token"], dtype: torch.dtype) -> Report:
    """At temperature 0 every token must be the best one, up to the rounding of two forwards of different shape."""
    worst, allowed = float(gaps.max()), rounding(dtype)
    return Report(
        tokens=len(gaps),
        differing=int((gaps > 0).sum()),
        gap=worst,
        allowed=allowed,
        total_variation=None,
        expected=None,
        detectable=None,
        p_value=None,
        exact=worst < allowed,
    )


def scores_of(model: Any, ids: list[int], new: int) -> Float[Tensor, "1 token vocab"]:
    """Scores at the prefixes of the last ``new`` tokens, by one forward over the text."""
    with torch.inference_mode():
        known = int(model.get_input_embeddings().weight.shape[0])
        text = torch.tensor([ids[:-1]], device=model.device).clamp(max=known - 1)
        scores: Tensor = model(input_ids=text, use_cache=False).logits[:, -new:].cpu()
        return scores


def distribution_of(target: ModelRunner, prompt: list[int], sampling: Sampling) -> Sampler:
    """Of one row that has written nothing yet."""
    return Sampler(sampling, [prompt], [len(prompt)], target.vocab_size)


def target_distribution(
    target: ModelRunner, prompt: list[int], ids: list[int], sampling: Sampling
) -> Float[Tensor, "token vocab"]:
    """Log-probabilities at the prefixes of ``ids``, the new tokens of a text."""
    scores = scores_of(target.model, prompt + ids, len(ids))
    return distribution_of(target, prompt, sampling).target(scores, lambda: [[ids[:i] for i in range(len(ids))]]).dense()[0]


def places_of(
    target: ModelRunner,
    draft: ModelRunner | None,
    prompt: list[int],
    ids: list[int],
    sampling: Sampling,
    generator: torch.Generator,
) -> Float[Tensor, "token"]:
    """Where the new tokens ``ids`` of a text lie in the target's distribution, from 0 to 1.

    Args:
        draft: tokens are put in the order of its distribution over the target's; in that of the target's own without one.
        generator: of the place within a token's own share.
    """
    distribution = target_distribution(target, prompt, ids, sampling)
    return places_in(distribution, target, draft, prompt, ids, sampling, generator)


def places_in(
    distribution: Float[Tensor, "token vocab"],
    target: ModelRunner,
    draft: ModelRunner | None,
    prompt: list[int],
    ids: list[int],
    sampling: Sampling,
    generator: torch.Generator,
) -> Float[Tensor, "token"]:
    """As :func:`places_of`, where the target's log-probabilities are known."""
    return _places(distribution.exp(), _order(target, draft, prompt, ids, sampling, distribution), ids, generator)


def _order(
    target: ModelRunner,
    draft: ModelRunner | None,
    prompt: list[int],
    ids: list[int],
    sampling: Sampling,
    distribution: Tensor,
) -> Tensor:
    """What tokens are sorted by: the draft's distribution over the target's; the target's own where the draft cannot be
    asked."""
    longest = None if draft is None else draft.max_length
    if draft is None or (longest is not None and len(prompt) + len(ids) > longest):
        return distribution
    scores = scores_of(draft.model, prompt + ids, len(ids))
    own = distribution_of(target, prompt, sampling).draft(scores, lambda: [[ids[:i] for i in range(len(ids))]]).dense()[0]
    return torch.nan_to_num(own - distribution, 0.0)


def _places(
    distribution: Float[Tensor, "token vocab"],
    order: Float[Tensor, "token vocab"],
    ids: list[int],
    generator: torch.Generator,
) -> Float[Tensor, "token"]:
    """Where each token lies in its distribution, at random within the token's own share."""
    token = torch.tensor(ids).unsqueeze(1)
    below = (order < order.gather(1, token)) | (
        (order == order.gather(1, token)) & (torch.arange(distribution.shape[1]) < token)
    )
    start = (distribution.double() * below).sum(1)
    return start + distribution.double().gather(1, token).squeeze(1) * torch.rand(
        len(ids), generator=generator, dtype=torch.float64
    )
