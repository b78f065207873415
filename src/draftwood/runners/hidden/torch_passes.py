"""The passes of drafters of hidden states in PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.core.scores import at_depths
from draftwood.runners.cache import TreeCache
from draftwood.runners.forward import ForwardBatch
from draftwood.runners.hidden.layers import block_input
from draftwood.runners.hidden.module import BlockDrafter
from draftwood.runners.hidden.text import HiddenText
from draftwood.runners.protocols import PerNode, Seen
from draftwood.runners.slots import SlotTable


class TorchPasses(nn.Module):
    """Passes in PyTorch, with the table of the rows' entries; attributes as for those in the native engine. It is a
    module, so hooks can observe its calls.

    Args:
        drafter: the drafter.
        target: its target, whose weights it may share.
    """

    name = "torch"
    pads = True

    def __init__(self, drafter: Any, target: Any) -> None:
        super().__init__()
        self.drafter, self.dtype, self.embed = drafter, drafter.dtype, drafter.embedding(target)
        self._head = drafter.head(target).detach().to(self.dtype)
        self.table = SlotTable(TreeCache(int(drafter.config.num_hidden_layers)), self.dtype, drafter.device, None)
        self._nothing = torch.zeros(1, drafter.hidden_width, dtype=self.dtype, device=drafter.device)

    @property
    def network(self) -> TorchPasses:
        return self

    @torch.inference_mode()
    def read(self, text: HiddenText) -> None:
        hidden = text.unread(self._nothing, root=False)
        self._run(self.table.batches_to(text.cached + len(hidden)), self._inputs(hidden.unsqueeze(0)))
        text.entries_read()

    def _inputs(self, hidden: Tensor) -> Tensor:
        """What the network reads of hidden states."""
        return hidden

    def _run_round(self, texts: Sequence[HiddenText], batches: Iterable[ForwardBatch]) -> Any:
        """The output of the first pass of a round, which reads what waits, padded on the left."""
        rows = [text.unread(self._nothing, root=True) for text in texts]
        longest = max(map(len, rows))
        padded = [nn.functional.pad(row, (0, 0, longest - len(row), 0)) for row in rows]
        out = self._run(batches, self._inputs(torch.stack(padded)))
        for text in texts:
            text.entries_read()
        return out

    def _run(self, batches: Iterable[ForwardBatch], inputs: Tensor) -> Any:
        """The output of the last batch; the inputs are those of all batches."""
        out, done = None, 0
        for batch in batches:
            self.table.cache.place(batch)
            end = done + batch.tokens.shape[1]
            out = self(
                input_ids=batch.tokens,
                inputs=inputs[:, done:end],
                positions=batch.positions,
                cache=self.table.cache,
                mask=batch.mask,
            )
            done = end
        return out


@final
class TorchEaglePasses(TorchPasses):
    """The passes of a drafter with one pass per level."""

    def _inputs(self, hidden: Float[Tensor, "row new taps_width"]) -> Tensor:
        features: Tensor = self.drafter.features(hidden)
        return features

    def forward(
        self, input_ids: Int[Tensor, "row token"], inputs: Tensor, positions: Tensor, cache: TreeCache, mask: Tensor | None
    ) -> Float[Tensor, "row token width"]:
        """Outputs at new tokens; ``inputs`` are their features, and the rest as for :meth:`Eagle3Drafter.states`."""
        states: Tensor = self.drafter.states(self.embed(input_ids).to(self.dtype), inputs, positions, cache, mask)
        return states

    @torch.inference_mode()
    def score(
        self, texts: Sequence[HiddenText], tokens: PerNode, depths: PerNode, ancestors: Seen, features: Tensor | None
    ) -> tuple[Float[Tensor, "row node width"], Float[Tensor, "row node draft_vocab"]]:
        """Outputs at new nodes, and their scores.

        Args:
            texts: of the rows.
            tokens, depths, ancestors: of the nodes.
            features: outputs at their parents; None for roots. The pass then also reads the entries that wait.
        """
        batches = self.table.batches(tokens, depths, ancestors)
        states = self._run_round(texts, batches) if features is None else self._run(batches, features)
        states = states[:, -tokens.shape[1] :]
        return states, nn.functional.linear(self.drafter.normed(states), self._head)


@final
class TorchBlockPasses(TorchPasses):
    """The pass of a block drafter."""

    def __init__(self, drafter: BlockDrafter, target: Any) -> None:
        super().__init__(drafter, target)
        self._mask = drafter.mask_embedding(target).detach().to(self.dtype)
        slots, device = int(drafter.config.slots), drafter.device
        self._depths = torch.arange(slots, device=device)
        within = torch.ones(slots, slots, dtype=torch.bool, device=device)
        self._within = within.tril() if drafter.causal else within

    @torch.inference_mode()
    def score(self, texts: Sequence[HiddenText], roots: PerNode) -> Float[Tensor, "row depth draft_vocab"]:
        """Scores of the block after each root; reads the hidden states that wait."""
        rows, slots = len(roots), len(self._depths)
        seen = self._within.expand(rows, -1, -1)
        tokens = torch.as_tensor(roots, device=self._depths.device).expand(-1, slots)
        batches = self.table.batches(tokens, self._depths.expand(rows, -1), seen)
        scores: Tensor = self._run_round(texts, batches)
        return scores

    @torch.inference_mode()
    def below(
        self, scores: Float[Tensor, "row depth draft_vocab"], tokens: PerNode, depths: PerNode
    ) -> Float[Tensor, "row node draft_vocab"]:
        """Scores after nodes: those of their depths, and what their tokens add; -inf beyond the block."""
        added: Tensor = self.drafter.markov(torch.as_tensor(tokens, device=scores.device))
        return at_depths(scores, depths) + added

    def forward(
        self,
        input_ids: Int[Tensor, "row token"],
        inputs: Float[Tensor, "row new taps_width"],
        positions: Int[Tensor, "row token"],
        cache: TreeCache,
        mask: Tensor | None,
    ) -> Float[Tensor, "row depth draft_vocab"] | None:
        """Read hidden states, and score the block after each root; None without a block.

        Args:
            input_ids: a token for each of the hidden states, then the root for each token of the block.
            inputs: hidden states of tokens that are read now.
            positions: of ``input_ids``.
            cache: has room for the new tokens.
            mask: additive, over the slots of the cache and the block.
        """
        new = inputs.shape[1]
        parts = self.drafter.memory(inputs, positions[:, :new])
        memory = [cache.update(keys, values, layer) for layer, (keys, values) in enumerate(parts)]
        if new == input_ids.shape[1]:
            return None
        x = block_input(self.embed(input_ids[:, -1]).to(inputs.dtype), self._mask, input_ids.shape[1] - new)
        states = self.drafter.states(x, positions[:, new:], memory, None if mask is None else mask[:, :, new:])
        return nn.functional.linear(states[:, -self.drafter.config.block :], self._head)
