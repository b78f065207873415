"""What follows from a model type and a configuration, as the native engine takes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from draftwood.native.library import Facts, LayerSource
from draftwood.runners.context import SLIDING
from draftwood.runners.native.families import ACTIVATIONS, FAMILIES, SWIGLU
from draftwood.runners.native.family import EMBEDDING, HEAD, ROUTER, SCALAR, SINKS, TILED, Family
from draftwood.runners.native.layers import (
    LAYER_NORM,
    LAYER_PROJECTION,
    LAYER_TABLE,
    absent_in,
    heads_of,
    input_size,
    kinds_of,
    of_layer,
)
from draftwood.runners.native.rotary import Rotary
from draftwood.runners.native.states import state_shapes


def facts_of(config: Any, **more: Any) -> Facts:
    """The facts of such a model, and ``more`` that follow from its weights or from how it is used."""
    own, (setting, power) = FAMILIES[config.model_type], FAMILIES[config.model_type].scale
    head, shared = max(heads_of(config, number)[::-1] for number in range(config.num_hidden_layers))
    factors = {name: getattr(config, setting, SWIGLU.get(setting)) or 0.0 for name, setting in own.factors.items()}
    given = expert_settings(own) if expert_count(config) else {}
    experts = {name: value if value is True else getattr(config, str(value)) for name, value in given.items()}
    states = [own.states[kind] for kind in sorted(own.states.keys() & set(kinds_of(config)))]
    return Facts(
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=shared,
        head_dim=head,
        inner=_inner(config),
        rotary_dim=2 * Rotary(config)(1)[0].shape[-1],
        epsilon=getattr(config, own.epsilon),
        scale=(getattr(config, setting) if setting else head) ** power,
        gelu=ACTIVATIONS[getattr(config, own.activation)] if own.activation else 0,
        joint_norms=own.head_norms == "joint",
        norm_values=own.varied,
        layer_inputs=input_size(config),
        gated=own.gated,
        tiled=bool(getattr(config, TILED, False)),
        **{name: getattr(config, setting) for layer in states for name, setting in layer.facts.items()},
        **factors | experts | more,
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


def expert_settings(own: Family) -> dict[str, str | bool]:
    """Settings of a mixture of experts, by the engine's name, or their values."""
    return {"experts_per_token": "num_experts_per_tok", **own.experts}


def expert_count(config: Any) -> int:
    """The number of experts of a mixture; 0 of another model."""
    count = FAMILIES[config.model_type].experts.get("experts")
    return getattr(config, str(count)) or 0 if count and getattr(config, "enable_moe_block", True) else 0


def is_sparse(config: Any, number: int) -> bool:
    """Whether a layer is a mixture of experts."""
    step, dense = getattr(config, "decoder_sparse_step", 1), getattr(config, "mlp_only_layers", None) or ()
    first = getattr(config, "num_dense_layers", 0)
    return bool(expert_count(config)) and number not in dense and (number + 1) % step == 0 and number >= first


def layer_shapes(config: Any, number: int, facts: Facts) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the weights of a layer."""
    own, sparse, facts = FAMILIES[config.model_type], is_sparse(config, number), of_layer(config, number, facts)
    shapes, absent = LayerSource.shapes(facts, facts.width), set(absent_in(config, number))
    products, norms = ({name: one for name, one in parts.items() if name not in absent} for parts in own.modules())
    if (states := own.states.get(kinds_of(config)[number])) is not None:
        yield from state_shapes(states, facts).items()
        products = {name: products[name] for name in ("gate", "up", "down")}
        norms = {name: norms[name] for name in own.norms}
    elif not own.head_norms:
        norms = {name: norms[name] for name in own.norms}
    modules = {module: shapes[name] for name, module in products.items()}
    for module, parts in own.fused.items():
        width = [modules.pop(products[part]) for part in parts]
        modules[module] = sum(shape[0] for shape in width), width[0][1]
    if sparse and not own.shared and not own.varied:
        modules = {module: shape for module, shape in modules.items() if module.split(".")[0] not in ("mlp", "feed_forward")}
    biased = tuple(part for part, setting in own.biases.items() if not setting or getattr(config, setting, False))
    for module, shape in modules.items():
        yield f"{module}.weight", shape
        if module.startswith(biased):
            yield f"{module}.bias", shape[:1]
    yield from ((f"{module}.weight", shapes[name]) for name, module in norms.items())
    if own.sinks:
        yield SINKS, shapes["sinks"]
    if own.varied:
        yield SCALAR, shapes["scalar"]
    if sparse:
        yield from ((module, shapes[name]) for name, module in own.mixture().items())
        yield from ((module, shapes[name]) for name, module in ROUTER.items() if own.varied)


def shapes_of(config: Any) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights of such a model, with a head of its own."""
    facts, width = facts_of(config), config.hidden_size
    outer = config.vocab_size, width
    found = {EMBEDDING: outer, FAMILIES[config.model_type].last_norm(): (width,), HEAD: outer}
    if size := facts.layer_inputs:
        found |= {LAYER_TABLE: (config.vocab_size_per_layer_input, facts.layers * size), LAYER_NORM: (size,)}
        found[LAYER_PROJECTION] = facts.layers * size, width
    for number in range(facts.layers):
        found |= {f"model.layers.{number}.{name}": shape for name, shape in layer_shapes(config, number, facts)}
    return found


def rotates(config: Any, number: int) -> bool:
    """Whether a layer rotates its queries and keys."""
    flags, own = getattr(config, "no_rope_layers", None), FAMILIES[config.model_type]
    if own.rotary and getattr(config, own.rotary) != "rope":
        return False
    everywhere = not own.full_unrotated or config.sliding_window is None
    return bool(flags[number]) if flags else everywhere or kinds_of(config)[number] == SLIDING
