"""Which models the native engine runs, and the facts and weights that it takes from them."""

from __future__ import annotations

from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.errors import ModelError
from draftwood.native.library import Facts, LayerSource
from draftwood.runners.support import model_kind
from draftwood.runners.window_check import used_window
from draftwood.runners.windows import SLIDING

_CLASSES = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
_FORMATS = (torch.float32, torch.bfloat16)
_ROTARY = {"default", "linear", "llama3", "yarn", "longrope", "proportional"}
"""Rotations that depend on the position alone, within the context of :func:`draftwood.runners.context.context`."""
_NORMS = {"query_norm": "q_norm", "key_norm": "k_norm"}
_WEIGHTS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj"}


def why_not(model: Any) -> str | None:
    """Why the native engine does not run a causal model; None if it does."""
    config = model.config
    if type(model).__name__ not in _CLASSES or not type(model).__module__.startswith("transformers."):
        return f"it has no code for model type {model_kind(model)!r}"
    if config.hidden_act not in ("silu", "swish"):
        return f"it has no code for hidden_act {config.hidden_act!r}"
    rotary = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rotary not in _ROTARY:
        return f"it has no code for rotary embeddings of type {rotary!r}"
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
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._tensors: list[Tensor] = []

    def weights(self, part: Tensor) -> int:
        """Where these weights lie, in the model's format."""
        self._tensors.append(part.detach().to(self._dtype).contiguous())
        return self._tensors[-1].data_ptr()

    def numbers(self, part: Any) -> int | None:
        """Where these numbers lie in float32; None for None."""
        if part is None:
            return None
        self._tensors.append(part.detach().float().contiguous())
        return self._tensors[-1].data_ptr()


def layer_source(layer: Any, held: Held, window: int = 0) -> LayerSource:
    """The weights of a layer with the names of Llama; query and key norms as in Qwen3."""
    attention, products = layer.self_attn, {name: getattr(layer.self_attn, part) for name, part in _WEIGHTS.items()}
    products |= {name: getattr(layer.mlp, f"{name}_proj") for name in ("gate", "up", "down")}
    norms = {name: getattr(getattr(attention, part, None), "weight", None) for name, part in _NORMS.items()}
    return LayerSource(
        **{name: held.weights(product.weight) for name, product in products.items()},
        **{f"{name}_bias": held.numbers(product.bias) for name, product in products.items()},
        **{name: held.numbers(norm) for name, norm in norms.items()},
        norm=held.numbers(layer.input_layernorm.weight),
        ffn_norm=held.numbers(layer.post_attention_layernorm.weight),
        hidden_norm=held.numbers(getattr(getattr(layer, "hidden_norm", None), "weight", None)),
        window=window,
    )


def layer_sources(model: Any, held: Held) -> list[LayerSource]:
    """The weights of the layers of a model that :func:`why_not` does not refuse."""
    window = used_window(model)
    found = []
    for layer in model.model.layers:
        slides = window is not None and (window.everywhere or getattr(layer.self_attn, "layer_type", SLIDING) == SLIDING)
        found.append(layer_source(layer, held, window.size if window is not None and slides else 0))
    return found


def facts_of(model: Any, taps: int) -> Facts:
    """The facts of such a model, of which forwards return ``taps`` hidden states."""
    config, attention = model.config, model.model.layers[0].self_attn
    return Facts(
        layers=len(model.model.layers),
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=attention.head_dim,
        inner=config.intermediate_size,
        vocab=model.get_output_embeddings().weight.shape[0],
        rotary_dim=2 * rotation(model, 1)[0].shape[1],
        taps=taps,
        bfloat16=model.dtype == torch.bfloat16,
        epsilon=model.model.norm.variance_epsilon,
        scale=attention.scaling,
    )


def rotation(model: Any, positions: int) -> tuple[Float[Tensor, "position half"], Float[Tensor, "position half"]]:
    """Cosines and sines of the first positions, by the model's own module."""
    with torch.inference_mode():
        tables = model.model.rotary_emb(torch.zeros(1), torch.arange(positions).unsqueeze(0))
    cos, sin = (table[0, :, : table.shape[-1] // 2] for table in tables)
    return cos, sin
