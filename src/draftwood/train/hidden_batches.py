"""Batches of chats with anchors: tokens after which a drafter of hidden states predicts a block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from draftwood.train.config import DrafterConfig
from draftwood.train.features import Example, Features

Batch = dict[str, Tensor]
HIDDEN_TYPE = torch.bfloat16  # of stored hidden states


def batch_of(examples: Sequence[Example], anchors: Sequence[Tensor], block: int, index: Tensor) -> Batch:
    """Pad examples to one batch, and look up what the target says about their blocks.

    A block at anchor ``t`` sees the hidden states of the tokens before ``t``, and token ``t`` is its root. Its slot ``k``
    predicts token ``t + k + 1``.

    Args:
        anchors: int64 [anchor] per example, the same number each.
        index: int64 [vocab], the number of each token in the draft's vocabulary, -1 where it has none.

    Returns:
        ``hidden`` [row, token, taps_width] and ``anchors`` [row, anchor]. By [row, anchor, slot]: ``parents``, the token
        before each prediction; ``real``, whether the target wrote the predicted token. By [row, anchor, slot, kept]:
        ``tops`` and ``log_probs``, the target's likeliest tokens, numbered as in the draft's vocabulary, -inf where the
        draft cannot propose them.
    """
    longest = max(len(example.tokens) for example in examples)
    hidden = torch.zeros(len(examples), longest, examples[0].hidden.shape[1], dtype=HIDDEN_TYPE)
    rows: list[tuple[Tensor, ...]] = []
    for row, (example, at) in enumerate(zip(examples, anchors, strict=True)):
        hidden[row, : len(example.tokens)] = example.hidden
        last = len(example.tokens) - 1
        slots = at[:, None] + torch.arange(block)
        parents, following = slots.clamp(max=last), (slots + 1).clamp(max=last)
        tops = index[example.tops[parents].long()]
        log_probs = example.log_probs[parents].float().masked_fill(tops < 0, -torch.inf)
        real = example.answered[following] & (slots < last)
        rows.append((example.tokens[parents], tops.clamp(min=0), log_probs, real))
    names = ("parents", "tops", "log_probs", "real")
    stacked = {name: torch.stack(parts) for name, parts in zip(names, zip(*rows, strict=True), strict=True)}
    return {"hidden": hidden, "anchors": torch.stack(list(anchors)), **stacked}


class AnchorBatches(torch.utils.data.Dataset[Batch]):
    """Training batches; a batch depends on its number and the seed only.

    An epoch holds every example once. Examples of nearly equal lengths share a batch.
    """

    def __init__(
        self, features: Features, examples: Sequence[int], config: DrafterConfig, *, steps: int, block: int, index: Tensor
    ) -> None:
        self.features, self.examples, self.steps, self.block, self.index = features, list(examples), steps, block, index
        self.batch, self.anchors, self.seed = config.batch, config.anchors, config.seed
        self.steps_per_epoch = max(1, len(self.examples) // self.batch)
        self._epoch: tuple[int, list[list[int]]] = (-1, [])

    def __len__(self) -> int:
        return self.steps

    def tokens_until(self, steps: int) -> int:
        """Anchors in ``steps`` steps."""
        return steps * self.batch * self.anchors

    def __getitem__(self, step: int) -> Batch:
        epoch, at = divmod(step, self.steps_per_epoch)
        if self._epoch[0] != epoch:
            self._epoch = epoch, self._order(epoch)
        examples = [self.features[i] for i in self._epoch[1][at]]
        rng = np.random.default_rng((self.seed, 1, step))
        anchors = [chosen_anchors(example, self.anchors, rng) for example in examples]
        return batch_of(examples, anchors, self.block, self.index)

    def _order(self, epoch: int) -> list[list[int]]:
        rng = np.random.default_rng((self.seed, 0, epoch))
        shuffled = [self.examples[i] for i in rng.permutation(len(self.examples))]
        batches = near_batches(shuffled, self.features.lengths, self.batch)
        if not batches:  # fewer examples than a batch
            return [[shuffled[i % len(shuffled)] for i in range(self.batch)]]
        return [batches[i] for i in rng.permutation(len(batches))]


def near_batches(shuffled: Sequence[int], lengths: Sequence[int], size: int) -> list[list[int]]:
    """Batches of examples of nearly equal lengths; what fills none is left out."""
    windows = (sorted(shuffled[i : i + 16 * size], key=lengths.__getitem__) for i in range(0, len(shuffled), 16 * size))
    return [near[i : i + size] for near in windows for i in range(0, len(near) - size + 1, size)]


def possible_anchors(example: Example) -> Tensor:
    """Tokens whose next token the target wrote; the first token of a text has nothing before it to read."""
    found = torch.arange(len(example.tokens) - 1)[example.answered[1:]]
    return found[found > 0]


def chosen_anchors(example: Example, count: int, rng: np.random.Generator) -> Tensor:
    """``count`` anchors at random, without repetition if there are so many."""
    possible = possible_anchors(example)
    if not len(possible):
        return torch.ones(count, dtype=torch.long)
    picked: Tensor = possible[torch.from_numpy(np.sort(rng.choice(len(possible), count, replace=len(possible) < count)))]
    return picked
