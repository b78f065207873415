"""Distances between the next-token distributions of target and drafter, and estimates of acceptance.

Shapes: ``target_logp`` and ``draft_logp`` are log-probabilities, float [..., vocab].

Sources: forward KL, Hinton et al. 2015 (arXiv 1503.02531); total variation as the rejection rate,
DistillSpec (Zhou et al. 2024, arXiv 2310.08461, section 3 and table 1).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def kl(target_logp: Tensor, draft_logp: Tensor) -> Tensor:
    """Forward divergence KL(target || draft)."""
    return (target_logp.exp() * (target_logp - draft_logp)).sum(-1).mean()


def tvd(target_logp: Tensor, draft_logp: Tensor) -> Tensor:
    """Total variation distance: the probability that one drafted token is rejected."""
    return (target_logp.exp() - draft_logp.exp()).abs().sum(-1).mean() / 2


def acceptance(target_logp: Tensor, draft_logp: Tensor) -> Tensor:
    """Acceptance probability float [...] of a token sampled from the drafter: sum over tokens of min(target, draft)."""
    return torch.minimum(target_logp, draft_logp).exp().sum(-1)


def chain_efficiency(accepted: Tensor, lengths: Iterable[int] = (2, 3, 4, 5)) -> dict[str, float]:
    """Estimated tokens per round of a drafted chain, from the acceptances float [row, position] along given texts.

    For a chain of L tokens it is the mean over starting positions of ``1 + sum_{i<=L} a_1 ... a_i``, where ``a_i`` is the
    acceptance i - 1 positions later. It is an estimate for text sampled from the target. A real chain continues with
    accepted drafted tokens, which follow min(target, draft), not the target. On other text the figure only compares
    drafters.
    """
    figures = {}
    for length in lengths:
        if accepted.shape[-1] >= length:
            windows = accepted.unfold(-1, length, 1)
            figures[str(length)] = round(1 + windows.cumprod(-1).sum(-1).mean().item(), 4)
    return figures
