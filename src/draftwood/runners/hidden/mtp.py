"""An MTP head: the drafter that checkpoints of Qwen3.5 and Qwen3-Next hold, with one pass per level.

A token's input joins its embedding with a hidden state of the text before it. For committed text that is the target's last
one, behind its final norm. For drafted text it is the head's own output, which is normed too.

Sources: arXiv 2412.19437, section 2.2; ``qwen3_5_mtp`` and ``qwen3_next_mtp`` of vLLM; ``qwen35moe`` of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.core.draft_kind import MTP
from draftwood.runners.hidden.layers import Attention, Experts, FeedForward, Mixture
from draftwood.runners.hidden.module import FeatureDrafter
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


class OffsetNorm(nn.RMSNorm):
    """A norm that multiplies by its weight plus one."""

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        return nn.functional.rms_norm(x.to(wide), self.normalized_shape, self.weight.to(wide) + 1, self.eps).to(x.dtype)


class MtpLayer(nn.Module):
    """A layer of full attention as in Qwen3.5: the queries' projection makes gates of what each head returns too."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm, self.post_attention_layernorm = (OffsetNorm(width, eps=eps) for _ in range(2))
        self.self_attn = Attention(config, norms=OffsetNorm, gated=True)
        self.mlp = Mixture(config) if config.mixture else FeedForward(config)

    def forward(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], cache: Any, mask: Tensor | None
    ) -> Float[Tensor, "row token width"]:
        read = self.input_layernorm(x)
        keys, values = cache.update(*self.self_attn.memory(read, rotation), 0)
        x = x + self.self_attn.attend(read, rotation, keys, values, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class MtpDrafter(FeatureDrafter):
    """The network. Names of the weights are those of the checkpoints, without ``mtp.``; experts may stay in files."""

    def __init__(self, config: MtpConfig) -> None:
        super().__init__(config)
        self.family = "qwen3_5_moe_text" if config.mixture else "qwen3_5_text"
        width, eps = config.hidden_size, config.rms_norm_eps
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = (OffsetNorm(width, eps=eps) for _ in range(3))
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.layers = nn.ModuleList([MtpLayer(config)])

    def weights(self) -> dict[str, Any]:
        found = {name: weight for name, weight in self.state_dict().items() if not weight.is_meta}
        experts = [(name, module) for name, module in self.named_modules() if isinstance(module, Experts)]
        return found | {f"{name}.{part}": weight for name, module in experts for part, weight in module.files.items()}

    def features(self, hidden: Float[Tensor, "row token width"]) -> Float[Tensor, "row token width"]:
        return hidden

    def states(
        self,
        embedded: Float[Tensor, "row token width"],
        features: Float[Tensor, "row token width"],
        positions: Int[Tensor, "row token"],
        cache: Any,
        mask: Float[Tensor, "row 1 token slot"] | None,
    ) -> Float[Tensor, "row token width"]:
        x = self.fc(torch.cat([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(features)], dim=-1))
        found: Tensor = self.norm(self.layers[0](x, self.rotation(positions), cache, mask))
        return found

    def normed(self, states: Float[Tensor, "row token width"]) -> Float[Tensor, "row token width"]:
        return states
