"""The rotary embedding of a model that is read from its files, from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from draftwood.runners.context import FULL
from draftwood.runners.native.families import FAMILIES
from draftwood.runners.native.layers import head_size
from draftwood.runners.plain_config import PlainConfig


@final
class Rotary:
    """The rotary embedding of a configuration: cosines and sines of the first positions, a table for each type of layers
    that has rotations of its own.

    Args:
        config: the configuration.
        buffers: of a live model, by name, which may hold other frequencies: those of a model that was rounded.
    """

    def __init__(self, config: Any, buffers: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.layer_types = sorted(set(config.layer_types)) if FULL in config.rope_parameters else []
        self._config, self._tables = config, []
        for kind in self.layer_types or [None]:
            found, scale = rotary_frequencies(config, kind)
            own = buffers.get(f"model.rotary_emb.{f'{kind}_' if kind else ''}inv_freq", found)
            self._tables.append((own.float(), scale))

    def queries(self, positions: int) -> Float[Tensor, "position"] | None:
        """What queries of the first positions are multiplied by; None for nothing."""
        rotary = self._config.rope_parameters
        if not FAMILIES[self._config.model_type].tempered:
            return None
        spans = torch.arange(positions) // rotary["original_max_position_embeddings"]
        return 1 + rotary["llama_4_scaling_beta"] * torch.log(1 + spans.float())

    def __call__(self, positions: int) -> tuple[Float[Tensor, "table position half"], Float[Tensor, "table position half"]]:
        at = torch.arange(positions).unsqueeze(1).float()
        angles = [(at * frequencies, scale) for frequencies, scale in self._tables]
        widest = max(one.shape[1] for one, _ in angles)
        cos, sin = ([getattr(one, what)() * scale for one, scale in angles] for what in ("cos", "sin"))
        together = (torch.stack([pad(one, (0, widest - one.shape[1])) for one in part]) for part in (cos, sin))
        return next(together), next(together)


def rotary_frequencies(config: Any, layers: str | None = None) -> tuple[Float[Tensor, "half"], float]:
    """Angles of the first position, and the factor of cosines and sines; of one type of layers if they have their own."""
    rotary = config.rope_parameters if layers is None else config.rope_parameters[layers]
    kind, part = rotary.get("rope_type", "default"), rotary.get("partial_rotary_factor", 1.0)
    if kind == "proportional":
        size = head_size(config, layers)
        turned = torch.arange(0, 2 * int(part * size // 2), 2, dtype=torch.int64).float() / size
        return pad(1.0 / (rotary["rope_theta"] ** turned), (0, size // 2 - len(turned))) / rotary.get("factor", 1.0), 1.0
    if kind != "default":
        from transformers import PretrainedConfig
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        config = PretrainedConfig(**config.to_dict()) if isinstance(config, PlainConfig) else config
        found, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), layer_type=layers)
        return found, float(scale)
    size = int(head_size(config, layers) * part)
    steps = torch.arange(0, size, 2, dtype=torch.int64).float() / size
    return 1.0 / (rotary["rope_theta"] ** steps), 1.0
