"""Distances between distributions, and the figures and losses that follow from them, against PyTorch and by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from draftwood.train import hidden as tested
from draftwood.train.draft import acceptance, chain_efficiency, kl, tvd
from draftwood.train.hidden import CE_WEIGHT, TVD_WEIGHT, Scored, Slots, head_loss


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
    assert set(chain_efficiency(torch.ones(1, 3))) == {"2", "3"}  # none longer than the text


SLOTS, WIDTH, RANK, VOCAB, KEPT = 9, 6, 3, 13, 5


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products in float32 of four slots at a time, so that the last part is smaller."""
    monkeypatch.setattr(tested, "number_format", lambda device: torch.float32)
    monkeypatch.setattr(tested, "_SLOTS", {"cpu": 4})


def made(seed: int = 0) -> tuple[Scored, Slots]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((SLOTS, WIDTH), (VOCAB, WIDTH), (SLOTS, RANK), (VOCAB, RANK))
    scored = Scored(*(torch.randn(shape, generator=generator) for shape in shapes))
    tops = torch.stack([torch.randperm(VOCAB, generator=generator)[:KEPT] for _ in range(SLOTS)])
    target = torch.rand(SLOTS, KEPT, generator=generator).softmax(-1)
    target[:, -1] = 0.0  # a token that the draft cannot propose
    weight = torch.rand(SLOTS, generator=generator)
    weight[2] = 0.0
    return scored, Slots(tops, target, weight)


def plainly(scored: Scored, slots: Slots) -> Tensor:
    """The loss as it is defined, of all slots at once."""
    logp = (scored.states @ scored.head.T + scored.markov @ scored.out.T).log_softmax(-1)
    found = logp.gather(-1, slots.tops)
    rejected = 1 - torch.minimum(slots.target, found.exp()).sum(-1)
    entropy = -(slots.target * found).sum(-1)
    return ((TVD_WEIGHT * rejected + CE_WEIGHT * entropy) * slots.weight).sum()


def gradients(loss: Tensor, scored: Scored) -> list[Tensor]:
    return list(torch.autograd.grad(3 * loss, [scored.states, scored.markov, scored.out]))


def test_loss_and_gradients_are_those_of_the_definition() -> None:
    scored, slots = made()
    for part in scored:
        part.requires_grad_()
    one, two = head_loss(scored, slots), plainly(scored, slots)
    torch.testing.assert_close(one, two)
    mine, theirs = gradients(one, scored), gradients(two, scored)
    torch.testing.assert_close(mine, theirs)
    halved = slots._replace(weight=slots.weight / 2)
    assert not torch.allclose(mine[0], gradients(plainly(scored, halved), scored)[0]), "the comparison sees other weights"


def test_the_loss_is_the_rejection_rate_and_some_entropy() -> None:
    scores = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]).log()
    scored = Scored(scores, torch.eye(3), torch.zeros(2, 1), torch.zeros(3, 1))
    slots = Slots(torch.tensor([[0, 1], [2, 1]]), torch.tensor([[0.6, 0.4], [0.9, 0.1]]), torch.tensor([1.0, 0.0]))
    rejected, entropy = 1 - (0.5 + 0.3), -(0.6 * math.log(0.5) + 0.4 * math.log(0.3))
    assert float(head_loss(scored, slots)) == pytest.approx(0.9 * rejected + 0.1 * entropy, rel=1e-5)
    both = slots._replace(weight=torch.ones(2))
    assert float(head_loss(scored, both)) > float(head_loss(scored, slots)) + 0.1
