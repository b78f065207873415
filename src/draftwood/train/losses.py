"""Distances between the next-token distributions of a target and a drafter, and what they say about speculative decoding.

Shapes: ``target_logp`` and ``draft_logp`` are log-probabilities, float [..., vocab]; ``labels`` int64 [...].

Sources: forward KL, Hinton et al. 2015 (arXiv 1503.02531); the other divergences and total variation as the one that is
the rejection rate, DistillSpec (Zhou et al. 2024, arXiv 2310.08461, section 3 and table 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

Distance = Callable[[Tensor, Tensor, Tensor], Tensor]


def ce(target_logp: Tensor, draft_logp: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy with the next token of the text; does not look at the target."""
    return -draft_logp.gather(-1, labels[..., None]).mean()


def kl(target_logp: Tensor, draft_logp: Tensor, labels: Tensor) -> Tensor:
    """Forward divergence KL(target || draft)."""
    return _kl(target_logp, draft_logp)


def reverse_kl(target_logp: Tensor, draft_logp: Tensor, labels: Tensor) -> Tensor:
    """Reverse divergence KL(draft || target)."""
    return _kl(draft_logp, target_logp)


def jsd(target_logp: Tensor, draft_logp: Tensor, labels: Tensor) -> Tensor:
    """Jensen-Shannon divergence, with equal weights."""
    middle = torch.logaddexp(target_logp, draft_logp) - math.log(2)
    return (_kl(target_logp, middle) + _kl(draft_logp, middle)) / 2


def tvd(target_logp: Tensor, draft_logp: Tensor, labels: Tensor) -> Tensor:
    """Total variation distance: the chance that one drafted token is rejected."""
    return (target_logp.exp() - draft_logp.exp()).abs().sum(-1).mean() / 2


def _kl(left: Tensor, right: Tensor) -> Tensor:
    return (left.exp() * (left - right)).sum(-1).mean()


DISTANCES: dict[str, Distance] = {f.__name__: f for f in (ce, kl, reverse_kl, jsd, tvd)}


def acceptance(target_logp: Tensor, draft_logp: Tensor) -> Tensor:
    """Chance float [...] that a token drawn from the drafter is accepted: sum over tokens of min(target, draft)."""
    return torch.minimum(target_logp, draft_logp).exp().sum(-1)


def chain_efficiency(accepted: Tensor, lengths: Iterable[int] = (2, 3, 4, 5)) -> dict[str, float]:
    """Estimated tokens per round of a drafted chain, from the acceptances float [row, position] along given texts.

    For a chain of L tokens: the mean over starting positions of ``1 + sum_{i<=L} a_1 ... a_i``, with ``a_i`` the
    acceptance i - 1 positions further on. It is an estimate, made for text that the target has sampled: a real chain
    goes on with drafted tokens that were accepted, whose distribution is that of min(target, draft), not the target's. On
    other text it is only a yardstick.
    """
    figures = {}
    for length in lengths:
        if accepted.shape[-1] >= length:
            windows = accepted.unfold(-1, length, 1)
            figures[str(length)] = round(1 + windows.cumprod(-1).sum(-1).mean().item(), 4)
    return figures
