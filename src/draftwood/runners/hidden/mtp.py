"""An MTP head: the drafter that checkpoints of Qwen3.5 and Qwen3-Next hold, with one pass per level.

A token's input joins its embedding with a hidden state of the text before it. For committed text that is the target's last
one, behind its final norm. For drafted text it is the head's own output, which is normed too.

Sources: arXiv 2412.19437, section 2.2; ``qwen3_5_mtp`` and ``qwen3_next_mtp`` of vLLM; ``qwen35moe`` of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from draftwood.core.draft_kind import MTP
from draftwood.runners.hidden.module import DrafterModule
from draftwood.runners.plain_config import PlainConfig

SHAPE: Final = "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps"
"""Settings of the target that its head has too."""
MIXTURE: Final = "experts", "experts_per_token", "expert_inner", "normalise_experts"
"""Facts of a target that is a mixture of experts, which its head has too."""


class MtpConfig(PlainConfig):
    """The configuration of an :class:`MtpDrafter`: :data:`SHAPE`, and that of a :class:`DrafterModule`.

    Attributes:
        intermediate_size: of the feed-forward network, or of the expert that all tokens have.
        mixture: :data:`MIXTURE`; empty without one.
    """

    model_type = MTP.name
    num_hidden_layers = 1
    mixture: ClassVar[Mapping[str, int]] = {}


class MtpDrafter(DrafterModule):
    """A head, which the native engine alone computes.

    Args:
        config: its configuration.
        weights: by the names of the checkpoints, without ``mtp.``; those of experts may be as files have them.
    """

    def __init__(self, config: MtpConfig, weights: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.family = "qwen3_5_moe_text" if config.mixture else "qwen3_5_text"
        self._weights = weights

    def weights(self) -> Mapping[str, Any]:
        return self._weights

    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        """The weights; those in files without their numbers."""
        for weight in self._weights.values():
            held = isinstance(weight, Tensor)
            yield weight if held else torch.empty(weight.shape, dtype=self.dtype, device="meta")

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = self._weights["fc.weight"].dtype
        return found

    def head(self, target: Any) -> Any:
        return self._weights["lm_head.weight"] if self.config.own_head else super().head(target)
