"""The loss of a drafter's scores, a few slots at a time: scores of all slots of a batch do not fit the processor's caches.

The loss of a slot is mostly the total variation distance to the target's distribution: the probability that the slot's token
is rejected. Source: DSpark (DeepSpec).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.train.number_format import number_format

TVD_WEIGHT: Final = 0.9
CE_WEIGHT: Final = 0.1
_SLOTS: Final = 128  # of one product


class Slots(NamedTuple):
    """What the target says about some slots.

    Attributes:
        tops: the target's likeliest tokens, numbered as in the draft's vocabulary.
        target: their probabilities; 0 where the draft cannot propose them.
        weight: of each slot.
    """

    tops: Int[Tensor, "slot kept"]
    target: Float[Tensor, "slot kept"]
    weight: Float[Tensor, "slot"]

    def loss(self, found: Float[Tensor, "slot kept"]) -> Float[Tensor, ""]:
        """The weighted sum of the slots' losses, from the draft's log-probabilities of ``tops``."""
        rejected = 1 - torch.minimum(self.target, found.exp()).sum(-1)
        entropy = -(self.target * found).sum(-1)
        return ((TVD_WEIGHT * rejected + CE_WEIGHT * entropy) * self.weight).sum()

    def gradient(self, found: Float[Tensor, "slot kept"]) -> Float[Tensor, "slot kept"]:
        """The gradient of :meth:`loss`."""
        own = found.exp()
        below = torch.where(own < self.target, own, 0.0)
        return (TVD_WEIGHT * below + CE_WEIGHT * self.target) * -self.weight.unsqueeze(1)


class Scored(NamedTuple):
    """What scores slots: ``states @ head.T + markov @ out.T``.

    Attributes:
        states: of the slots.
        head: output weights, which are not trained.
        markov: of the slots' tokens.
        out: output weights of the Markov head.
    """

    states: Float[Tensor, "slot width"]
    head: Float[Tensor, "draft_vocab width"]
    markov: Float[Tensor, "slot rank"]
    out: Float[Tensor, "draft_vocab rank"]


def head_loss(scored: Scored, slots: Slots) -> Float[Tensor, ""]:
    """:meth:`Slots.loss` of the scores' distributions; has gradients for all but ``head``."""
    loss: Tensor = _HeadLoss.apply(*scored, *slots)  # type: ignore[no-untyped-call]
    return loss


@final
class _HeadLoss(torch.autograd.Function):
    """Computes the gradients together with the loss: a part's scores are not kept."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, head: Tensor, markov: Tensor, out: Tensor, *slots: Tensor) -> Tensor:
        kind = number_format(states.device.type)
        inputs = torch.cat([states.to(kind), markov.to(kind)], dim=1)
        weights = torch.cat([head.to(kind), out.to(kind)], dim=1)
        loss = torch.zeros((), device=states.device)
        to_inputs, to_out = torch.empty_like(inputs), torch.zeros_like(out, dtype=torch.float32)
        for start in range(0, len(inputs), _SLOTS):
            part = slice(start, start + _SLOTS)
            own = Slots(*(values[part] for values in slots))
            logp = (inputs[part] @ weights.T).float()
            logp -= logp.logsumexp(-1, keepdim=True)
            found = logp.gather(-1, own.tops)
            loss += own.loss(found)
            to_found = own.gradient(found)
            to_scores = logp.exp_().mul_(-to_found.sum(-1, keepdim=True)).scatter_add_(-1, own.tops, to_found).to(kind)
            to_inputs[part] = to_scores @ weights
            to_out += to_scores.T @ inputs[part, states.shape[1] :]
        ctx.save_for_backward(to_inputs, to_out)
        ctx.like = states, markov, out
        return loss

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        to_inputs, to_out = ctx.saved_tensors
        states, markov, out = ctx.like
        to_states, to_markov = to_inputs.split([states.shape[1], markov.shape[1]], dim=1)
        pairs = ((to_states, states), (to_markov, markov), (to_out, out))
        found = [(gradient * upstream[0]).to(like.dtype) for gradient, like in pairs]
        return (found[0], None, *found[1:], None, None, None)
