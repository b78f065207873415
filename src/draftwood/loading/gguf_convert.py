"""Other GGUF files than those of ``gguf_model``: ``transformers`` dequantises them, and what it does not read is refused."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from draftwood.core.errors import ModelError
from draftwood.hardware.machine import version_of
from draftwood.loading.bars import without_bars
from draftwood.loading.gguf_header import AGAIN, OTHER_FILES, Header, cannot_read, refuse_part
from draftwood.loading.gguf_model import ROPE, add_end_of_turn, scale_rotary


def require_packages() -> None:
    """Check that the packages are installed that ``transformers`` needs to read GGUF files.

    Raises:
        ModelError: names the extra.
    """
    if missing := [package for package in ("gguf", "accelerate") if version_of(package) is None]:
        raise ModelError(
            f'a GGUF file needs the package {" and ".join(missing)}; install with: pip install "draftwood[gguf]"'
        )


def convert(header: Header, dtype: torch.dtype) -> Any:
    """The model of a GGUF file, a model of ``transformers`` in this number format.

    Raises:
        ModelError: a package is missing; the file is incomplete; it holds an architecture, data type, rotary scaling or
            tensors that ``transformers`` does not read.
    """
    require_packages()
    _check_data(header)
    _check_metadata(header)
    with tempfile.TemporaryDirectory(prefix="draftwood-") as alone:
        # Files next to the GGUF file, such as the configuration of another model, would be read too.
        (Path(alone) / "model.gguf").symlink_to(header.path.resolve())
        model = _model(header, Path(alone), dtype)
    if divisors := [tensor for tensor in header.tensors if tensor.name == ROPE]:
        scale_rotary(header, model.config, *divisors)
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    add_end_of_turn(header, model.generation_config)
    vars(model.config).pop("quantization_config", None)  # it holds numbers now
    model.is_quantized, model.hf_quantizer = False, None
    return model


def _check_data(header: Header) -> None:
    """Refuse unknown data types and a file that ends before its tensors do."""
    import gguf

    for kind in sorted({tensor.kind for tensor in header.tensors}):
        try:
            _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
            gguf.dequantize(np.zeros((1, size), np.uint8), gguf.GGMLQuantizationType(kind))
        except (ValueError, KeyError, NotImplementedError) as error:
            names = {entry.value: entry.name for entry in gguf.GGMLQuantizationType}
            raise ModelError(
                f"{header} holds tensors of type {names.get(kind, kind)}, which the package gguf "
                f"{version_of('gguf')} cannot dequantise: take a file with another quantisation, such as Q8_0 or Q4_K_M"
            ) from error
    for tensor in header.tensors:
        header.place_of(tensor, *gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.kind)])


def _check_metadata(header: Header) -> None:
    """Refuse parts of a split model, and scaling of the rotary embedding that ``transformers`` would ignore."""
    refuse_part(header)
    scaling = header.metadata.get(f"{header.architecture}.rope.scaling.type", "none")
    if scaling != "none" and header.architecture != "gpt-oss":
        raise ModelError(
            f"{header} scales its rotary embedding ({scaling}), which transformers does not read from GGUF: {OTHER_FILES}"
        )


def _model(header: Header, folder: Path, dtype: torch.dtype) -> Any:
    import transformers

    extra: dict[str, Any] = {}
    if hasattr(transformers, "GgufConfig"):  # newer versions may otherwise keep the weights quantised
        extra["quantization_config"] = transformers.GgufConfig(dequantize=True)
    try:
        with without_bars():
            model, found = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                gguf_file="model.gguf",
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, by name
                **extra,
            )
    except Exception as error:
        raise ModelError(cannot_read("model", header, error)) from error
    if missing := sorted(found["missing_keys"]):
        raise ModelError(f"{header} lacks {_names(missing)}: {AGAIN}")
    if mismatched := sorted(key for key, *_ in found["mismatched_keys"]):
        raise ModelError(
            f"{header} holds {_names(mismatched)} in another shape than transformers "
            f"{transformers.__version__} expects for architecture {header.architecture!r}: {OTHER_FILES}"
        )
    # Tensors that transformers does not know are skipped without a word. A file may repeat a tied embedding.
    repeated = "output.weight" if model.config.tie_word_embeddings else None
    read = sum(weight.numel() for weight in model.parameters())
    held = sum(tensor.elements for tensor in header.tensors if tensor.name not in (ROPE, repeated))
    if read != held:
        raise ModelError(
            f"{header} holds {held:,} weights, but transformers {transformers.__version__} reads "
            f"{read:,} of architecture {header.architecture!r}: {OTHER_FILES}"
        )
    _check_attention(header, model.config)
    return model


def _check_attention(header: Header, config: Any) -> None:
    """Refuse a rotary base or a sliding window that ``transformers`` did not take from the file."""
    rotary = getattr(config, "rope_parameters", None) or {}
    parts = (rotary, *(part for part in rotary.values() if isinstance(part, dict)))
    taken = {
        "rope.freq_base": [part["rope_theta"] for part in parts if "rope_theta" in part],
        "attention.sliding_window": [getattr(config, "sliding_window", None) or 0],
    }
    for key, values in taken.items():
        wanted = float(header.metadata.get(f"{header.architecture}.{key}", 0))
        whole = key == "attention.sliding_window" and wanted >= config.max_position_embeddings
        if wanted and values and not whole and not any(math.isclose(wanted, value, rel_tol=1e-5) for value in values):
            raise ModelError(
                f"{header} says {key} {wanted:g}, which transformers does not read for "
                f"architecture {header.architecture!r}: {OTHER_FILES}"
            )


def _names(tensors: Iterable[str]) -> str:
    first, *others = tensors
    return f"tensor {first!r}" + (f" and {len(others)} more" if others else "")
