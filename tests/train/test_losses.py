"""Distances between distributions, and the figures that follow from them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from draftwood.train.draft import acceptance, chain_efficiency, kl, tvd


def distributions(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(*shape, 7, generator=generator, dtype=torch.float64)).log_softmax(-1)


def test_total_variation_is_the_rejection_rate() -> None:
    target, draft = distributions(0, 5, 4), distributions(1, 5, 4)
    torch.testing.assert_close(tvd(target, draft), 1 - acceptance(target, draft).mean())


@pytest.mark.parametrize("distance", [kl, tvd])
def test_a_distance_is_zero_for_equal_distributions_only(distance: Callable[[Tensor, Tensor], Tensor]) -> None:
    target, draft = distributions(0, 5, 4), distributions(1, 5, 4)
    assert distance(target, target).abs() < 1e-12
    assert distance(target, draft) > 0.01


def test_divergences_agree_with_torch() -> None:
    target, draft = distributions(0, 5, 4), distributions(1, 5, 4)
    wanted = torch.nn.functional.kl_div(draft, target, log_target=True, reduction="none").sum(-1).mean()
    torch.testing.assert_close(kl(target, draft), wanted)


def test_acceptance_of_drawn_tokens_matches_speculative_sampling() -> None:
    target, draft = distributions(0, 1)[0], distributions(1, 1)[0]
    drawn = torch.multinomial(draft.exp(), 200_000, replacement=True, generator=torch.Generator().manual_seed(3))
    accepted = (target - draft).clamp(max=0).exp()[drawn].mean()
    torch.testing.assert_close(accepted, acceptance(target, draft), atol=0.005, rtol=0)


def test_chain_efficiency_of_a_constant_acceptance_is_a_geometric_sum() -> None:
    figures = chain_efficiency(torch.full((3, 10), 0.5))
    assert figures == {"2": 1.75, "3": 1.875, "4": 1.9375, "5": 1.9688}


def test_chain_efficiency_leaves_out_chains_longer_than_the_text() -> None:
    assert set(chain_efficiency(torch.ones(1, 3))) == {"2", "3"}
