"""Mean -log p of sampled texts under the target, and its distance from the entropy at the same prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any, Final, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.api import Pair
from draftwood.exactness.goodness import goodness_of_fit, pit_values, target_distribution
from draftwood.sampling.settings import Sampling

LARGEST: Final = 4.0  # standard errors: two in thirty thousand by chance


class Text(NamedTuple):
    """Token ids of a prompt and of what follows it."""

    prompt: list[int]
    new: list[int]


class Sums(NamedTuple):
    """Of one text: its tokens, the sum of their -log p, and that sum minus the target's entropies at their prefixes."""

    tokens: int
    surprise: float
    excess: float


@final
@dataclass(frozen=True, kw_only=True)
class Surprise:
    """Mean -log p per token under the target, in nats.

    Attributes:
        mean, error: of the texts' tokens, and its standard error over texts.
        excess, excess_error: above the entropy of the target at the same prefixes; 0 on average for exact texts.
    """

    mean: float
    error: float
    excess: float
    excess_error: float


def sums_of(logp: Float[Tensor, "token vocab"], tokens: Sequence[int]) -> Sums:
    """The sums of a text whose tokens have these log-probabilities."""
    logp = logp.double()
    surprise = float(-logp.gather(1, torch.tensor(tokens).unsqueeze(1)).sum())
    return Sums(len(tokens), surprise, surprise - float(torch.special.entr(logp.exp()).sum()))


def surprise_of(texts: Sequence[Sums]) -> Surprise:
    """Means and standard errors over texts."""
    lengths = [text.tokens for text in texts]
    mean, error = ratio_of([text.surprise for text in texts], lengths)
    excess, excess_error = ratio_of([text.excess for text in texts], lengths)
    return Surprise(mean=mean, error=error, excess=excess, excess_error=excess_error)


def ratio_of(sums: Sequence[float], tokens: Sequence[int]) -> tuple[float, float]:
    """Sum over all tokens by number of tokens, and its standard error over texts."""
    n, mean = len(sums), sum(sums) / sum(tokens)
    squares = sum((part - mean * length) ** 2 for part, length in zip(sums, tokens, strict=True))
    return mean, sqrt(squares * n / (n - 1)) / sum(tokens)


def tested(pair: Pair, texts: Sequence[Text], temperature: float, seed: int) -> dict[str, Any]:
    """What the target alone says about texts that claim to be sampled at a temperature."""
    sampling, generator = Sampling(temperature=temperature), torch.Generator().manual_seed(seed)
    pit, sums = [], []
    for text in texts:
        logp = target_distribution(pair, text.prompt, text.new, sampling)
        pit.append(pit_values(logp, pair, text.prompt, text.new, sampling, generator))
        sums.append(sums_of(logp, text.new))
    return {"texts": len(texts), **asdict(surprise_of(sums)), "fit": asdict(goodness_of_fit(torch.cat(pit)))}
