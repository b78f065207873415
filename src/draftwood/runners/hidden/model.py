"""A drafter that scores a block of future tokens in one pass over the target's hidden states.

Its layers attend to keys and values made of the target's hidden states of the committed text, and to the block itself: the
root and mask tokens. A low-rank Markov head adds to a node's scores what its own token says about the next one. So every
node's distribution is known before its children are drawn, and all trees and verifiers apply.

Sources: DFlash, arXiv 2602.06036 (keys and values from hidden states); DSpark, of DeepSpec (Markov head). The block is
causal here.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.core.draft_kind import HIDDEN_BLOCK
from draftwood.core.errors import PairingError
from draftwood.core.token_texts import tokens_digest
from draftwood.runners.hidden.module import BlockDrafter
from draftwood.runners.plain_config import PlainConfig


class HiddenBlockConfig(PlainConfig):
    """The configuration of a :class:`HiddenBlockDrafter`.

    Attributes:
        target_layers: layers of the target whose hidden states are read, numbered as in ``output_hidden_states``.
        target_depth, vocab_size, hidden_size: layers, vocabulary and width of the target.
        vocabulary: digest of the target's vocabulary.
        block: the longest block in tokens: the greatest depth of a tree.
        draft_vocab_size: tokens that the drafter can propose.
        markov_rank: rank of the Markov head.
        num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim, intermediate_size, rms_norm_eps, rope_theta:
            the drafter's layers, as in Llama.
    """

    model_type = HIDDEN_BLOCK.name
    own_embedding = own_head = False
    rope_scale = 1.0

    @property
    def target_size(self) -> int:
        """Numbers of a hidden state of the target."""
        return int(self.hidden_size)

    @property
    def slots(self) -> int:
        """Tokens of the block, of which each scores a depth."""
        return int(self.block)

    @property
    def rope_frequencies(self) -> list[float]:
        """Angles of the first position."""
        return [self.rope_theta ** (-i / self.head_dim) for i in range(0, self.head_dim, 2)]


def vocabulary_digest(tokenizer: Any) -> str:
    """Digest (16 hexadecimal digits) of a tokenizer's tokens and their numbers."""
    return tokens_digest((index, token) for token, index in tokenizer.get_vocab().items())


class HiddenBlockDrafter(BlockDrafter):
    """The network. Embeddings and output weights are the target's own, and are not part of it."""

    causal = True
    norms_sources = True

    def __init__(self, config: HiddenBlockConfig) -> None:
        super().__init__(config)
        self.mask = nn.Parameter(torch.zeros(config.hidden_size))
        self.draft_tokens = torch.zeros(config.draft_vocab_size, dtype=torch.int32)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding) and not module.weight.is_meta:
                nn.init.normal_(module.weight, std=0.02)

    def mask_embedding(self, target: Any) -> Float[Tensor, "width"]:
        """The input of every token of the block but the root."""
        return self.mask

    def check_target(self, model: Any, vocabulary: str) -> None:
        """Raise a PairingError if a target's width, depth or vocabulary is not that of the training."""
        own, config = self.config, model.config
        found = (config.hidden_size, config.num_hidden_layers, vocabulary)
        wanted = (own.hidden_size, own.target_depth, own.vocabulary)
        if found != wanted:
            raise PairingError(
                "the drafter reads the hidden states of another target: it was trained for width, layers, vocabulary "
                f"{wanted}, this target has {found}; give its own target, or train one with draftwood train drafter"
            )
