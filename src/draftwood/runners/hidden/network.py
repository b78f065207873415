"""Drafters that score a block in one pass over the target's hidden states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.runners.hidden.module import DrafterModule


class BlockDrafter(DrafterModule, ABC):
    """The base of block drafters.

    The configuration has ``target_layers, vocab_size, hidden_size, block, draft_vocab_size``, and the shape of the layers as
    in Llama. ``block`` is the number of depths that the block scores, with its last tokens.

    Attributes:
        causal: tokens of the block do not see later ones.
        norms_sources: hidden states of each layer of the target are normed first.
    """

    causal: bool
    norms_sources: bool
    fc: nn.Linear
    hidden_norm: nn.RMSNorm
    layers: nn.ModuleList
    norm: nn.RMSNorm

    @property
    @abstractmethod
    def slots(self) -> int:
        """Tokens of the block."""

    @abstractmethod
    def embedding(self, target: Any) -> nn.Module:
        """The embedding of tokens."""

    @abstractmethod
    def mask_embedding(self, target: Any) -> Float[Tensor, "width"]:
        """The input of every token of the block but the root."""

    @abstractmethod
    def head(self, target: Any) -> Float[Tensor, "draft_vocab width"]:
        """The output weights."""

    @abstractmethod
    def rotation(self, positions: Int[Tensor, "row token"]) -> tuple[Tensor, Tensor]:
        """Cosines and sines [row, 1, token, dim / 2] of rotary embeddings."""

    @abstractmethod
    def markov_head_parts(self) -> tuple[nn.Embedding, nn.Linear] | None:
        """The parts of the Markov head; None without one."""

    def memory(
        self, hidden: Float[Tensor, "row token taps_width"], positions: Int[Tensor, "row token"]
    ) -> Float[Tensor, "layer part row kv_head token dim"]:
        """Keys and values of all layers (parts 0 and 1) for hidden states of committed tokens."""
        if self.norms_sources:
            taps = hidden.unflatten(-1, (len(self.config.target_layers), -1))
            hidden = nn.functional.rms_norm(taps, taps.shape[-1:]).flatten(-2)
        features, angles = self.hidden_norm(self.fc(hidden)), self.rotation(positions)
        layers: Any = self.layers
        return torch.stack([torch.stack(layer.self_attn.memory(features, angles)) for layer in layers])

    def states(
        self,
        x: Float[Tensor, "row token width"],
        positions: Int[Tensor, "row token"],
        memory: Sequence[Any] | Float[Tensor, "layer part row kv_head text dim"],
        mask: Float[Tensor, "row 1 token seen"] | None,
    ) -> Float[Tensor, "row token width"]:
        """Normed states of block tokens, given the text's keys and values by layer; the mask is over text, then block."""
        angles = self.rotation(positions)
        for layer, (keys, values) in zip(self.layers, memory, strict=True):
            x = layer(x, angles, keys, values, mask)
        return self.norm(x)

    def markov(self, tokens: Int[Tensor, "*node"]) -> Float[Tensor, "*node draft_vocab"]:
        """What a node's own token adds to the scores of its children."""
        if (parts := self.markov_head_parts()) is not None:
            return parts[1](parts[0](tokens))
        return torch.zeros((), dtype=self.dtype, device=self.device).expand(*tokens.shape, self.config.draft_vocab_size)
