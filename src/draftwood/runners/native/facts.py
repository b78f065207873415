"""What follows from a model type and a configuration, as the native engine takes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from draftwood.native.library import Facts, LayerSource
from draftwood.runners.native.families import (
    ACTIVATIONS,
    EMBEDDING,
    FAMILIES,
    HEAD,
    SINKS,
    SWIGLU,
    experts_of,
    last_norm,
    modules_of,
)
from draftwood.runners.native.rotary import Rotary, head_size
from draftwood.runners.native.states import TILED
from draftwood.runners.windows import SLIDING, Window, sliding_window


def embedding_scale(config: Any) -> float:
    """What embeddings are multiplied by; 0 for nothing."""
    return float(config.hidden_size**0.5) if FAMILIES[config.model_type].scaled else 0.0


def window_of(config: Any) -> Window | None:
    """The sliding attention of such a model; None if it has none."""
    return sliding_window(config) if FAMILIES[config.model_type].windows else None


def facts_of(config: Any, **more: Any) -> Facts:
    """The facts of such a model, and ``more`` that follow from its weights or from how it is used."""
    own, head = FAMILIES[config.model_type], head_size(config)
    setting, power = own.scale
    factors = {name: getattr(config, setting, SWIGLU.get(setting)) or 0.0 for name, setting in own.factors.items()}
    experts = {name: given if given is True else getattr(config, str(given)) for name, given in own.experts.items()}
    states = [own.states[kind] for kind in sorted(own.states.keys() & set(kinds_of(config)))]
    return Facts(
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head,
        inner=_inner(config),
        rotary_dim=2 * Rotary(config)(1)[0].shape[-1],
        epsilon=getattr(config, own.epsilon),
        scale=(getattr(config, setting) if setting else head) ** power,
        gelu=ACTIVATIONS[getattr(config, own.activation)] if own.activation else 0,
        joint_norms=own.head_norms == "joint",
        gated=own.gated,
        tiled=bool(getattr(config, TILED, False)),
        **{name: getattr(config, setting) for layer in states for name, setting in layer.facts.items()},
        **factors | ({"experts_per_token": config.num_experts_per_tok, **experts} if experts.get("experts") else {}) | more,
    )  # fmt: skip


def _inner(config: Any) -> int:
    """The width of the feed-forward networks."""
    size = int(getattr(config, FAMILIES[config.model_type].shared or "intermediate_size"))
    if not getattr(config, "block_auto_adjust_ff_dim", False):
        return size
    size, multiple = int(2 * size / 3), config.block_multiple_of
    if config.block_ffn_dim_multiplier is not None:
        size = multiple * -(-int(config.block_ffn_dim_multiplier * size) // multiple)
    return size


def is_sparse(config: Any, number: int) -> bool:
    """Whether a layer is a mixture of experts."""
    step, dense = getattr(config, "decoder_sparse_step", 1), getattr(config, "mlp_only_layers", None) or ()
    count = FAMILIES[config.model_type].experts.get("experts")
    first = getattr(config, "num_dense_layers", 0)
    return (
        bool(count and getattr(config, str(count))) and number not in dense and (number + 1) % step == 0 and number >= first
    )


def _layer_shapes(config: Any, number: int, facts: Facts) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the weights of a layer."""
    own, sparse, shapes = FAMILIES[config.model_type], is_sparse(config, number), LayerSource.shapes(facts, facts.width)
    products, norms = modules_of(own)
    if (states := own.states.get(kinds_of(config)[number])) is not None:
        yield from states.shapes(facts).items()
        products = {name: products[name] for name in ("gate", "up", "down")}
        norms = {name: norms[name] for name in own.norms}
    elif not own.head_norms:
        norms = {name: norms[name] for name in own.norms}
    modules = {module: shapes[name] for name, module in products.items()}
    for module, parts in own.fused.items():
        width = [modules.pop(products[part]) for part in parts]
        modules[module] = sum(shape[0] for shape in width), width[0][1]
    if sparse and not own.shared:
        modules = {module: shape for module, shape in modules.items() if module.split(".")[0] not in ("mlp", "feed_forward")}
    biased = tuple(part for part, setting in own.biases.items() if not setting or getattr(config, setting, False))
    for module, shape in modules.items():
        yield f"{module}.weight", shape
        if module.startswith(biased):
            yield f"{module}.bias", shape[:1]
    yield from ((f"{module}.weight", shapes[name]) for name, module in norms.items())
    if own.sinks:
        yield SINKS, shapes["sinks"]
    if sparse:
        yield from ((module, shapes[name]) for name, module in experts_of(own).items())


def shapes_of(config: Any) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights of such a model, with a head of its own."""
    facts, width = facts_of(config), config.hidden_size
    outer = config.vocab_size, width
    found = {EMBEDDING: outer, last_norm(FAMILIES[config.model_type]): (width,), HEAD: outer}
    for number in range(facts.layers):
        found |= {f"model.layers.{number}.{name}": shape for name, shape in _layer_shapes(config, number, facts)}
    return found


def rotates(config: Any, number: int) -> bool:
    """Whether a layer rotates its queries and keys."""
    flags, own = getattr(config, "no_rope_layers", None), FAMILIES[config.model_type]
    if own.rotary and getattr(config, own.rotary) != "rope":
        return False
    everywhere = not own.full_unrotated or config.sliding_window is None
    return bool(flags[number]) if flags else everywhere or kinds_of(config)[number] == SLIDING


def kinds_of(config: Any) -> list[str]:
    """The type of each layer's attention."""
    return list(getattr(config, "layer_types", None) or [SLIDING] * config.num_hidden_layers)
