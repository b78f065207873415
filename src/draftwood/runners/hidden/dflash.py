"""DFlash and DSpark: published drafters that score a block in one pass over the target's hidden states.

All tokens of the block see each other. The block begins with the root, and the embedding of a mask token of the target
follows. DSpark adds a Markov head: a node's token adds to the scores of its children.

Sources: DFlash, arXiv 2602.06036, github.com/z-lab/dflash; DSpark, github.com/deepseek-ai/DeepSpec; speculators 0.9.0.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PretrainedConfig

from draftwood.core.errors import PairingError
from draftwood.runners.hidden.layers import HiddenLayer
from draftwood.runners.hidden.network import BlockDrafter
from draftwood.runners.hidden.published import PublishedDrafter


class DFlashConfig(PretrainedConfig):  # type: ignore[misc]
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

    model_type = "dflash"
    __no_type_check__ = True  # transformers generates an __init__ that accepts any keyword


class MarkovHead(nn.Module):
    """What a token adds to the scores of the next one."""

    def __init__(self, vocab: int, draft_vocab: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocab, bias=False)


class DFlashDrafter(PublishedDrafter, BlockDrafter):
    """The network."""

    causal = False
    norms_sources = False

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__(config)
        width, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(len(config.target_layers) * config.target_size, width, bias=False)
        self.hidden_norm = nn.RMSNorm(width, eps=eps)
        self.layers = nn.ModuleList(
            HiddenLayer(config, bias=config.attention_bias, norms=True) for _ in range(config.num_hidden_layers)
        )
        self.norm = nn.RMSNorm(width, eps=eps)
        if config.markov_rank:
            self.markov_head = MarkovHead(config.vocab_size, config.draft_vocab_size, config.markov_rank)

    @property
    def slots(self) -> int:
        """Tokens of the block."""
        return int(self.config.slots)

    def check_target(self, target: Any) -> None:
        """As the base class; also if the target does not know the mask token."""
        super().check_target(target)
        known = cast(Tensor, self.embedding(target).weight).shape[0]
        if not 0 <= self.config.mask_token < known:
            raise PairingError(f"the drafter's mask token is {self.config.mask_token}, but there are embeddings of {known}")

    def mask_embedding(self, target: Any) -> Float[Tensor, "width"]:
        """The input of every token of the block but the root."""
        found: Tensor = self.embedding(target)(torch.tensor(self.config.mask_token, device=target.device))
        return found

    def markov_head_parts(self) -> tuple[nn.Embedding, nn.Linear] | None:
        """The parts of the Markov head; None without one."""
        return (self.markov_head.markov_w1, self.markov_head.markov_w2) if self.config.markov_rank else None
