"""EAGLE-3: a published drafter with one pass per level.

A token's input is its embedding, and a feature of the text before it. For committed text the feature is a linear map of the
target's hidden states at the token before. For drafted text it is the drafter's own output there.

Sources: arXiv 2503.01840, github.com/SafeAILab/EAGLE; github.com/sgl-project/SpecForge; speculators 0.9.0.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.core.draft_kind import EAGLE3
from draftwood.runners.hidden.layers import Attention, FeedForward
from draftwood.runners.hidden.module import PublishedDrafter
from draftwood.runners.plain_config import PlainConfig


class Eagle3Config(PlainConfig):
    """The configuration of an :class:`Eagle3Drafter`, in addition to that of a :class:`PublishedDrafter`.

    Attributes:
        norm_before_fc: the concatenated hidden states are normed.
        fc_norm: hidden states are normed layer by layer.
        norm_before_residual: the first layer adds to the normed feature.
        norm_output: the final norm is part of the output that the next level reads.
        qk_norm: queries and keys are normed head by head, as in Qwen3.
        attention_bias, mlp_bias: products have biases.
        num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim, intermediate_size, rms_norm_eps: the layers,
            as in Llama.
    """

    model_type = EAGLE3.name


class EagleLayer(nn.Module):
    """A Llama or Qwen3 layer. The first one reads embeddings next to its input.

    Args:
        config: the configuration of the drafter.
        number: number of the layer, from 0.
    """

    def __init__(self, config: Any, number: int) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.number, self.norm_before_residual = number, config.norm_before_residual
        self.input_layernorm = nn.RMSNorm(width, eps=eps)
        if not number:
            self.hidden_norm = nn.RMSNorm(width, eps=eps)
        inputs = width if number else 2 * width
        self.self_attn = Attention(config, width=inputs, bias=config.attention_bias, norms=config.qk_norm)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=eps)
        self.mlp = FeedForward(config, bias=config.mlp_bias)

    def forward(
        self, x: Tensor, embedded: Tensor, rotation: tuple[Tensor, Tensor], cache: Any, mask: Tensor | None
    ) -> Float[Tensor, "row token width"]:
        if self.number:
            read = self.input_layernorm(x)
        else:
            normed = self.hidden_norm(x)
            x = normed if self.norm_before_residual else x
            read = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        keys, values = cache.update(*self.self_attn.memory(read, rotation), self.number)
        x = x + self.self_attn.attend(read, rotation, keys, values, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Eagle3Drafter(PublishedDrafter):
    """The network."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__(config)
        width, eps, taps = config.hidden_size, config.rms_norm_eps, len(config.target_layers)
        self.fc = nn.Linear(taps * config.target_size, width, bias=False)
        if config.norm_before_fc:
            self.input_norm = nn.RMSNorm(taps * config.target_size, eps=eps)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(nn.RMSNorm(config.target_size, eps=eps) for _ in range(taps))
        self.layers = nn.ModuleList(EagleLayer(config, number) for number in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(width, eps=eps)

    def features(self, hidden: Float[Tensor, "row token taps_width"]) -> Float[Tensor, "row token width"]:
        """Features of hidden states of the target."""
        if self.config.norm_before_fc:
            hidden = self.input_norm(hidden)
        if self.config.fc_norm:
            parts = hidden.chunk(len(self.fc_norm), dim=-1)
            hidden = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return self.fc(hidden)

    def states(
        self,
        embedded: Float[Tensor, "row token width"],
        features: Float[Tensor, "row token width"],
        positions: Int[Tensor, "row token"],
        cache: Any,
        mask: Float[Tensor, "row 1 token slot"] | None,
    ) -> Float[Tensor, "row token width"]:
        """Outputs at new tokens: the features of the tokens after them, where these are drafted too."""
        x, angles = features, self.rotation(positions)
        for layer in self.layers:
            x = layer(x, embedded, angles, cache, mask)
        return self.norm(x) if self.config.norm_output else x

    def normed(self, states: Float[Tensor, "row token width"]) -> Float[Tensor, "row token width"]:
        """What the output weights read, given :meth:`states`."""
        return states if self.config.norm_output else self.norm(states)
