"""DFlash and DSpark: published drafters that score a block in one pass over the target's hidden states.

All tokens of the block see each other. The block begins with the root, and the embedding of a mask token of the target
follows. DSpark adds a Markov head: a node's token adds to the scores of its children.

Sources: DFlash, arXiv 2602.06036, github.com/z-lab/dflash; DSpark, github.com/deepseek-ai/DeepSpec; speculators 0.9.0.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.draft_kind import DFLASH
from draftwood.core.errors import PairingError
from draftwood.runners.context import vocabulary
from draftwood.runners.hidden.module import BlockDrafter, PublishedDrafter
from draftwood.runners.native.stored import embedded
from draftwood.runners.plain_config import PlainConfig


class DFlashConfig(PlainConfig):
    """The configuration of a :class:`DFlashDrafter`, in addition to that of a :class:`PublishedDrafter`.

    Attributes:
        slots: tokens of the block.
        block: depths that the block scores: all of its tokens, or all but the root.
        mask_token: the target's token whose embedding fills the block.
        markov_rank: rank of the Markov head; 0 without one.
        attention_bias: products of the attention have biases.
        num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim, intermediate_size, rms_norm_eps: the layers,
            as in Qwen3.
    """

    model_type = DFLASH.name


class DFlashDrafter(BlockDrafter, PublishedDrafter):
    """The network."""

    causal = False
    norms_sources = False

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__(config, bias=config.attention_bias, norms=True)

    def check_target(self, target: Any) -> None:
        """As the base class; also if the target does not know the mask token."""
        super().check_target(target)
        mask = self.config.mask_token
        known = self.config.vocab_size if self.config.own_embedding else vocabulary(target)[0]
        if type(mask) is not int or not 0 <= mask < known:
            raise PairingError(f"the drafter's mask token is {mask!r}, but there are embeddings of {known}")

    def mask_embedding(self, target: Any) -> Float[Tensor, "width"]:
        """The input of every token of the block but the root."""
        token = torch.tensor([self.config.mask_token], device=target.device)
        found: Tensor = self.embed_tokens(token) if self.config.own_embedding else embedded(target, token)
        return found[0]
