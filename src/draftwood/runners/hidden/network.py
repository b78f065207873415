"""Drafters that score a block in one pass over the target's hidden states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.runners.hidden.layers import HiddenLayer
from draftwood.runners.hidden.module import DrafterModule


class BlockDrafter(DrafterModule, ABC):
    """The base of block drafters.

    The configuration also has the shape of the layers as in Llama, and ``slots, block``: the number of tokens of the block,
    and that of the depths that the last of them score.

    Args:
        config: the configuration.
        bias, norms: of the layers' attention.

    Attributes:
        causal: tokens of the block do not see later ones.
        norms_sources: hidden states of each layer of the target are normed first.
    """

    causal: bool
    norms_sources: bool

    def __init__(self, config: Any, *, bias: bool = False, norms: bool = False) -> None:
        super().__init__(config)
        width, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(len(config.target_layers) * config.target_size, width, bias=False)
        self.hidden_norm = nn.RMSNorm(width, eps=eps)
        self.layers = nn.ModuleList(HiddenLayer(config, bias=bias, norms=norms) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(width, eps=eps)

    @abstractmethod
    def mask_embedding(self, target: Any) -> Float[Tensor, "width"]:
        """The input of every token of the block but the root."""

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
