"""What layers of a model have of their own: sizes of heads and of networks, and whose keys and values they read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from draftwood.native.library import Facts
from draftwood.runners.context import FULL, SLIDING
from draftwood.runners.native.families import FAMILIES
from draftwood.runners.native.family import HEAD_NORMS, PRODUCTS

LAYER_TABLE: Final = "model.embed_tokens_per_layer.weight"
LAYER_PROJECTION: Final = "model.per_layer_model_projection.weight"
LAYER_NORM: Final = "model.per_layer_projection_norm.weight"
_KEYS: Final = (PRODUCTS["key"], PRODUCTS["value"], HEAD_NORMS["key_norm"])


def kinds_of(config: Any) -> list[str]:
    """The type of each layer's attention."""
    return list(getattr(config, "layer_types", None) or [SLIDING] * config.num_hidden_layers)


def heads_of(config: Any, number: int) -> tuple[int, int]:
    """Heads of keys and values of a layer, and numbers of each of its heads."""
    own = config
    if FAMILIES[config.model_type].varied:
        if hasattr(config, "per_layer_config"):  # of transformers since version 5.24
            own = config.per_layer_config[number]
        elif kinds_of(config)[number] == FULL:
            shared = config.num_global_key_value_heads if config.attention_k_eq_v else None
            return shared or config.num_key_value_heads, config.global_head_dim
    size = getattr(own, "head_dim", None) or own.hidden_size // own.num_attention_heads
    return own.num_key_value_heads, int(size)


def head_size(config: Any, kind: str | None = None) -> int:
    """Numbers of a head, of layers of this type if it is not None."""
    return heads_of(config, kinds_of(config).index(kind) if kind in kinds_of(config) else 0)[1]


def input_size(config: Any) -> int:
    """Numbers of a token that each layer has of its own; 0 for none."""
    return (getattr(config, "hidden_size_per_layer_input", 0) or 0) if FAMILIES[config.model_type].varied else 0


def borrowers(config: Any) -> range:
    """Layers that read keys and values of earlier ones."""
    layers = int(config.num_hidden_layers)
    return range(layers - (config.num_kv_shared_layers if FAMILIES[config.model_type].varied else 0), layers)


def lender_of(config: Any, number: int) -> int:
    """How many layers before a layer is the one whose keys and values it reads: the last one of its type that has some; 0
    where it has its own."""
    kinds, last = kinds_of(config), borrowers(config)
    if number not in last:
        return 0
    return next(number - other for other in reversed(range(last.start)) if kinds[other] == kinds[number])


def absent_in(config: Any, number: int) -> Iterator[str]:
    """Matrices and norms that a layer lacks, by the engine's name."""
    if FAMILIES[config.model_type].varied:
        yield from ("key", "value", "key_norm") if number in borrowers(config) else ()
        yield from ("value",) if config.attention_k_eq_v and kinds_of(config)[number] == FULL else ()
        yield from () if input_size(config) else ("input_gate", "input_projection", "input_norm")
        yield from () if getattr(config, "enable_moe_block", False) else ("dense_norm", "mixture_norm", "experts_norm")


def idle_weights(config: Any) -> Iterator[str]:
    """Names of weights that files may have, and no model reads: keys and values of layers that read those of others."""
    for number in borrowers(config):
        yield from (f"model.layers.{number}.{module}.{kind}" for module in _KEYS for kind in ("weight", "bias"))


def of_layer(config: Any, number: int, facts: Facts) -> Facts:
    """The facts of a model with the sizes of a layer."""
    own = Facts.from_buffer_copy(facts)
    own.kv_heads, own.head_dim = heads_of(config, number)
    own.inner *= 2 if number in borrowers(config) and config.use_double_wide_mlp else 1
    return own
