"""The configuration of a GGUF file's model, as ``config.json`` would have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from draftwood.core.errors import ModelError
from draftwood.loading.gguf_families import SAID
from draftwood.loading.gguf_header import AGAIN, OTHER_FILES, Header, TensorInfo
from draftwood.loading.gguf_keys import INNER, ORIGINAL, PATTERN, SHARED, TURNED_SIZE, WINDOW, Keys, numbers_of
from draftwood.runners.context import rotary_settings
from draftwood.runners.native.families import EMBEDDING as TABLE
from draftwood.runners.native.families import FAMILIES, HEAD
from draftwood.runners.native.layers import LAYER_NORM, LAYER_PROJECTION, LAYER_TABLE
from draftwood.runners.native.layouts import gguf_names
from draftwood.runners.native.refusals import why_not_config
from draftwood.runners.native.rotary import rotary_frequencies
from draftwood.runners.native.weights import BLOCKS
from draftwood.runners.plain_config import PlainConfig

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
WHOLE: Final = {
    TABLE: EMBEDDING, HEAD: OUTPUT, LAYER_TABLE: "per_layer_token_embd.weight",
    LAYER_PROJECTION: "per_layer_model_proj.weight", LAYER_NORM: "per_layer_proj_norm.weight",
}  # fmt: skip
"""Names of weights of the whole model, in ``transformers`` and in files."""
_TYPES: Final = {
    (family.gguf or kind, bool(family.experts)): kind for kind, family in FAMILIES.items() if family.gguf is not None
} | {(family.hybrid, sparse): kind for kind, family in FAMILIES.items() if family.hybrid for sparse in (False, True)}
"""Model types by architecture, of mixtures of experts and others."""
_LLAMA3: Final = {
    "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
_TOKENS: Final = {"bos": "bos", "eos": "eos", "pad": "padding"}


def stored_config(header: Header) -> dict[str, Any]:
    """The configuration of a file's model.

    Raises:
        ModelError: an architecture or a type of tensors that is not read, or a model that the native engine has no code for;
            the file lacks a number, or has a key that is not read.
    """
    sizes = {tensor.name: tensor.sizes for tensor in header.tensors}
    arch = header.architecture
    if (kind := _TYPES.get((arch, bool(header.value(f"{arch}.expert_count"))))) is None:
        raise ModelError(f"{header} has architecture {arch!r}, which is not read from GGUF files: {OTHER_FILES}")
    if (tensor := next((one for one in header.tensors if one.kind not in BLOCKS), None)) is not None:
        raise ModelError(f"{header} holds tensor {tensor.name!r} in type {tensor.kind}, which is not read: {OTHER_FILES}")
    if EMBEDDING not in sizes:
        raise ModelError(f"{header} lacks tensor {EMBEDDING!r}: {AGAIN}")
    found = _config(header, kind, sizes)
    if (reason := why_not_config(PlainConfig(**found))) is not None:
        raise ModelError(f"the native engine does not read {header}: {reason}; {OTHER_FILES}")
    return found


def _config(header: Header, kind: str, sizes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    family, own = FAMILIES[kind], SAID[kind]
    keys = Keys(header, (PATTERN, *own.lists))
    width, heads = int(keys.need("embedding_length")), int(keys.need("attention.head_count"))
    shared, epsilon = keys.get(SHARED, heads), float(keys.need("attention.layer_norm_rms_epsilon"))
    size, length = int(keys.get("attention.key_length", width // heads)), int(keys.get("context_length", 2048))
    scaling, base = keys.scaling, float(keys.get("rope.freq_base", 10000.0))
    linear = {"factor": float(scaling[1])} if scaling[0] == "linear" else {}
    found = {
        "model_type": kind,
        "architectures": [family.name],
        "vocab_size": sizes[EMBEDDING][-1],
        "hidden_size": width,
        "num_hidden_layers": int(keys.need("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": max(shared) if isinstance(shared, list) else int(shared),
        "head_dim": size,
        family.epsilon: epsilon,
        "max_position_embeddings": length,
        "rope_parameters": {"rope_type": "linear" if linear else "default", "rope_theta": base, **linear},
        family.activation or "hidden_act": "silu",
        "tie_word_embeddings": OUTPUT not in sizes,
        **{f"{name}_token_id": header.metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in _TOKENS.items()},
    }
    if INNER in keys or not own.settings.keys() & {"intermediate_size", "moe_intermediate_size"}:
        inner = keys.need(INNER)
        found["intermediate_size"] = int(min(inner) if isinstance(inner, list) else inner)
    names = gguf_names(kind)
    for part, setting in family.biases.items():
        if setting:
            held = next(stem for module, stem in names.items() if module.startswith(part))
            found[setting] = f"blk.0.{held}.bias" in sizes
    found |= {**{setting: keys.need(key) for setting, key in own.settings.items()}, **own.fixed}
    found |= own.more(keys, found)
    keys.check_scaling(rotary_settings(PlainConfig(**found)))
    if scaling[0] in ("default", "linear"):
        keys.get(ORIGINAL)
    if found.get("sliding_window") is None and 0 < keys.get(WINDOW, 0) < length:
        raise keys.refused(WINDOW)
    keys.end({
        "attention.value_length": size, "attention.layer_norm_epsilon": epsilon, "rope.freq_base_swa": base,
        TURNED_SIZE: size, "expert_feed_forward_length": found.get("intermediate_size"),
        "expert_weights_norm": found.get("norm_topk_prob"),
    })  # fmt: skip
    return found


def scale_rotary(header: Header, config: Any, tensor: TensorInfo) -> None:
    """Set the rotary scaling of Llama 3.1 and its successors, which a file holds only as a tensor of divisors; raises a
    ModelError for another scaling. That of Gemma 4 is in the configuration."""
    if FAMILIES[config.model_type].varied:
        return
    divisors = torch.from_numpy(numbers_of(header, tensor))
    if torch.allclose(divisors, torch.ones(())):
        return
    plain, _ = rotary_frequencies(config)
    config.rope_parameters = {**config.rope_parameters, **_LLAMA3, "factor": float(divisors.max())}
    scaled, _ = rotary_frequencies(config)
    if not torch.allclose(plain / divisors, scaled, rtol=1e-3):
        raise ModelError(f"{header} scales its rotary embedding in a way that is not known: {OTHER_FILES}")
