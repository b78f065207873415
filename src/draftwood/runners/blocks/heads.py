"""A drafter of heads on the target's last hidden state, one per future token: an ablation of separate draft models.

Sources: blockwise parallel decoding, Stern et al. 2018, arXiv 1811.03115; Medusa, Cai et al. 2024, arXiv 2401.10774, whose
heads are one residual block each. All heads share the target's output embedding.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from draftwood.core.errors import ConfigError
from draftwood.runners.pairing import check_target, digest_of


class HeadsConfig(PretrainedConfig):  # type: ignore[misc]
    """The configuration of heads.

    Attributes:
        d_model: width of the target's hidden states.
        block: number of heads.
        target: digest of the model to draft for (:func:`draftwood.runners.pairing.digest_of`).
    """

    model_type = "draft_heads"
    __no_type_check__ = True  # transformers generates an __init__ that accepts any keyword


AutoConfig.register(HeadsConfig.model_type, HeadsConfig, exist_ok=True)


class HeadsDrafter(PreTrainedModel):  # type: ignore[misc]
    """Head ``i`` (from 1) predicts the token ``i`` positions after the one that the target's output predicts."""

    config_class = HeadsConfig

    def __init__(self, config: HeadsConfig) -> None:
        super().__init__(config)
        self.weight = nn.Parameter(torch.zeros(config.block, config.d_model, config.d_model))
        self.bias = nn.Parameter(torch.zeros(config.block, config.d_model))
        self.post_init()

    @classmethod
    def for_target(cls, target: Any, *, block: int) -> HeadsDrafter:
        """New heads for a model, which repeat the target's prediction; raises a ConfigError if ``block`` is not positive."""
        if block < 1:
            raise ConfigError(f"block is {block}: give 1 or more heads")
        return cls(HeadsConfig(d_model=target.config.d_model, block=block, target=digest_of(target)))

    def check_target(self, target: Any) -> None:
        """Raise a PairingError if the heads were trained for another target."""
        check_target(self, target)

    def forward(
        self, states: Float[Tensor, "row width"], output: Float[Tensor, "vocab width"], k: int | None = None
    ) -> Float[Tensor, "row k vocab"]:
        """Scores of the ``k`` tokens after the next one, from one hidden state per row.

        Args:
            states: the target's last hidden states, at the token before the last committed one.
            output: the target's output embedding.
            k: number of tokens; all heads if None.

        Raises:
            ConfigError: there are fewer than ``k`` heads, or ``k`` is not positive.
        """
        k = self.config.block if k is None else k
        if not 1 <= k <= self.config.block:
            raise ConfigError(f"{self.config.block} heads cannot draft {k} tokens: give 1 to {self.config.block}")
        change = torch.einsum("rw,kow->rko", states, self.weight[:k]) + self.bias[:k]
        return nn.functional.linear(states[:, None] + nn.functional.silu(change), output)
