"""The exactness report: texts from the engine, judged by the target alone.

Each new token is turned into its place in the target's own law at its own prefix (a randomised probability integral
transform; Brockwell 2007): if the texts follow the target, these places are uniform and independent, whatever the prompts.
The target is asked by one plain forward over each finished text, without trees or caches. Tokens are put in the order of the
draft's law over the target's, so that a text that leans towards the draft piles up at one end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.api import Pair
from draftwood.decode import Decoder, Request
from draftwood.errors import ConfigError
from draftwood.output import Limits
from draftwood.sampling import Law, Sampling

BINS = 32
SIGNIFICANCE = 1e-4


@final
@dataclass(frozen=True, kw_only=True)
class Report:
    """What was found.

    Attributes:
        tokens: new tokens that were judged.
        differing: at temperature 0, tokens that are not the target's best at their own prefix.
        gap: at temperature 0, the largest distance by which such a token's score lies below the best one.
        total_variation: distance of the places' histogram from the uniform one, None at temperature 0.
        expected: what chance alone gives for it.
        detectable: the distance that would be found nine times in ten.
        p_value: how often chance alone gives as much (chi-squared).
        exact: nothing speaks against it at the level of significance.
    """

    tokens: int
    differing: int | None
    gap: float | None
    total_variation: float | None
    expected: float | None
    detectable: float | None
    p_value: float | None
    exact: bool

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def check(
    pair: Pair, decoder: Decoder, sampling: Sampling, prompts: Sequence[str], *, samples: int, new_tokens: int, seed: int
) -> Report:
    """Generate ``samples`` texts over the prompts in batches and judge every new token.

    Raises:
        ConfigError: fewer samples or tokens than can say anything.
    """
    if samples * new_tokens < 20 * BINS and not sampling.greedy:
        raise ConfigError(
            f"{samples} samples of {new_tokens} tokens say nothing: give {20 * BINS} tokens or more altogether"
        )
    generator = torch.Generator().manual_seed(seed)
    places: list[Tensor] = []
    gaps: list[Tensor] = []
    for first in range(0, samples, 16):
        chosen = [pair.encode(prompts[i % len(prompts)]) for i in range(first, min(samples, first + 16))]
        limits = Limits(max_new_tokens=new_tokens, ignore_eos=True)
        requests = [Request(prompt=p, seed=seed + first + i, limits=limits) for i, p in enumerate(chosen)]
        for prompt, result in zip(chosen, decoder.generate(requests, sampling), strict=True):
            ids = result.token_ids
            scores, law = _alone(pair.target.model, prompt, ids, sampling)
            if sampling.greedy:
                token = torch.tensor(ids)
                gaps.append(scores.amax(-1) - scores.gather(1, token.unsqueeze(1)).squeeze(1))
            else:
                places.append(_places(law.exp(), _order(pair, prompt, ids, sampling, law), ids, generator))
    return _greedy(torch.cat(gaps)) if sampling.greedy else judged(torch.cat(places))


def judged(places: Float[Tensor, "token"]) -> Report:
    """The report on places that should be uniform in (0, 1)."""
    n = len(places)
    counts = torch.histc(places.double(), BINS, 0.0, 1.0)
    chi = float(((counts - n / BINS) ** 2 / (n / BINS)).sum())
    p_value = float(torch.special.gammaincc(torch.tensor((BINS - 1) / 2), torch.tensor(chi / 2)))
    # Nine times in ten a shift of noncentrality 60 is significant at 1e-4 with 31 degrees of freedom; it is reached soonest
    # by places that move between two halves, sum (d_i)^2 / (1 / BINS) = (2 tv)^2.
    return Report(
        tokens=n,
        differing=None,
        gap=None,
        total_variation=float((counts / n - 1 / BINS).abs().sum() / 2),
        expected=math.sqrt(BINS / (2 * math.pi * n)),
        detectable=math.sqrt(60 / n) / 2,
        p_value=p_value,
        exact=p_value > SIGNIFICANCE,
    )


def _greedy(gaps: Float[Tensor, "token"]) -> Report:
    """At temperature 0 every token must be the best one, up to the rounding of two forwards of different shape."""
    worst, rounding = float(gaps.max()), 1e-3
    return Report(
        tokens=len(gaps),
        differing=int((gaps > 0).sum()),
        gap=worst,
        total_variation=None,
        expected=None,
        detectable=None,
        p_value=None,
        exact=worst < rounding,
    )


def _alone(
    model: Any, prompt: list[int], ids: list[int], sampling: Sampling
) -> tuple[Float[Tensor, "token vocab"], Float[Tensor, "token vocab"]]:
    """Scores and log-laws of a model at every new token's own prefix, by one forward over the text."""
    with torch.inference_mode():
        text = torch.tensor([[*prompt, *ids[:-1]]], device=model.device)
        scores = model(input_ids=text, use_cache=False).logits[0, len(prompt) - 1 :].float().cpu()
        law = Law(sampling, [prompt], [len(prompt)], scores.shape[-1])
        return scores, law.target(scores.unsqueeze(0), lambda: [[ids[:i] for i in range(len(ids))]])[0]


def _order(pair: Pair, prompt: list[int], ids: list[int], sampling: Sampling, law: Tensor) -> Tensor:
    """What tokens are sorted by: the draft's law over the target's; without a draft the target's own."""
    if pair.draft is None:
        return law
    draft = _alone(pair.draft.model, prompt, ids, sampling)[1]
    missing = law.shape[-1] - draft.shape[-1]
    draft = torch.nn.functional.pad(draft, (0, max(0, missing)), value=-torch.inf)[:, : law.shape[-1]]
    return (draft - law).nan_to_num(0.0)


def _places(
    law: Float[Tensor, "token vocab"], order: Float[Tensor, "token vocab"], ids: list[int], generator: torch.Generator
) -> Float[Tensor, "token"]:
    """Where each token lies in its law, at random within the token's own share."""
    token = torch.tensor(ids).unsqueeze(1)
    below = (order < order.gather(1, token)) | ((order == order.gather(1, token)) & (torch.arange(law.shape[1]) < token))
    start = (law.double() * below).sum(1)
    return start + law.double().gather(1, token).squeeze(1) * torch.rand(len(ids), generator=generator, dtype=torch.float64)
