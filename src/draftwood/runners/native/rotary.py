"""The rotary embedding of a model that is read from its files, from its configuration."""

from __future__ import annotations

from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.runners.plain_config import PlainConfig
from draftwood.runners.windows import FULL


@final
class Rotary:
    """The rotary embedding of a configuration, called as the module of ``transformers``."""

    def __init__(self, config: Any) -> None:
        self.layer_types = sorted(set(config.layer_types)) if FULL in config.rope_parameters else []
        self._frequencies = {kind: rotary_frequencies(config, kind) for kind in self.layer_types or [None]}

    def __call__(
        self, _: Tensor, positions: Tensor, kind: str | None = None
    ) -> tuple[Float[Tensor, "1 position dim"], Float[Tensor, "1 position dim"]]:
        frequencies, scale = self._frequencies[kind]
        angles = positions[..., None].float() * frequencies
        both = torch.cat((angles, angles), -1)
        return both.cos() * scale, both.sin() * scale


def rotary_frequencies(config: Any, layers: str | None = None) -> tuple[Float[Tensor, "half"], float]:
    """Angles of the first position, and the factor of cosines and sines; of one type of layers if they have their own."""
    rotary = config.rope_parameters if layers is None else config.rope_parameters[layers]
    kind = rotary.get("rope_type", "default")
    if kind != "default":
        from transformers import PretrainedConfig
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        config = PretrainedConfig(**config.to_dict()) if isinstance(config, PlainConfig) else config
        found, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), layer_type=layers)
        return found, float(scale)
    size = int(head_size(config) * rotary.get("partial_rotary_factor", 1.0))
    steps = torch.arange(0, size, 2, dtype=torch.int64).float() / size
    return 1.0 / (rotary["rope_theta"] ** steps), 1.0


def head_size(config: Any) -> int:
    """Numbers of a head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
