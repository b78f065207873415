"""Figures of a drafter of hidden states on held-out chats, and its model card."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

import torch
from torch import Tensor, nn

from draftwood.runners.hidden.model import HiddenBlockConfig
from draftwood.train.config import DrafterConfig
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


def card(config: DrafterConfig, drafter: HiddenBlockConfig, metrics: Mapping[str, Any]) -> str:
    """The text of ``README.md``; ``metrics`` are the contents of ``metrics.json``."""
    found, own = metrics["held_out"], drafter
    facts = "\n".join([
        f"* {metrics['parameters']:,} parameters in bfloat16: {own.num_hidden_layers} layer(s) of width {own.hidden_size}, "
        f"a Markov head of rank {own.markov_rank}",
        f"* reads the hidden states {', '.join(map(str, own.target_layers))} of {own.target_depth} of its target, "
        "and shares its embeddings and output weights",
        f"* proposes {own.draft_vocab_size:,} of {own.vocab_size:,} tokens",
    ])  # fmt: skip
    training = (
        f"{metrics['steps']:,} steps of {config.batch} chats with {config.anchors} blocks each "
        f"({metrics['tokens_seen']:,} blocks) in {metrics['seconds'] / 60:.0f} minutes."
    )
    rows = [(f"step {entry['step']:,}", entry["report"]) for entry in metrics["history"] if "report" in entry]
    return f"""# A drafter for {config.target.name}

It drafts a tree of up to {own.block} levels in one pass over the hidden states of its target, for `draftwood`.

{facts}

## Training

{training}

```
{_command(config)}
```

## Figures

On held-out chats of the target ({metrics["held_out_tokens"]["chats"]:,} tokens), at temperature 1. `chain` is the
expected number of tokens of a pass with a chain. `tree` is one more than the number of tokens of the chat in the
best-first tree of {TREE} nodes. Rejection rates are by slot. A token that the drafter cannot propose counts as rejected.

| | rejection by slot | chain | tree |
|---|---|---:|---:|
{_table([*rows, ("end", found)])}
"""


def _table(rows: list[tuple[str, Mapping[str, Any]]]) -> str:
    return "\n".join(
        f"| {name} | {' '.join(f'{value:.3f}' for value in one['rejection'])} | {one['chain']:.3f} | {one['tree']:.3f} |"
        for name, one in rows
    )


def _command(config: DrafterConfig) -> str:
    """The command with every setting that is not the default; paths are cut to their last part."""
    parts = ["draftwood train drafter"]
    for field in fields(config):
        value = getattr(config, field.name)
        if field.default is not MISSING and value == field.default:
            continue
        shown = getattr(value, "name", value)
        parts.append(f"--{field.name.replace('_', '-')} {shown}")
    return " \\\n  ".join(parts)
