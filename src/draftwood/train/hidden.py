"""Training and figures of a drafter of hidden states (:mod:`draftwood.runners.hidden.model`) on the target's chats.

The loss of a slot is mostly the total variation distance to the target's distribution: the probability that the slot's token
is rejected. Slots are weighted by ``exp(-k / 4)``, since later ones are reached less often. Source: DSpark (DeepSpec).
Scores are made a part of the slots at a time: those of a whole batch do not fit a processor's caches, or a GPU's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.core.errors import ConfigError
from draftwood.runners.hidden.layers import block_input
from draftwood.runners.hidden.model import HiddenBlockConfig, HiddenBlockDrafter, vocabulary_digest
from draftwood.train.config import DrafterConfig
from draftwood.train.features import Batch, Example, Features, batch_of, possible_anchors
from draftwood.train.number_format import autocast, number_format

SLOT_DECAY: Final = 4.0  # slots
TVD_WEIGHT: Final = 0.9
CE_WEIGHT: Final = 0.1
EVERY: Final = 3  # anchors of a held-out chat: every third is measured
_SLOTS: Final = {"cpu": 128, "cuda": 4096}  # of one product


def slots_loss(
    head: Float[Tensor, "draft_vocab width"],
    markov_out: Float[Tensor, "draft_vocab rank"],
    states: Float[Tensor, "slot width"],
    markov: Float[Tensor, "slot rank"],
    tops: Int[Tensor, "slot kept"],
    target: Float[Tensor, "slot kept"],
    weight: Float[Tensor, "slot"],
) -> Float[Tensor, ""]:
    """The weighted sum of the slots' losses. A part's gradients are computed with its scores, which are not kept.

    Args:
        head: output weights, which are not trained.
        markov_out: output weights of the Markov head.
        states, markov: of the slots; their scores are ``states @ head.T + markov @ markov_out.T``.
        tops: the target's likeliest tokens, numbered as in the draft's vocabulary.
        target: their probabilities; 0 where the draft cannot propose them.
    """
    kind, size = number_format(states.device.type), _SLOTS.get(states.device.type, _SLOTS["cpu"])
    parts = zip(*(values.split(size) for values in (states, markov, tops, target, weight)), strict=True)
    head, loss = head.to(kind), torch.zeros((), device=states.device)
    for x, y, *rest in parts:
        part = _part_loss(head, markov_out, x, y, *rest)
        pairs = zip(inputs := (x, y, markov_out), torch.autograd.grad(part, inputs), strict=True)
        loss = loss + part.detach() + sum(((v - v.detach()) * g).sum() for v, g in pairs)  # zeros that have the gradients
    return loss


def _part_loss(
    head: Tensor, markov_out: Tensor, states: Tensor, markov: Tensor, tops: Tensor, target: Tensor, weight: Tensor
) -> Tensor:
    x, y, to_scores = (weights.to(head.dtype) for weights in (states, markov, markov_out))
    logp = (x @ head.T + y @ to_scores.T).float().log_softmax(-1).gather(-1, tops)
    rejected = 1 - torch.minimum(target, logp.exp()).sum(-1)
    entropy = -(target * logp).sum(-1)
    return ((TVD_WEIGHT * rejected + CE_WEIGHT * entropy) * weight).sum()


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
    states, markov = _states(model, embed, batch).flatten(0, 1), model.markov_in(parents).flatten(0, 2)
    tops, target = batch["tops"].flatten(0, 2), batch["log_probs"].exp().flatten(0, 2)
    loss: Tensor = slots_loss(head, model.markov_out.weight, states, markov, tops, target, weight)
    return loss / weight.sum().clamp(min=1e-6)


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
    """A drafter whose layers begin as the target's last layers, where these have the same shapes."""
    depth = target.config.num_hidden_layers
    layers = getattr(target.config, "per_layer_config", None)  # of models whose layers are unlike
    own = layers[depth - 1] if layers else target.config
    heads = own.num_attention_heads
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
    """The layers that are read: an early one, the middle, and the input of the last ``layers`` layers."""
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


def figures(
    model: Any, *, embed: nn.Module, head: Tensor, features: Features | Sequence[Example], held_out: Sequence[int],
    index: Tensor,
) -> dict[str, Any]:  # fmt: skip
    """Held-out figures of a drafter, in evaluation mode.

    ``rejection`` is the probability that a token drawn from the drafter is rejected at temperature 1, by slot, with the
    text's own tokens before it. Tokens beyond the target's 256 likeliest count as rejected. ``chain`` is the mean of
    ``1 + sum a_1 ... a_i`` over the slots' acceptances.
    """
    rejected, count = (torch.zeros(model.config.block, dtype=torch.float64) for _ in range(2))
    chain, anchors = 0.0, 0
    for example in (features[i] for i in held_out):
        chosen = possible_anchors(example)[::EVERY]
        if not len(chosen):
            continue
        batch = {k: v.to(model.device) for k, v in batch_of([example], [chosen], model.config.block, index).items()}
        found, real = accepted(model, embed, head, batch), batch["real"][0]
        rejected += ((1 - found) * real).sum(0).double().cpu()
        count += real.sum(0).double().cpu()
        chain += float((1 + found.cumprod(-1).sum(-1)).sum())
        anchors += len(real)
    return {
        "rejection": [round(value, 4) for value in (rejected / count.clamp(min=1)).tolist()],
        "chain": round(chain / max(1, anchors), 4),
    }


def accepted(model: Any, embed: nn.Module, head: Tensor, batch: Batch) -> Tensor:
    """The probability that a drawn token is accepted, by [anchor, slot] of a batch of one chat."""
    with autocast(model.device):
        logp = block_log_probs(model, embed, head, batch).float()
    shared = torch.minimum(batch["log_probs"].exp(), logp.gather(-1, batch["tops"]).exp()).sum(-1)
    return shared[0] * batch["real"][0]
