"""Weights of files that hold them under other names or in another order than ``transformers``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from draftwood.native.library import LayerSource
from draftwood.runners.native.experts import outputs_first
from draftwood.runners.native.facts import facts_of, shapes_of
from draftwood.runners.native.families import FAMILIES, FUSED, PRODUCTS, ROUTER, SCALAR, SINKS, Family
from draftwood.runners.native.layers import kinds_of
from draftwood.runners.native.states import TILED, mixed_rows

_PARTS: Final = ("gate_up", "gate", "up", "down")
_STEMS: Final = {
    **dict(zip(PRODUCTS, ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"), strict=True)),
    "norm": "attn_norm", "ffn_norm": "ffn_norm", "out_norm": "post_attention_norm", "down_norm": "post_ffw_norm",
    "query_norm": "attn_q_norm", "key_norm": "attn_k_norm", "last_norm": "output_norm",
    "input_gate": "inp_gate", "input_projection": "proj", "input_norm": "post_norm", "dense_norm": "post_ffw_norm_1",
    "mixture_norm": "post_ffw_norm_2", "experts_norm": "pre_ffw_norm_2", "router": "ffn_gate_inp.weight",
    "router_bias": "ffn_gate_inp.bias", "shared_gate": "ffn_gate_inp_shexp.weight",
    **{f"experts_{part}": f"ffn_{part}_exps.weight" for part in _PARTS},
    **{f"experts_{part}_bias": f"ffn_{part}_exps.bias" for part in _PARTS},
}  # fmt: skip
"""Names in GGUF files, by the engine's name."""
_SHARED_STEMS: Final = {part: f"ffn_{part}_shexp" for part in ("gate", "up", "down")}
"""The same of an expert that all tokens have."""
_STATE_STEMS: Final = {
    LayerSource.DELTA_RULE: {
        "mixed": "attn_qkv.weight", "mixed_gate": "attn_gate.weight", "share": "ssm_beta.weight",
        "decay": "ssm_alpha.weight", "out": "ssm_out.weight", "convolution": "ssm_conv1d.weight", "decay_rate": "ssm_a",
        "decay_bias": "ssm_dt.bias", "state_norm": "ssm_norm.weight", "mixed_joined": "ssm_in.weight",
        "share_decay": "ssm_ba.weight",
    },
    LayerSource.SHORT_CONVOLUTION: {
        "mixed": "shortconv.in_proj.weight", "out": "shortconv.out_proj.weight", "convolution": "shortconv.conv.weight",
    },
    LayerSource.MAMBA: {
        "mixed": "ssm_in.weight", "out": "ssm_out.weight", "convolution": "ssm_conv1d.weight",
        "convolution_bias": "ssm_conv1d.bias", "decay_rate": "ssm_a", "decay_bias": "ssm_dt.bias",
        "state_norm": "ssm_norm.weight", "skip": "ssm_d",
    },
}  # fmt: skip
"""The same of weights of layers with a running state."""
_FUSED_STEMS: Final = dict(zip(FUSED, ("attn_qkv", "ffn_up"), strict=True))
MTP_STEMS: Final = {
    "nextn.eh_proj": "fc", "nextn.enorm": "pre_fc_norm_embedding", "nextn.hnorm": "pre_fc_norm_hidden",
    "nextn.shared_head_norm": "norm", "nextn.embed_tokens": "embed_tokens", "nextn.shared_head_head": "lm_head",
}  # fmt: skip
"""Modules of an MTP head, by their names in GGUF files; the others are those of a layer."""


def gguf_names(kind: str) -> dict[str, str]:
    """Names in GGUF files of the modules of this model type, and of weights of experts and of running states."""
    own = FAMILIES[kind]
    products, norms = own.modules()
    last, stems = own.last_norm().removesuffix(".weight"), {**_STEMS, **(_SHARED_STEMS if own.shared else {}), **own.stems}
    modules = {**products, **norms, "last_norm": last, **own.mixture(), **own.halves()}
    named = {module: stems[name] for name, module in modules.items()}
    named |= {SINKS: "attn_sinks.weight", SCALAR: "layer_output_scale.weight"}
    named |= zip(ROUTER.values(), ("ffn_gate_inp.scale", "ffn_down_exps.scale"), strict=True)
    for layer in own.states.values():
        named |= {module: _STATE_STEMS[layer.kind][name] for name, module in {**layer.weights, **layer.parts}.items()}
    return named | {module: _FUSED_STEMS.get(module, module) for module in own.fused}


class _Joined(NamedTuple):
    """A weight of a layer in place of which a file may have two.

    Attributes:
        parts: their names.
        axis: of its rows.
        mixed: it has rows of both parts for each key head.
    """

    parts: tuple[str, str]
    axis: int = 0
    mixed: bool = False


def _joined(own: Family) -> dict[str, _Joined]:
    """Such weights, by name."""
    experts, halves = own.mixture(), own.halves()
    found = {
        experts[f"experts_gate_up{end}"]: _Joined((halves[f"experts_gate{end}"], halves[f"experts_up{end}"]), 1)
        for end in ("", "_bias") if f"experts_gate_up{end}" in experts
    }  # fmt: skip
    products, _ = own.modules()
    for module, names in own.fused.items():
        if len(names) == 2:
            first, second = (f"{products[name]}.weight" for name in names)
            found[f"{module}.weight"] = _Joined((first, second))
    for layer in own.states.values():
        if layer.parts:
            first, second = layer.parts.values()
            found[layer.weights["mixed_joined"]] = _Joined((first, second), mixed=True)
    return found


def parts_of(config: Any, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights that a file may have in place of a joined one; of another one, itself."""
    for joined, (parts, axis, mixed) in _joined(FAMILIES[config.model_type]).items():
        if name.endswith(joined):
            counts = list(map(len, mixed_rows(facts_of(config)))) if mixed else [shape[axis] // 2] * 2
            return {
                name.removesuffix(joined) + part: (*shape[:axis], count, *shape[axis + 1 :])
                for part, count in zip(parts, counts, strict=True)
            }
    return {name: shape}


def shapes_among(config: Any, whole: Callable[[str], bool]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights of files; of one that is not there as a ``whole``, those of its parts."""
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes_of(config).items():
        found |= {name: shape} if whole(name) else parts_of(config, name, shape)
    return found


def for_transformers(config: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights by the names and in the order of ``transformers``: parts are joined, and value heads of a key head are
    together."""
    facts, kinds, found, own = facts_of(config), kinds_of(config), {}, FAMILIES[config.model_type]
    for name, tensor in tensors.items():
        number, _, module = name.removeprefix("model.layers.").partition(".")
        moves = getattr(config, TILED, False) and number.isdigit()
        layer = own.states.get(kinds[int(number)]) if moves else None
        found[name] = tensor if layer is None else layer.grouped(module, tensor, facts)
    for joined, ((first, second), axis, mixed) in _joined(own).items():
        for name in [name for name in found if name.endswith(first)]:
            layer_name = name.removesuffix(first)
            halves = found.pop(name), found.pop(layer_name + second)
            both = torch.stack(halves, 2).flatten(1, 2) if own.alternating else torch.cat(halves, axis)
            if mixed:
                rows, gate = mixed_rows(facts)
                both = both[torch.tensor(rows + gate).argsort()]
            found[layer_name + joined] = both
    return dict(outputs_first(own, found))
