"""The pass of a drafter of hidden states: it reads new hidden states, and scores one block."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, cast, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.runners.hidden.layers import block_input


@runtime_checkable
class BlockDrafter(Protocol):
    """A drafter that scores a block in one pass over the target's hidden states.

    Attributes:
        config: ``target_layers, vocab_size, hidden_size, block, draft_vocab_size``, and the shape of its layers as in Llama.
            ``block`` is the number of depths that the block scores, with its last tokens.
        causal: tokens of the block do not see later ones.
        norms_sources: hidden states of each layer of the target are normed first.
        draft_tokens: the target's numbers of the drafter's tokens.
    """

    causal: bool
    norms_sources: bool
    draft_tokens: Int[Tensor, "draft_vocab"]

    @property
    def config(self) -> Any: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def slots(self) -> int:
        """Tokens of the block."""
        ...

    def embedding(self, target: Any) -> nn.Module:
        """The embedding of tokens."""
        ...

    def mask_embedding(self, target: Any) -> Float[Tensor, "width"]:
        """The input of every token of the block but the root."""
        ...

    def head(self, target: Any) -> Float[Tensor, "draft_vocab width"]:
        """The output weights."""
        ...

    def memory(
        self, hidden: Float[Tensor, "row token taps_width"], positions: Int[Tensor, "row token"]
    ) -> Float[Tensor, "layer part row kv_head token dim"]:
        """Keys and values of all layers (parts 0 and 1) for hidden states of committed tokens."""
        ...

    def states(
        self,
        x: Float[Tensor, "row token width"],
        positions: Int[Tensor, "row token"],
        memory: Float[Tensor, "layer part row kv_head text dim"],
        mask: Float[Tensor, "row 1 token seen"],
    ) -> Float[Tensor, "row token width"]:
        """Normed states of block tokens, given the text's memory; the additive mask is over text, then block."""
        ...

    def markov(self, tokens: Int[Tensor, "*node"]) -> Float[Tensor, "*node draft_vocab"]:
        """What a node's own token adds to the scores of its children."""
        ...

    def markov_weights(self) -> tuple[Float[Tensor, "vocab rank"], Float[Tensor, "draft_vocab rank"]] | None:
        """The two factors of what tokens add; None if they add nothing."""
        ...

    def rotation(self, positions: Int[Tensor, "row token"]) -> tuple[Tensor, Tensor]:
        """Cosines and sines [row, 1, token, dim / 2] of rotary embeddings."""
        ...


class PassOutput(NamedTuple):
    """The output of one pass.

    Attributes:
        scores: scores of the draft's tokens at each depth, without the Markov head.
        memory: keys and values of the tokens that were read.
    """

    scores: Float[Tensor, "row depth draft_vocab"]
    memory: Float[Tensor, "layer part row kv_head new dim"]


@final
class HiddenPass(nn.Module):
    """The pass as a module, so hooks can observe its calls.

    Args:
        drafter: the drafter.
        target: its target, whose weights it may share.
    """

    def __init__(self, drafter: BlockDrafter, target: Any) -> None:
        super().__init__()
        self.drafter = cast(Any, drafter)
        self.config = drafter.config
        self.slots = drafter.slots
        self.embed = drafter.embedding(target)
        self.head, self.mask = (
            nn.Parameter(part.detach().to(drafter.dtype), requires_grad=False)
            for part in (drafter.head(target), drafter.mask_embedding(target))
        )
        self.eval()

    def forward(
        self,
        input_ids: Int[Tensor, "row 1"],
        hidden: Float[Tensor, "row new taps_width"],
        positions: Int[Tensor, "row new"],
        root_position: Int[Tensor, "row"],
        memory: Float[Tensor, "layer part row kv_head slot dim"],
        mask: Float[Tensor, "row 1 slots seen"],
    ) -> PassOutput:
        """Read hidden states, and score the block after each root.

        Args:
            input_ids: the roots.
            hidden, positions: hidden states of tokens that are read now, and their positions, padded on the right.
            root_position: the positions of the roots.
            memory: keys and values of the tokens that were read before, and unused slots.
            mask: additive, of each token of the block over the slots of the memory, the new tokens, and the block.
        """
        new = self.drafter.memory(hidden, positions)
        at = root_position.unsqueeze(1) + torch.arange(self.slots, device=hidden.device)
        x = block_input(self.embed(input_ids).squeeze(1).to(hidden.dtype), self.mask, self.slots)
        states = self.drafter.states(x, at, torch.cat([memory, new], dim=4), mask)
        return PassOutput(nn.functional.linear(states[:, -self.config.block :], self.head), new)
