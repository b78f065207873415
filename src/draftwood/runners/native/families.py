"""Which models the native engine runs, and the facts and weights that it takes from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.errors import ModelError
from draftwood.native.library import Facts, LayerSource, Matrix
from draftwood.runners.context import rotary_settings
from draftwood.runners.native.stored import ACTIVATIONS, StoredPart, zero_factor
from draftwood.runners.native.weights import Weight, sized
from draftwood.runners.support import model_kind
from draftwood.runners.window_check import used_window
from draftwood.runners.windows import SLIDING

_BEFORE = {"norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_AFTER = {"out_norm": "post_attention_layernorm", "down_norm": "post_feedforward_layernorm"}
_AROUND = {**_AFTER, "norm": "input_layernorm", "ffn_norm": "pre_feedforward_layernorm"}


class Family(NamedTuple):
    """What the models of a class have in common.

    Attributes:
        norms: the norms of a layer, by the engine's name.
        plus_one: norms multiply by their weight plus one.
        joint_norms: query and key norms are of all heads together.
        activation: the setting that names the activation.
        settings: those that are facts, by the engine's name.
    """

    norms: Mapping[str, str] = _BEFORE
    plus_one: bool = False
    joint_norms: bool = False
    activation: str = "hidden_act"
    settings: Mapping[str, str] = {}


_LLAMA = Family()
_GEMMA = Family(_AROUND, plus_one=True, activation="hidden_activation", settings={"logit_cap": "final_logit_softcapping"})
_FAMILIES = {
    **dict.fromkeys(("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"), _LLAMA),
    **dict.fromkeys(("SmolLM3ForCausalLM", "Phi3ForCausalLM", "MixtralForCausalLM", "Qwen3MoeForCausalLM"), _LLAMA),
    "Olmo2ForCausalLM": Family(_AFTER, joint_norms=True),
    "GraniteForCausalLM": Family(
        settings={
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_divisor": "logits_scaling",
        }
    ),
    "Gemma2ForCausalLM": _GEMMA._replace(settings={**_GEMMA.settings, "attention_cap": "attn_logit_softcapping"}),
    "Gemma3ForCausalLM": _GEMMA,
}
_FORMATS = (torch.float32, torch.bfloat16)
_ROTARY = {"default", "linear", "llama3", "yarn", "longrope", "proportional"}
"""Rotations that depend on the position alone, within the context of :func:`draftwood.runners.context.context`."""
_NORMS = {"query_norm": "q_norm", "key_norm": "k_norm"}
_WEIGHTS = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}


def _family(model: Any) -> Family:
    return _FAMILIES[model.family if isinstance(model, StoredPart) else type(model).__name__]


def _activation(model: Any) -> str:
    return str(getattr(model.config, _family(model).activation))


def why_not(model: Any) -> str | None:
    """Why the native engine does not run a causal model; None if it does."""
    config = model.config
    if type(model).__name__ not in _FAMILIES or not type(model).__module__.startswith("transformers."):
        return f"it has no code for model type {model_kind(model)!r}"
    if _activation(model) not in ACTIVATIONS:
        return f"it has no code for {_family(model).activation} {_activation(model)!r}"
    if (factor := zero_factor(config)) is not None:
        return f"it has no code for {factor} 0"
    if not all(layer.self_attn.is_causal for layer in model.model.layers):
        return "its tokens see later ones"
    for rotary in rotary_settings(config):
        if (kind := rotary.get("rope_type", "default")) not in _ROTARY:
            return f"it has no code for rotary embeddings of type {kind!r}"
    embedded, scored = model.get_input_embeddings().weight.shape[0], model.get_output_embeddings().weight.shape[0]
    if scored > embedded:
        return f"it scores {scored} tokens and has embeddings of {embedded}"
    if model.get_output_embeddings().bias is not None:
        return "it has no code for a bias of the head"
    return why_not_format(model)


def why_not_format(model: Any) -> str | None:
    """Why the native engine does not run models of this number format on this device; None if it does."""
    if model.device.type != "cpu":
        return f"the model is on {model.device}"
    formats = {p.dtype for p in model.parameters()}
    if len(formats) > 1 or not formats <= set(_FORMATS):
        found = ", ".join(sorted(str(one).removeprefix("torch.") for one in formats))
        return f"it computes in float32 or bfloat16, and the model is in {found}"
    return None


def refuse(reason: str | None) -> None:
    """Raise a ModelError if there is a reason not to run a model."""
    if reason is not None:
        raise ModelError(f"the native engine does not run this model: {reason}. Use --backend torch")


@final
class Held:
    """Tensors whose memory the engine reads; they live at least as long as this object.

    Args:
        dtype: the model's number format.
        coded: codes stay codes.
        mapped: pages of files in which matrices lie leave the process once they are packed.
    """

    def __init__(self, dtype: torch.dtype, *, coded: bool = False, mapped: bool = False) -> None:
        self.dtype, self.coded, self._mapped = dtype, coded, mapped
        self._kept: list[Any] = []

    def weights(self, part: Tensor) -> int:
        """Where these weights lie, in the model's format."""
        return self._place(part.detach().to(self.dtype).contiguous())

    def matrix(self, part: Tensor | Weight) -> Matrix:
        """The same as a matrix."""
        if isinstance(part, Tensor):
            place = self.weights(part)
            return Matrix(place, -1, 0, self._kept[-1].nbytes if self._mapped else 0)
        self._kept.append(part)
        return part.matrix(coded=self.coded)

    def numbers(self, part: Any) -> int | None:
        """Where these numbers lie in float32; None for None."""
        if part is None:
            return None
        found = part.tensor(self.dtype) if isinstance(part, Weight) else part.detach().contiguous()
        return self._place(found.float())

    def _place(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()


class _Product(NamedTuple):
    """A part of a linear layer."""

    weight: Tensor | Weight
    bias: Tensor | None = None


def _products(layer: Any) -> dict[str, Any]:
    """The linear layers of a layer, by the engine's name; those that are one in Phi-3 are divided."""
    attention, network = layer.self_attn, layer.mlp
    found = {"out": attention.o_proj}
    if hasattr(network, "experts"):
        return found | {name: getattr(attention, part) for name, part in _WEIGHTS.items()}
    found["down"] = network.down_proj
    if (fused := getattr(attention, "qkv_proj", None)) is not None:
        both, keys = network.gate_up_proj.weight, attention.num_key_value_heads * attention.head_dim
        parts = fused.weight.split([fused.weight.shape[0] - 2 * keys, keys, keys]) + both.split([both.shape[0] // 2] * 2)
        return found | {name: _Product(part) for name, part in zip((*_WEIGHTS, "gate", "up"), parts, strict=True)}
    found |= {name: getattr(attention, part) for name, part in _WEIGHTS.items()}
    return found | {"gate": network.gate_proj, "up": network.up_proj}


def _norm_weight(norm: Any, family: Family, dtype: torch.dtype) -> Any:
    """What a norm multiplies by; None if there is no norm, or one that does nothing."""
    weight = getattr(norm, "weight", None)
    if weight is None or not family.plus_one:
        return weight
    return (weight.tensor(dtype) if isinstance(weight, Weight) else weight.detach()).float() + 1


def layer_source(
    layer: Any, held: Held, facts: Facts, family: Family = _LLAMA, window: int = 0, rotary: int = 0
) -> LayerSource:
    """The weights of a layer; raises a ModelError if one has another shape than the facts say.

    Args:
        layer: with the names of Llama, of Phi-3, or of the norms of a family; query and key norms as in Qwen3.
        held: keeps their memory alive.
        facts: of the model.
        family: of the model.
        window: tokens that a token sees at most; 0 for all.
        rotary: the layer's table of rotations; -1 for none.
    """
    products = _products(layer)
    norms = {name: getattr(layer, part) for name, part in family.norms.items()}
    norms |= {name: getattr(layer.self_attn, part, None) for name, part in _NORMS.items()}
    norms["hidden_norm"] = joined = getattr(layer, "hidden_norm", None)
    experts = {}
    if hasattr(layer.mlp, "experts"):
        mixed = layer.mlp.gate.weight, layer.mlp.experts.gate_up_proj, layer.mlp.experts.down_proj
        experts = dict(zip(("router", "experts_up", "experts_down"), mixed, strict=True))
    shapes = LayerSource.shapes(facts, facts.width if joined is None else 2 * facts.width)

    def taken(take: Callable[[Any], Any], parts: Mapping[str, Any]) -> dict[str, Any]:
        return {name: take(sized(name, part, *shapes[name])) for name, part in parts.items()}

    return LayerSource(
        **taken(held.matrix, {name: product.weight for name, product in products.items()}),
        **taken(held.numbers, {f"{name}_bias": product.bias for name, product in products.items()}),
        **taken(held.numbers, {name: _norm_weight(norm, family, held.dtype) for name, norm in norms.items()}),
        **taken(held.weights, experts),
        window=window,
        rotary=rotary,
    )


def layer_sources(model: Any, held: Held, facts: Facts) -> list[LayerSource]:
    """The weights of the layers of a model that :func:`why_not` does not refuse."""
    window = model.window if isinstance(model, StoredPart) else used_window(model)
    tables, layers = _tables(model), model.model.layers
    found = []
    for layer, kind in zip(layers, getattr(model.config, "layer_types", None) or [SLIDING] * len(layers), strict=True):
        slides = window is not None and (window.everywhere or kind == SLIDING)
        rotary = tables.index(kind) if kind in tables else 0
        found.append(
            layer_source(
                layer, held, facts, _family(model),
                window=window.size if window is not None and slides else 0,
                rotary=rotary if getattr(layer.self_attn, "use_rope", True) else -1,
            )
        )  # fmt: skip
    return found


def _mixture(model: Any) -> dict[str, int]:
    """The facts of a mixture of experts; none if the model has none."""
    for layer in model.model.layers:
        if (experts := getattr(layer.mlp, "experts", None)) is not None:
            gate = layer.mlp.gate
            return {
                "experts": experts.num_experts,
                "chosen": gate.top_k,
                "expert_inner": experts.intermediate_dim,
                "whole_shares": getattr(gate, "norm_topk_prob", True),
            }
    return {}


def last_norm(model: Any) -> Tensor | Weight:
    """What the norm before the head multiplies by."""
    found: Tensor | Weight = _norm_weight(model.model.norm, _family(model), model.dtype)
    return found


def facts_of(model: Any, taps: int) -> Facts:
    """The facts of such a model, of which forwards return ``taps`` hidden states."""
    config, attention, family = model.config, model.model.layers[0].self_attn, _family(model)
    settings = {name: getattr(config, setting) or 0.0 for name, setting in family.settings.items()}
    if (scale := getattr(model.get_input_embeddings(), "embed_scale", None)) is not None:  # as it is rounded
        settings["embedding_scale"] = float(scale.to(model.dtype))
    norm = model.model.norm
    return Facts(
        layers=len(model.model.layers),
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=attention.head_dim,
        inner=config.intermediate_size,
        vocab=model.get_output_embeddings().weight.shape[0],
        tokens=model.get_input_embeddings().weight.shape[0],
        rotary_dim=2 * rotation(model, 1)[0].shape[-1],
        taps=taps,
        bfloat16=model.dtype == torch.bfloat16,
        activations=getattr(model, "activations", 16),
        epsilon=norm.eps if family.plus_one else norm.variance_epsilon,
        scale=attention.scaling,
        gelu=ACTIVATIONS[_activation(model)],
        joint_norms=family.joint_norms,
        **settings,
        **_mixture(model),
    )


def _tables(model: Any) -> Sequence[str]:
    """The types of layers that have rotations of their own; empty if all layers have the same."""
    return getattr(model.model.rotary_emb, "layer_types", ())


def rotation(
    model: Any, positions: int
) -> tuple[Float[Tensor, "table position half"], Float[Tensor, "table position half"]]:
    """Cosines and sines of the first positions, by the model's own module."""
    inputs = torch.zeros(1), torch.arange(positions).unsqueeze(0)
    with torch.inference_mode():
        found = [model.model.rotary_emb(*inputs, *kind) for kind in ([[kind] for kind in _tables(model)] or [[]])]
    cos, sin = (torch.cat(parts)[..., : parts[0].shape[-1] // 2] for parts in zip(*found, strict=True))
    return cos, sin
