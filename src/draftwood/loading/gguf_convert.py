"""From a GGUF file to a model folder: ``transformers`` dequantises the weights, and what it does not read is refused."""

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
from draftwood.loading.bars import steps, without_bars
from draftwood.loading.gguf_header import AGAIN, Header
from draftwood.loading.gguf_reading import QuickReader, quick_reading

_FLOATS = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}  # data types that are not quantised, by number
_OTHER_FILES = "give the model's safetensors folder or hub name"
_ROPE = "rope_freqs.weight"  # divisors of the rotary frequencies, as Llama 3.1 and its successors have them
_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# llama.cpp splits text at every digit for these tokenizers; transformers does not.
_DIGITS_APART = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
# llama.cpp begins a text with the beginning-of-text token for these, where a file does not say; transformers does not.
_BEGINS = ("llama3", "llama-v3", "llama-bpe", "falcon3")


def require_packages() -> None:
    """Check that the packages are installed that ``transformers`` needs to read GGUF files.

    Raises:
        ModelError: names the extra.
    """
    if missing := [package for package in ("gguf", "accelerate") if version_of(package) is None]:
        raise ModelError(
            f'a GGUF file needs the package {" and ".join(missing)}; install with: pip install "draftwood[gguf]"'
        )


def kept_dtype(header: Header) -> torch.dtype:
    """The number format in which the weights are kept: the file's own if its matrices share one, bfloat16 if quantised."""
    kinds = {tensor.kind for tensor in header.tensors if len(tensor.sizes) > 1}
    return _FLOATS.get(kinds.pop(), torch.bfloat16) if len(kinds) == 1 else torch.bfloat16


def convert(header: Header, folder: Path) -> None:
    """Write the model and the tokenizer of a GGUF file into a folder, as ``save_pretrained`` does.

    Raises:
        ModelError: a package is missing; the file is incomplete; it holds an architecture, data type, rotary scaling or
            tensors that ``transformers`` does not read.
        OSError: the folder cannot be written.
    """
    require_packages()
    _check_data(header)
    _check_metadata(header)
    with tempfile.TemporaryDirectory(prefix="draftwood-") as alone:
        # Files next to the GGUF file, such as the tokenizer of another model, would be read too.
        (Path(alone) / "model.gguf").symlink_to(header.path.resolve())
        with steps(f"Converting {header.path.name}", len(header.tensors)) as step, quick_reading(header, step):
            model = _model(header, Path(alone))
            tokenizer = _tokenizer(header, Path(alone))
    _set_rotary_scaling(header, model)
    _add_end_of_turn(header, model)
    vars(model.config).pop("quantization_config", None)  # save_pretrained refuses a model that says it is quantised
    model.is_quantized, model.hf_quantizer = False, None
    _save(model, tokenizer, folder)


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    from safetensors import SafetensorError

    try:
        with without_bars():
            model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except SafetensorError as error:  # for example if the disk is full
        raise OSError(str(error)) from error


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
                f"the GGUF file {str(header.path)!r} holds tensors of type {names.get(kind, kind)}, which the package gguf "
                f"{version_of('gguf')} cannot dequantise: take a file with another quantisation, such as Q8_0 or Q4_K_M"
            ) from error
    for tensor in header.tensors:
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.kind)]
        end = header.data_start + tensor.offset + tensor.elements // block * size
        if end > header.size:
            raise ModelError(
                f"the GGUF file {str(header.path)!r} is incomplete: tensor {tensor.name!r} ends at byte {end}, but the "
                f"file has {header.size}; {AGAIN}"
            )


def _check_metadata(header: Header) -> None:
    """Refuse parts of a split model, and scaling of the rotary embedding that ``transformers`` would ignore."""
    if int(parts := header.metadata.get("split.count", 1)) > 1:
        raise ModelError(
            f"the GGUF file {str(header.path)!r} is one of {parts} parts of a model: join them with 'llama-gguf-split "
            "--merge', and give the result"
        )
    scaling = header.metadata.get(f"{header.architecture}.rope.scaling.type", "none")
    if scaling != "none" and header.architecture != "gpt-oss":
        raise ModelError(
            f"the GGUF file {str(header.path)!r} scales its rotary embedding ({scaling}), which transformers does not read "
            f"from GGUF: {_OTHER_FILES}"
        )


def _model(header: Header, folder: Path) -> Any:
    import transformers

    extra: dict[str, Any] = {}
    if hasattr(transformers, "GgufConfig"):  # newer versions may otherwise keep the weights quantised
        extra["quantization_config"] = transformers.GgufConfig(dequantize=True)
    try:
        with without_bars():
            model, found = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                gguf_file="model.gguf",
                dtype=kept_dtype(header),
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, by name
                **extra,
            )
    except Exception as error:
        raise ModelError(_not_read("model", header, error)) from error
    if missing := sorted(found["missing_keys"]):
        raise ModelError(f"the GGUF file {str(header.path)!r} lacks {_names(missing)}: {AGAIN}")
    if mismatched := sorted(key for key, *_ in found["mismatched_keys"]):
        raise ModelError(
            f"the GGUF file {str(header.path)!r} holds {_names(mismatched)} in another shape than transformers "
            f"{transformers.__version__} expects for architecture {header.architecture!r}: {_OTHER_FILES}"
        )
    # Tensors that transformers does not know are skipped without a word. A file may repeat a tied embedding.
    repeated = "output.weight" if model.config.tie_word_embeddings else None
    read = sum(weight.numel() for weight in model.parameters())
    held = sum(tensor.elements for tensor in header.tensors if tensor.name not in (_ROPE, repeated))
    if read != held:
        raise ModelError(
            f"the GGUF file {str(header.path)!r} holds {held:,} weights, but transformers {transformers.__version__} reads "
            f"{read:,} of architecture {header.architecture!r}: {_OTHER_FILES}"
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
                f"the GGUF file {str(header.path)!r} says {key} {wanted:g}, which transformers does not read for "
                f"architecture {header.architecture!r}: {_OTHER_FILES}"
            )


def _tokenizer(header: Header, folder: Path) -> Any:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf")
    except Exception as error:
        raise ModelError(_not_read("tokenizer", header, error)) from error
    pre = header.metadata.get("tokenizer.ggml.pre")
    if pre in _BEGINS and "tokenizer.ggml.add_bos_token" not in header.metadata:
        tokenizer.add_bos_token = True
    if pre in _DIGITS_APART:
        splits = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    return tokenizer


def _not_read(what: str, header: Header, error: Exception) -> str:
    said = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return (
        f"the {what} in the GGUF file {str(header.path)!r}, architecture {header.architecture!r}, cannot be read by "
        f"transformers {version_of('transformers')} ({said.rstrip('.')}): {_OTHER_FILES}"
    )


def _set_rotary_scaling(header: Header, model: Any) -> None:
    """Set the rotary scaling of Llama 3.1 and its successors, which a GGUF file holds as a tensor only."""
    found = [np.array(tensor.data) for tensor in QuickReader(header).tensors if tensor.name == _ROPE]
    if not found:
        return
    [divisors] = found
    if np.allclose(divisors, 1.0):
        return
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    before = dict(model.config.rope_parameters)
    plain = model.model.rotary_emb.inv_freq.float()
    model.config.rope_parameters = {**before, **_LLAMA3, "factor": float(divisors.max())}
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](model.config, torch.device("cpu"))
    if not torch.allclose(plain / torch.from_numpy(divisors), scaled.float(), rtol=1e-3):
        raise ModelError(
            f"the GGUF file {str(header.path)!r} scales its rotary embedding in a way that transformers does not know: "
            f"{_OTHER_FILES}"
        )


def _add_end_of_turn(header: Header, model: Any) -> None:
    """Let the end-of-turn token end a text, as it does in llama.cpp."""
    end, turn = model.generation_config.eos_token_id, header.metadata.get("tokenizer.ggml.eot_token_id")
    if turn is not None and end is not None:
        ends = [end] if isinstance(end, int) else list(end)
        model.generation_config.eos_token_id = list(dict.fromkeys([*ends, int(turn)]))


def _names(tensors: Iterable[str]) -> str:
    first, *others = tensors
    return f"tensor {first!r}" + (f" and {len(others)} more" if others else "")
