"""A drafter distilled from its target: a much smaller Llama with the same tokenizer.

It learns the target's next-token distribution, on training text and on text sampled from the target (DistillSpec, arXiv
2310.08461). DistillSpec's third kind of data, the drafter's own samples, is not used. The loss is the forward divergence
(Hinton et al. 2015, arXiv 1503.02531) and the total variation distance, the rejection rate (DistillSpec, section 3).

``target_logp`` and ``draft_logp`` are log-probabilities, float [..., vocab].
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from draftwood.core.errors import ConfigError
from draftwood.core.settings import LoadOptions
from draftwood.loading.models import load_tokenizer
from draftwood.loading.names import locate
from draftwood.train import data, loop
from draftwood.train.callbacks import measured
from draftwood.train.chat_files import check_tokens, held_out_of, read_chats
from draftwood.train.chats import chats_for
from draftwood.train.config import DraftConfig
from draftwood.train.lm import new_llama, saved_model
from draftwood.train.number_format import number_format


def kl(target_logp: Tensor, draft_logp: Tensor) -> Tensor:
    """Forward divergence KL(target || draft)."""
    return (target_logp.exp() * (target_logp - draft_logp)).sum(-1).mean()


def tvd(target_logp: Tensor, draft_logp: Tensor) -> Tensor:
    """Total variation distance: the probability that one drafted token is rejected."""
    return (target_logp.exp() - draft_logp.exp()).abs().sum(-1).mean() / 2


def acceptance(target_logp: Tensor, draft_logp: Tensor) -> Tensor:
    """Acceptance probability float [...] of a token sampled from the drafter: sum over tokens of min(target, draft)."""
    return torch.minimum(target_logp, draft_logp).exp().sum(-1)


def distillation(target: nn.Module, config: DraftConfig) -> loop.Loss:
    """The loss of a drafter: the mean distance over positions to a frozen target's distribution."""

    def distance(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
        draft_logp, target_logp = draft_logits.float().log_softmax(-1), target_logits.float().log_softmax(-1)
        loss = kl(target_logp, draft_logp)
        return loss + config.tvd_weight * tvd(target_logp, draft_logp) if config.tvd_weight else loss

    score, compare = (torch.compile(target), torch.compile(distance)) if config.compile else (target, distance)

    def loss(model: Any, inputs: dict[str, Tensor], state: object) -> Tensor:
        tokens = inputs["input_ids"]
        draft_logits = model(input_ids=tokens, use_cache=False).logits
        with torch.no_grad():
            target_logits = score(input_ids=tokens, use_cache=False).logits
        return compare(draft_logits[:, :-1], target_logits[:, :-1])

    return loss


def train_draft(config: DraftConfig) -> dict[str, Any]:
    """Distil a drafter into ``config.out``; returns the contents of ``metrics.json``."""
    mix = data.parse_mix(config.mix)
    documents = {name: data.read_part(config.data, name, "train") for name in mix}
    target, tokenizer = load_target(config)
    loop.claim(config)
    written, held_out = _chat_blocks(chats_for(config, config.context), config.context, len(tokenizer))
    text = data.train_blocks(documents, mix, tokenizer, config.context, config.seed)
    held_out |= data.held_out_blocks(config.data, mix, tokenizer, config.context)
    whole, fraction = divmod(config.sampled_epochs, 1)
    dataset = data.items(text, *[written] * int(whole), written[: round(fraction * len(written))])
    model = new_llama(config, tokenizer)

    def report(blocks: dict[str, Tensor], model: Any) -> dict[str, dict[str, float]]:
        return agreement(model, target, blocks, config.batch)

    subset = {name: blocks[: config.report_blocks] for name, blocks in held_out.items()}
    what = f"{len(dataset) * config.context:,} tokens to train on"
    result = loop.fit(config, model, dataset, partial(report, subset), loss=distillation(target, config), what=what)
    loop.save(model, tokenizer, config.out)
    figures = {"held_out": measured(model, partial(report, held_out)), "sampled_tokens": written.numel(), **result}
    return loop.record(config, model, {name: blocks.numel() for name, blocks in held_out.items()}, figures)


def load_target(config: DraftConfig) -> tuple[Any, Any]:
    """The frozen target in the faster number format, and its tokenizer."""
    device = loop.device()
    target = saved_model(config.target, number_format(device.type)).requires_grad_(False)
    tokenizer = load_tokenizer(locate(config.target), LoadOptions())
    limit = target.config.max_position_embeddings
    if config.context > limit:
        raise ConfigError(f"context {config.context} is longer than the target's {limit}; use at most {limit}")
    return target.to(device), tokenizer


def _chat_blocks(folder: Path, context: int, vocab: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Packed blocks of the chats in a folder, to train on and held out."""
    chats = read_chats(folder)
    check_tokens(chats, folder, vocab)
    training, held_out = ([chats[i].tokens for i in part] for part in held_out_of(len(chats)))
    blocks, others = (data.pack(np.array([*chain(*part)]), context) for part in (training, held_out))
    if not len(blocks) or not len(others):
        raise ConfigError(
            f"the {len(chats)} chats in {folder} are too few for training and held-out blocks of {context} tokens:"
            " write more (--tokens, here or of train chats), or give a shorter context"
        )
    return blocks, {"written_by_target": others}


def agreement(model: Any, target: Any, held_out: dict[str, Tensor], batch: int) -> dict[str, dict[str, float]]:
    """How well a drafter predicts its target, for each kind of held-out blocks int64 [block, length].

    ``acceptance`` is at temperature 1. ``greedy`` is the share of positions where both prefer the same token, ``ce`` the
    drafter's loss on the text in nats per token.
    """
    figures = {}
    for name, blocks in held_out.items():
        accepted, same, loss = [], [], []
        for tokens in torch.split(blocks.to(target.device), batch):
            logits = [m(input_ids=tokens, use_cache=False).logits[:, :-1] for m in (model, target)]
            draft_logp, target_logp = (each.float().log_softmax(-1) for each in logits)
            accepted.append(acceptance(target_logp, draft_logp).cpu())
            same.append((target_logp.argmax(-1) == draft_logp.argmax(-1)).float().cpu())
            loss.append(-draft_logp.gather(-1, tokens[:, 1:, None]).squeeze(-1).cpu())
        figures[name] = {
            "acceptance": round(torch.cat(accepted).mean().item(), 4),
            "greedy": round(torch.cat(same).mean().item(), 4),
            "ce": round(torch.cat(loss).mean().item(), 4),
        }
    return figures
