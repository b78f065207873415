"""Sentences cut into a committed prefix and a block to draft, and the evaluation of block drafters.

Sources: Spec-Drafter, Xia et al. 2023, arXiv 2203.16487; glancing, Qian et al. 2021, arXiv 2008.07905.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from draftwood.train.config import SpecDrafterConfig
from draftwood.train.pairs import IGNORED, PairBatches, TokenPairs, held_out_batches

Batch = dict[str, Tensor]
Scores = Callable[[Batch], Tensor]
"""From a cut batch to scores of its blocks, float [row, k, vocab]."""


def cut(batch: Batch, committed: Tensor, k: int, start: int) -> Batch:
    """Cut every target sentence after its first ``committed`` tokens.

    Args:
        batch: ``input_ids``, ``attention_mask`` and ``labels`` from :func:`draftwood.train.pairs.batch_of`.
        committed: int64 [row], the number of kept tokens of each sentence.
        k: length of the block in tokens.
        start: the first token of every target sentence; it also pads short prefixes.

    Returns:
        The batch with ``prefix`` and ``prefix_mask`` int64 [row, 1 + most committed], the start token first, and ``labels``
        int64 [row, k]: the tokens of the block, ``IGNORED`` after the end of the sentence.
    """
    labels, width = batch["labels"], int(committed.max())
    kept = torch.arange(1 + width, device=labels.device) <= committed[:, None]
    prefix = torch.nn.functional.pad(labels[:, :width], (1, 0), value=start).masked_fill(~kept, start)
    block = torch.nn.functional.pad(labels, (0, k), value=IGNORED)
    block = block.gather(1, committed[:, None] + torch.arange(k, device=labels.device))
    return {**batch, "prefix": prefix, "prefix_mask": kept.long(), "labels": block}


def cut_at_random(batch: Batch, rng: np.random.Generator, k: int, start: int) -> Batch:
    """Cut every sentence of L tokens at random; from 0 to L - 1 tokens are kept.

    The kept share of the tokens is u squared, with u uniform. So short prefixes are more frequent, as in decoding, where
    every sentence begins with none.
    """
    lengths = (batch["labels"] != IGNORED).sum(1).numpy()
    committed = np.floor(lengths * rng.random(len(lengths)) ** 2).astype(np.int64)
    return cut(batch, torch.from_numpy(committed), k, start)


class BlockBatches(PairBatches):
    """Batches of sentence pairs cut at random; an item depends on its number and the seed only."""

    def __init__(self, pairs: TokenPairs, config: SpecDrafterConfig, pad: int, start: int) -> None:
        super().__init__(pairs, config, pad)
        self.shortest, self.block = config.shortest_block, config.block
        self.start = start

    def __getitem__(self, index: int) -> Batch:
        rng = np.random.default_rng((self.seed, 1, index))
        k = int(rng.integers(self.shortest, self.block + 1))
        return cut_at_random(super().__getitem__(index), rng, k, self.start)


def glance(guessed: Tensor, labels: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """The positions to reveal, bool [row, k]: of a row's n wrong predictions, a random ``share * n``, rounded down.

    Args:
        guessed: int64 [row, k], the predicted tokens.
        labels: int64 [row, k]; ``IGNORED`` ones are never revealed.
        share: from 0 to less than 1, so that some positions stay masked.
        generator: on the CPU; chooses the positions.
    """
    wrong = ((guessed != labels) & (labels != IGNORED)).cpu()
    order = torch.rand(wrong.shape, generator=generator).masked_fill(~wrong, 2.0).argsort(-1).argsort(-1)
    return (order < (share * wrong.sum(-1, keepdim=True)).floor()).to(labels.device)


def replay(scores: Scores, batch: Batch, k: int, start: int) -> tuple[int, int]:
    """Draft and verify a batch at temperature 0 against the target's known output.

    Each pass drafts ``k`` tokens, keeps them up to the first that is not the target's, and adds one token of the target.
    Passes repeat until the sentence ends.

    Returns:
        The numbers of tokens and of target passes, summed over rows.
    """
    lengths = (batch["labels"] != IGNORED).sum(1)
    committed = torch.zeros_like(lengths)
    passes = 0
    while (unfinished := committed < lengths).any():
        rows = cut({name: tensor[unfinished] for name, tensor in batch.items()}, committed[unfinished], k, start)
        right = (scores(rows).argmax(-1) == rows["labels"]).long().cumprod(-1).sum(-1)
        passes += len(right)
        committed[unfinished] = torch.minimum(committed[unfinished] + right + 1, lengths[unfinished])
    return int(lengths.sum()), passes


def evaluate(scores: Scores, outputs: TokenPairs, k: int, pad: int, start: int, device: torch.device) -> dict[str, float]:
    """Evaluate a drafter on sentences and the target's outputs for them.

    Returns:
        ``loss`` in nats per drafted token at random cuts; ``tokens_per_pass``, accepted ones and the target's own token of
        each pass: the block efficiency of exact greedy decoding.
    """
    rng, loss, drafted, totals = np.random.default_rng(0), 0.0, 0, np.zeros(2, dtype=np.int64)
    for batch in held_out_batches(outputs, pad, device):
        on_host = {name: tensor.cpu() for name, tensor in batch.items()}
        rows = {name: tensor.to(device) for name, tensor in cut_at_random(on_host, rng, k, start).items()}
        logits = scores(rows).flatten(0, 1).float()
        loss += torch.nn.functional.cross_entropy(
            logits, rows["labels"].flatten(), ignore_index=IGNORED, reduction="sum"
        ).item()
        drafted += int((rows["labels"] != IGNORED).sum())
        totals += replay(scores, batch, k, start)
    tokens, passes = totals.tolist()
    return {"loss": round(loss / drafted, 4), "tokens_per_pass": round(tokens / passes, 4)}
