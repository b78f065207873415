"""Other GGUF files than those of ``gguf_model``: ``transformers`` dequantises them, and what it does not read is refused."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import torch

from draftwood.core.errors import ModelError
from draftwood.hardware.machine import version_of
from draftwood.loading.checkpoint import without_bars
from draftwood.loading.gguf_header import AGAIN, OTHER_FILES, Header, cannot_read, refuse_part
from draftwood.loading.gguf_model import ROPE, add_end_of_turn, scale_rotary


def convert(header: Header, dtype: torch.dtype) -> Any:
    """The model of a GGUF file, a model of ``transformers`` in this number format.

    Raises:
        ModelError: a package is missing; the file is incomplete; it holds an architecture, data type, rotary scaling or
            tensors that ``transformers`` does not read.
    """
    if missing := [package for package in ("gguf", "accelerate") if version_of(package) is None]:
        raise ModelError(
            f'a GGUF file needs the package {" and ".join(missing)}; install with: pip install "draftwood[gguf]"'
        )
    refuse_part(header)
    with tempfile.TemporaryDirectory(prefix="draftwood-") as alone:
        # Files next to the GGUF file, such as the configuration of another model, would be read too.
        (Path(alone) / "model.gguf").symlink_to(header.path.resolve())
        model, found = _load(header, Path(alone), dtype)
    if gaps := [*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])]:
        raise ModelError(f"{header} lacks tensor {min(gaps)!r}, or holds it in another shape: {AGAIN}")
    # Tensors that transformers does not know are skipped without a word. A file may repeat a tied embedding.
    repeated = "output.weight" if model.config.tie_word_embeddings else None
    read = sum(weight.numel() for weight in model.parameters())
    held = sum(tensor.elements for tensor in header.tensors if tensor.name not in (ROPE, repeated))
    if read != held:
        raise ModelError(
            f"{header} holds {held:,} weights, but transformers {version_of('transformers')} reads {read:,} of architecture "
            f"{header.architecture!r}: {OTHER_FILES}"
        )
    _refuse_unread(header, model.config)
    if divisors := [tensor for tensor in header.tensors if tensor.name == ROPE]:
        scale_rotary(header, model.config, *divisors)
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    add_end_of_turn(header, model.generation_config)
    vars(model.config).pop("quantization_config", None)  # it holds numbers now
    model.is_quantized, model.hf_quantizer = False, None
    return model


def _load(header: Header, folder: Path, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    """The model and the loading info of ``from_pretrained``."""
    import gguf
    import transformers

    # Newer versions may otherwise keep the weights quantised.
    extra = {"quantization_config": transformers.GgufConfig(dequantize=True)} if hasattr(transformers, "GgufConfig") else {}
    settings = {"output_loading_info": True, "ignore_mismatched_sizes": True, **extra}
    try:
        for tensor in header.tensors:
            header.place_of(tensor, *gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.kind)])
        with without_bars():
            auto = transformers.AutoModelForCausalLM
            model, found = auto.from_pretrained(folder, gguf_file="model.gguf", dtype=dtype, **settings)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(cannot_read("model", header, error)) from error
    return model, found


def _refuse_unread(header: Header, config: Any) -> None:
    """Refuse settings of the attention that ``transformers`` did not take from the file."""

    def said(key: str) -> Any:
        return header.metadata.get(f"{header.architecture}.{key}", 0)

    rotary = getattr(config, "rope_parameters", None) or {}
    parts = (rotary, *(part for part in rotary.values() if isinstance(part, dict)))
    bases = [part["rope_theta"] for part in parts if "rope_theta" in part] or [said("rope.freq_base")]
    window, own = said("attention.sliding_window"), getattr(config, "sliding_window", None) or 0
    unread = {
        "rope.scaling.type": said("rope.scaling.type") not in (0, "none") and header.architecture != "gpt-oss",
        "rope.freq_base": all(not math.isclose(said("rope.freq_base") or base, base, rel_tol=1e-5) for base in bases),
        "attention.sliding_window": 0 < window < config.max_position_embeddings and window != own,
    }
    if key := next((key for key, ignored in unread.items() if ignored), None):
        raise ModelError(
            f"{header} says {key} {said(key)}, which transformers does not read for architecture {header.architecture!r}: "
            + OTHER_FILES
        )
