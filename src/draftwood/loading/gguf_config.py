"""The configuration of a GGUF file's model, as ``config.json`` would have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

from draftwood.core.errors import ModelError
from draftwood.loading.gguf_families import SAID
from draftwood.loading.gguf_header import OTHER_FILES, Header, TensorInfo
from draftwood.loading.gguf_keys import refuse_unread, require, rotary_scaling, unread, values_of
from draftwood.loading.gguf_layers import INNER, PATTERN, SHARED, numbers_of
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
_NEEDED: Final = ("embedding_length", "block_count", "attention.head_count", "attention.layer_norm_rms_epsilon")


def type_of(header: Header) -> str | None:
    """The model type of a file that is read here; None for another architecture."""
    return _TYPES.get((header.architecture, bool(header.value(f"{header.architecture}.expert_count"))))


def stored_config(header: Header) -> dict[str, Any] | None:
    """The configuration of a file's model; None for one that is not read here.

    Raises:
        ModelError: the file lacks a number, or has a key that is not read, in an architecture that is.
    """
    known = all(tensor.kind in BLOCKS for tensor in header.tensors)
    sizes = {tensor.name: tensor.sizes for tensor in header.tensors}
    if not known or EMBEDDING not in sizes or (kind := type_of(header)) is None:
        return None
    found = _config(header, kind, values_of(header), sizes)
    config = PlainConfig(**found)
    refuse_unread(header, config, SAID[kind].read)
    return found if why_not_config(config) is None else None


def _config(header: Header, kind: str, values: Mapping[str, Any], sizes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    own = SAID[kind]
    require(header, values, (*_NEEDED, *own.needed, *own.settings.values()))
    if listed := [name for name, value in values.items() if isinstance(value, list) and name not in (PATTERN, *own.read)]:
        raise unread(header, listed[0], values[listed[0]])
    scaling, factor = rotary_scaling(values)
    linear = {"factor": float(factor)} if scaling == "linear" else {}
    base = float(values.get("rope.freq_base", 10000.0))
    width, heads = int(values["embedding_length"]), int(values["attention.head_count"])
    shared = values.get(SHARED, heads)
    found = {
        "model_type": kind,
        "architectures": [FAMILIES[kind].name],
        "vocab_size": sizes[EMBEDDING][-1],
        "hidden_size": width,
        **({"intermediate_size": int(np.min(values[INNER]))} if INNER in values else {}),
        "num_hidden_layers": int(values["block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": max(shared) if isinstance(shared, list) else int(shared),
        "head_dim": int(values.get("attention.key_length", width // heads)),
        FAMILIES[kind].epsilon: float(values["attention.layer_norm_rms_epsilon"]),
        "max_position_embeddings": int(values.get("context_length", 2048)),
        "rope_parameters": {"rope_type": scaling if linear else "default", "rope_theta": base, **linear},
        FAMILIES[kind].activation or "hidden_act": "silu",
        "tie_word_embeddings": OUTPUT not in sizes,
        **{f"{name}_token_id": header.metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in _TOKENS.items()},
    }
    names = gguf_names(kind)
    for part, setting in FAMILIES[kind].biases.items():
        if setting:
            held = next(stem for module, stem in names.items() if module.startswith(part))
            found[setting] = f"blk.0.{held}.bias" in sizes
    found |= {**{setting: values[key] for setting, key in own.settings.items()}, **own.fixed}
    return found | own.more(header, values, found)


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
