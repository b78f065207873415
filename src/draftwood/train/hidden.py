"""Training of a drafter of hidden states (:mod:`draftwood.runners.hidden.model`) on the target's chats.

The loss of a slot is mostly the total variation distance to the target's distribution: the probability that the slot's token
is rejected. Slots are weighted by ``exp(-k / 4)``, since later ones are reached less often. Source: DSpark (DeepSpec).
Scores are made a part of the slots at a time: those of a whole batch do not fit a processor's caches, or a GPU's memory.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.core.errors import ConfigError
from draftwood.runners.hidden.layers import block_input
from draftwood.runners.hidden.model import HiddenBlockConfig, HiddenBlockDrafter
from draftwood.runners.pairing import vocabulary_digest
from draftwood.train.config import DrafterConfig
from draftwood.train.hidden_batches import Batch
from draftwood.train.number_format import number_format

SLOT_DECAY: Final = 4.0  # slots
TVD_WEIGHT: Final = 0.9
CE_WEIGHT: Final = 0.1
_SLOTS: Final = {"cpu": 128, "cuda": 4096}  # of one product


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
        kind, size = number_format(states.device.type), _SLOTS.get(states.device.type, _SLOTS["cpu"])
        trained = [weights.detach().float().requires_grad_() for weights in (states, markov, out)]
        head, loss = head.to(kind), torch.zeros((), device=states.device)
        for start in range(0, len(states), size):
            part = slice(start, start + size)
            own = Slots(*(values[part] for values in slots))
            with torch.enable_grad():
                x, y, to_scores = (weights.to(kind) for weights in (trained[0][part], trained[1][part], trained[2]))
                logp = (x @ head.T + y @ to_scores.T).float().log_softmax(-1)
                part_loss = own.loss(logp.gather(-1, own.tops))
            part_loss.backward()
            loss += part_loss.detach()
        ctx.save_for_backward(*(weights.grad for weights in trained))
        return loss

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        to_states, to_markov, to_out = (gradient * upstream[0] for gradient in ctx.saved_tensors)
        return to_states, None, to_markov, to_out, None, None, None


def block_log_probs(model: Any, embed: nn.Module, head: Tensor, batch: Batch) -> Tensor:
    """Log-probabilities [row, anchor, slot, draft_vocab] after each parent of the text."""
    parents = batch["parents"]
    base = nn.functional.linear(_states(model, embed, batch), head).view(*parents.shape, -1)
    logp: Tensor = (base.float() + model.markov(parents).float()).log_softmax(-1)
    return logp


def block_loss(model: Any, embed: nn.Module, head: Tensor, batch: Batch) -> Tensor:
    """The weighted mean of the losses of all slots that the target wrote."""
    parents = batch["parents"]
    decay = torch.exp(-torch.arange(parents.shape[2], device=parents.device) / SLOT_DECAY)
    weight = (batch["real"] * decay).flatten()
    markov = model.markov_in(parents).flatten(0, 2)
    scored = Scored(_states(model, embed, batch).flatten(0, 1), head, markov, model.markov_out.weight)
    slots = Slots(batch["tops"].flatten(0, 2), batch["log_probs"].exp().flatten(0, 2), weight)
    loss: Tensor = head_loss(scored, slots) / weight.sum().clamp(min=1e-6)
    return loss


def _states(model: Any, embed: nn.Module, batch: Batch) -> Tensor:
    """States [row, anchor x slot, width] of all blocks."""
    anchors, parents = batch["anchors"], batch["parents"]
    rows, count, block = parents.shape
    with torch.no_grad():
        roots = embed(parents[:, :, 0])
    x = block_input(roots.flatten(0, 1).float(), model.mask, block).view(rows, count * block, -1)
    token = torch.arange(batch["hidden"].shape[1], device=x.device)
    memory = model.memory(batch["hidden"].float(), token.expand(rows, -1))
    positions = (anchors[:, :, None] + torch.arange(block, device=x.device)).flatten(1)
    states: Tensor = model.states(x, positions, memory, _mask(anchors, block, len(token)))
    return states


def _mask(anchors: Tensor, block: int, length: int) -> Tensor:
    """Additive mask [row, 1, anchor x slot, text + anchor x slot]: the text before the anchor, and the block so far."""
    count, device = anchors.shape[1], anchors.device
    text = torch.arange(length, device=device) < anchors.repeat_interleave(block, dim=1)[:, :, None]
    own = torch.arange(count, device=device).repeat_interleave(block)
    slot = torch.arange(block, device=device).repeat(count)
    within = (own[:, None] == own) & (slot[:, None] >= slot)
    seen = torch.cat([text, within.expand(len(anchors), -1, -1)], dim=2)
    return torch.where(seen, 0.0, -torch.inf).unsqueeze(1)


def new_drafter(config: DrafterConfig, target: Any, tokenizer: Any, draft_tokens: Tensor) -> HiddenBlockDrafter:
    """A drafter whose layers begin as the target's last layers, where these have the same shapes.

    Raises:
        ConfigError: more layers than the target has.
    """
    own = target.config
    heads = own.num_attention_heads
    depth = own.num_hidden_layers
    drafter = HiddenBlockDrafter(
        HiddenBlockConfig(
            target_layers=taps(depth, config.layers),
            target_depth=depth,
            vocab_size=int(target.get_output_embeddings().weight.shape[0]),
            vocabulary=vocabulary_digest(tokenizer),
            hidden_size=own.hidden_size,
            block=config.block,
            draft_vocab_size=len(draft_tokens),
            markov_rank=config.rank,
            num_hidden_layers=config.layers,
            num_attention_heads=heads,
            num_key_value_heads=getattr(own, "num_key_value_heads", None) or heads,
            head_dim=getattr(own, "head_dim", None) or own.hidden_size // heads,
            intermediate_size=getattr(own, "intermediate_size", None) or 4 * own.hidden_size,
            rms_norm_eps=1e-5,
            rope_theta=float((getattr(own, "rope_parameters", None) or {}).get("rope_theta", 10_000.0)),
        )
    )
    drafter.draft_tokens.copy_(draft_tokens)
    nn.init.zeros_(drafter.markov_out.weight)
    nn.init.normal_(drafter.mask, std=0.02)
    copy_layers(drafter, target)
    return drafter


def taps(depth: int, layers: int) -> list[int]:
    """The layers that are read: an early one, the middle, and the input of the last ``layers`` layers.

    Raises:
        ConfigError: the target, with ``depth`` layers, has fewer.
    """
    if layers > depth:
        raise ConfigError(f"layers is {layers}, but the target has {depth}: give fewer")
    last = depth - layers
    return [*sorted({layer for layer in (2, depth // 2) if layer < last}), last]


def copy_layers(drafter: HiddenBlockDrafter, target: Any) -> None:
    """Begin with the target's last layers reading what they read there.

    Other shapes keep their random weights. So does the whole drafter of a target that is not built as Llama is.
    """
    base = target.base_model
    if getattr(base, "layers", None) is None or getattr(base, "norm", None) is None:
        return
    last = base.layers[-len(drafter.layers) :]
    width = drafter.config.hidden_size
    with torch.no_grad():
        drafter.fc.weight.zero_()
        drafter.fc.weight[:, -width:] = torch.eye(width)
        drafter.norm.weight.copy_(base.norm.weight)
        for layer, source in zip(drafter.layers, last, strict=True):
            own, theirs = layer.state_dict(), source.state_dict()
            same = {name: theirs[name].float() for name in own if name in theirs and own[name].shape == theirs[name].shape}
            scale = same.pop("input_layernorm.weight", torch.ones(width))
            for name in ("q_proj", "k_proj", "v_proj"):  # the text's states have another norm, so its scale goes here
                if (key := f"self_attn.{name}.weight") in same:
                    same[key] = same[key] * scale
            layer.load_state_dict({**own, **same})
