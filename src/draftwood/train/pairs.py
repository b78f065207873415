"""Padded batches of tokens from sentence pairs on disk.

A data folder holds ``NAME.train.LANGUAGE`` and ``NAME.val.LANGUAGE`` (or ``.xz``) for two languages. One file translates the
other, line by line. A batch holds pairs of nearly equal lengths, up to a number of tokens, so there is little padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from draftwood.core.errors import ConfigError
from draftwood.train.config import PairsConfig

IGNORED = -100
"""The label of a position that is not in the loss."""

HELD_OUT_TOKENS = 12_000
"""Most tokens of a held-out batch, both languages and padding included."""


@dataclass(frozen=True, kw_only=True)
class TokenPairs:
    """Sentence pairs as token ids, each sentence with its end-of-sentence token; ``too_long`` counts pairs left out."""

    sources: list[list[int]]
    targets: list[list[int]]
    too_long: int = 0

    def __len__(self) -> int:
        return len(self.sources)

    def lengths(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """Tokens of each sentence, int64 [pair, side]."""
        return np.array([[len(s), len(t)] for s, t in zip(self.sources, self.targets, strict=True)])

    def spread(self, count: int) -> TokenPairs:
        """At most ``count`` pairs, evenly spaced, since corpora are often sorted."""
        if count < 1:
            raise ConfigError(f"the number of sentence pairs is {count}; give 1 or more")
        chosen = [i * len(self) // count for i in range(count)] if count < len(self) else range(len(self))
        return TokenPairs(
            sources=[self.sources[i] for i in chosen], targets=[self.targets[i] for i in chosen], too_long=self.too_long
        )


def encode_pairs(tokenizer: Any, sides: tuple[list[str], list[str]], longest: int) -> TokenPairs:
    """Token ids of source and target sentences; pairs with a sentence of more than ``longest`` tokens are left out."""
    encoded = ([e.ids for e in tokenizer.backend_tokenizer.encode_batch_fast(side)] for side in sides)
    kept = [pair for pair in zip(*encoded, strict=True) if max(map(len, pair)) <= longest]
    if not kept:
        raise ConfigError(f"every sentence pair has more than {longest} tokens; give shorter sentences or a longer context")
    sources, targets = map(list, zip(*kept, strict=True))
    return TokenPairs(sources=sources, targets=targets, too_long=len(sides[0]) - len(kept))


def padded(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    """The rows as int64 [row, longest], padded with ``fill`` on the right."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=fill)


def batches_of(lengths: np.ndarray[tuple[int, int], np.dtype[np.int64]], tokens: int, rng: np.random.Generator) -> list[Any]:
    """Indices of sentences of nearly equal lengths, batch by batch, in random order.

    Args:
        lengths: int [sentence, side].
        tokens: the largest size of a batch: its number of rows times the sum over sides of the longest sentence.
        rng: shuffles the batches, and sentences of equal lengths.
    """
    if lengths.sum(1).max() > tokens:
        raise ConfigError(f"a sentence pair of {lengths.sum(1).max()} tokens does not fit a batch of {tokens}; give more")
    order = rng.permutation(len(lengths))
    order = order[np.lexsort(lengths[order].T)]
    batches, start, longest = [], 0, lengths[order[0]]
    for end, index in enumerate(order):
        longest = np.maximum(longest, lengths[index])
        if (end + 1 - start) * longest.sum() > tokens:
            batches.append(order[start:end])
            start, longest = end, lengths[index]
    batches.append(order[start:])
    return [batches[i] for i in rng.permutation(len(batches))]


def batch_of(pairs: TokenPairs, chosen: Sequence[int], pad: int) -> dict[str, Tensor]:
    """The pairs with these indices as one batch.

    It holds ``input_ids`` and ``attention_mask`` int64 [row, source token], padded with ``pad`` and 0, and ``labels`` int64
    [row, target token], padded with ``IGNORED``.
    """
    sources = padded([pairs.sources[i] for i in chosen], IGNORED)
    labels = padded([pairs.targets[i] for i in chosen], IGNORED)
    real = sources != IGNORED
    return {"input_ids": sources.masked_fill(~real, pad), "attention_mask": real.long(), "labels": labels}


def held_out_batches(pairs: TokenPairs, pad: int, device: torch.device) -> list[dict[str, Tensor]]:
    """All pairs in batches of a fixed size, in an order that depends on the pairs only."""
    chosen = batches_of(pairs.lengths(), HELD_OUT_TOKENS, np.random.default_rng(0))
    return [{k: v.to(device) for k, v in batch_of(pairs, c, pad).items()} for c in chosen]


class PairBatches(Dataset[dict[str, Tensor]]):
    """Batches of sentence pairs, one item per optimizer step, epoch after epoch.

    An item comes from :func:`batch_of`; it depends on its number and the seed only.
    """

    def __init__(self, pairs: TokenPairs, config: PairsConfig, pad: int) -> None:
        self.pairs, self.tokens, self.seed, self.pad = pairs, config.batch, config.seed, pad
        self.lengths = pairs.lengths()
        self.epoch, self.batches = 0, self._batches(0)
        self.steps = config.epochs * len(self.batches) if config.steps is None else config.steps
        if self.steps < 1:
            raise ConfigError(f"the number of steps is {self.steps}; give at least 1 step or epoch")

    def _batches(self, epoch: int) -> list[Any]:
        return batches_of(self.lengths, self.tokens, np.random.default_rng((self.seed, epoch)))

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        epoch, number = divmod(index, len(self.batches))  # every epoch has as many batches
        if epoch != self.epoch:
            self.epoch, self.batches = epoch, self._batches(epoch)
        return batch_of(self.pairs, self.batches[number], self.pad)

    def tokens_until(self, steps: int) -> int:
        """Tokens of both languages in ``steps`` steps, without padding; parts of epochs count in proportion."""
        return round(int(self.lengths.sum()) * steps / len(self.batches))
