"""Layers of drafters of hidden states, and what surrounds them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Attention of tokens to a text and to each other.

    Args:
        config: widths and heads, as in Llama.
        width: width of the input; by default that of the output.
        bias: the products have biases.
        norms: queries and keys are normed head by head, as in Qwen3.
    """

    def __init__(self, config: Any, *, width: int | None = None, bias: bool = False, norms: bool = False) -> None:
        super().__init__()
        width = width or config.hidden_size
        self.heads, self.kv_heads, self.dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.q_proj = nn.Linear(width, self.heads * self.dim, bias=bias)
        self.k_proj = nn.Linear(width, self.kv_heads * self.dim, bias=bias)
        self.v_proj = nn.Linear(width, self.kv_heads * self.dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.dim, config.hidden_size, bias=bias)
        norm = partial(nn.RMSNorm, self.dim, eps=config.rms_norm_eps) if norms else nn.Identity
        self.q_norm, self.k_norm = norm(), norm()

    def memory(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys (rotated) and values [row, kv_head, token, dim] of tokens [row, token, width]."""
        shape = (*x.shape[:2], self.kv_heads, self.dim)
        keys, values = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2), self.v_proj(x).view(shape).transpose(1, 2)
        return rotated(keys, rotation), values

    def attend(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Float[Tensor, "row token width"]:
        """What tokens find among keys and values of all that they may see."""
        queries = self.q_norm(self.q_proj(x).view(*x.shape[:2], self.heads, self.dim)).transpose(1, 2)
        groups = self.heads // self.kv_heads
        keys, values = (part.repeat_interleave(groups, dim=1) for part in (keys, values))
        found = functional.scaled_dot_product_attention(rotated(queries, rotation), keys, values, attn_mask=mask)
        mixed: Tensor = self.o_proj(found.transpose(1, 2).flatten(2))
        return mixed


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: Any, *, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class HiddenLayer(nn.Module):
    """A Llama layer whose keys and values of the text come from the target; ``bias`` and ``norms`` as for Attention."""

    def __init__(self, config: Any, *, bias: bool = False, norms: bool = False) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(width, eps=eps)
        self.self_attn = Attention(config, bias=bias, norms=norms)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=eps)
        self.mlp = FeedForward(config)

    def forward(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Float[Tensor, "row token width"]:
        normed = self.input_layernorm(x)
        own = self.self_attn.memory(normed, rotation)
        keys, values = (torch.cat([old.to(new.dtype), new], dim=2) for old, new in zip((keys, values), own, strict=True))
        x = x + self.self_attn.attend(normed, rotation, keys, values, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


def block_input(
    root: Float[Tensor, "row width"], mask: Float[Tensor, "width"], slots: int
) -> Float[Tensor, "row slots width"]:
    """The block's input: the embedded root, then masks."""
    masks = mask.to(root.dtype).expand(root.shape[0], slots - 1, -1)
    return torch.cat([root.unsqueeze(1), masks], dim=1)


def rotated(x: Float[Tensor, "row head token dim"], rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding of halves, as in Llama."""
    cos, sin = (part.to(x.dtype) for part in rotation)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
