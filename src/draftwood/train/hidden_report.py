"""Figures of a drafter of hidden states on held-out chats."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from draftwood.train.features import Features
from draftwood.train.hidden import block_log_probs
from draftwood.train.hidden_batches import Batch, batch_of, possible_anchors
from draftwood.train.number_format import autocast

EVERY = 3  # anchors of a chat: every third is measured
TREE = 16  # nodes of the measured tree


def figures(
    model: Any, *, embed: nn.Module, head: Tensor, features: Features, held_out: Sequence[int], index: Tensor
) -> dict[str, Any]:
    """Held-out figures of a drafter, in evaluation mode.

    ``rejection`` is the probability that a token drawn from the drafter is rejected at temperature 1, by slot, with the
    text's own tokens before it. Tokens beyond the target's 256 likeliest count as rejected. ``chain`` is the mean of
    ``1 + sum a_1 ... a_i`` over the slots' acceptances. ``tree`` is one more than the number of tokens of the held-out text
    in the best-first tree of 16 nodes. ``greedy`` is the share of slots where drafter and target prefer the same token.
    """
    block = model.config.block
    rejected, same, count = (torch.zeros(block, dtype=torch.float64) for _ in range(3))
    chain = tree = anchors = 0.0
    for example in (features[i] for i in held_out):
        chosen = possible_anchors(example)[::EVERY]
        if not len(chosen):
            continue
        batch = {k: v.to(model.device) for k, v in batch_of([example], [chosen], block, index).items()}
        (logp, found), real = accepted(model, embed, head, batch), batch["real"][0]
        rejected += ((1 - found) * real).sum(0).double().cpu()
        same += ((batch["tops"][0, :, :, 0] == logp[0].argmax(-1)) & real).sum(0).double().cpu()
        count += real.sum(0).double().cpu()
        chain += float((1 + found.cumprod(-1).sum(-1)).sum())
        base = logp[0] - model.markov(batch["parents"][0]).float()  # up to a constant of each slot
        tree += sum(map(_found, [model] * len(real), base, batch["parents"][0, :, 0], batch["labels"][0], real))
        anchors += len(real)
    return {
        "rejection": [round(value, 4) for value in (rejected / count.clamp(min=1)).tolist()],
        "greedy": [round(value, 4) for value in (same / count.clamp(min=1)).tolist()],
        "chain": round(chain / max(1, anchors), 4),
        "tree": round(1 + tree / max(1, anchors), 4),
    }


def accepted(model: Any, embed: nn.Module, head: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Log-probabilities of a batch of one chat, and by [anchor, slot] the probability that a drawn token is accepted."""
    with autocast(model.device):
        logp = block_log_probs(model, embed, head, batch).float()
    shared = torch.minimum(batch["log_probs"].exp(), logp.gather(-1, batch["tops"]).exp()).sum(-1)
    return logp, shared[0] * batch["real"][0]


def _found(model: Any, base: Tensor, root: Tensor, labels: Tensor, real: Tensor) -> int:
    """Tokens of the text in the best-first tree of :data:`TREE` nodes."""
    ids = model.draft_tokens
    heap: list[tuple[float, int, int, int, bool]] = []  # -log-probability, number, depth, token, on the text's path

    def expand(depth: int, token: Tensor, value: float, on_path: bool) -> None:
        best = (base[depth] + model.markov(token).float()).log_softmax(-1).topk(min(TREE, base.shape[-1]))
        for logp, child in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            hit = on_path and bool(real[depth]) and child == int(labels[depth])
            heapq.heappush(heap, (value - logp, len(heap), depth + 1, child, hit))

    expand(0, root, 0.0, True)
    found = 0
    for _ in range(TREE):
        value, _, depth, child, hit = heapq.heappop(heap)
        found += hit
        if depth < len(base):
            expand(depth, ids[child], value, hit)
    return found
