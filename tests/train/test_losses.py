"""The loss of a drafter of hidden states, and its gradients, against its definition."""

import torch

from draftwood.train import hidden

SLOTS, WIDTH, RANK, VOCAB, KEPT = 9, 6, 3, 13, 5


def slots(seed=0):
    """The arguments of ``slots_loss``; the last of the target's tokens cannot be proposed, and one slot has no weight."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((VOCAB, WIDTH), (VOCAB, RANK), (SLOTS, WIDTH), (SLOTS, RANK))
    scored = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    tops = torch.stack([torch.randperm(VOCAB, generator=generator)[:KEPT] for _ in range(SLOTS)])
    target = torch.rand(SLOTS, KEPT, generator=generator).softmax(-1)
    target[:, -1] = 0.0
    weight = torch.rand(SLOTS, generator=generator)
    weight[2] = 0.0
    return [*scored, tops, target, weight]


def plainly(head, out, states, markov, tops, target, weight):
    """The loss as it is defined, of all slots at once: nine tenths of the rejection rate, and a tenth of the entropy."""
    found = (states @ head.T + markov @ out.T).log_softmax(-1).gather(-1, tops)
    rejected = 1 - torch.minimum(target, found.exp()).sum(-1)
    return ((0.9 * rejected - 0.1 * (target * found).sum(-1)) * weight).sum()


def test_loss_and_gradients_are_those_of_the_definition(monkeypatch):
    """In parts of four slots, so that the last one is smaller."""
    monkeypatch.setattr(hidden, "number_format", lambda device: torch.float32)
    monkeypatch.setattr(hidden, "_SLOTS", {"cpu": 4})
    given = slots()
    one, two = hidden.slots_loss(*given), plainly(*given)
    torch.testing.assert_close(one, two)
    mine, theirs = (torch.autograd.grad(3 * loss, given[1:4]) for loss in (one, two))
    torch.testing.assert_close(mine, theirs)
    halved = torch.autograd.grad(3 * plainly(*given[:-1], given[-1] / 2), given[1:4])
    assert not torch.allclose(mine[0], halved[0]), "the comparison sees other weights"
