"""Targets that cost what published models cost. They are made once, into Draftwood's cache.

``random-1b`` and ``random-8b`` have the shapes of Llama 3.2 1B and Llama 3.1 8B, random codes in Q4_K and Q6_K, as in a
Q4_K_M, and SmolLM2's tokenizer.
``wide-smollm2`` is SmolLM2 with twelve times as many units in each feed-forward layer. The new ones have no weight in what
the layer returns, so the file writes SmolLM2's texts, and the packaged drafter is as often right as there.
The others are folders of random numbers in bfloat16: three models with running states, in the shapes that their
configurations publish, and the first one with attention in all of its layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from draftwood.core.files import replacing
from draftwood.hardware.machine import cache_folder
from draftwood.loading.names import locate

RANDOM: Final = {"random-1b": (2048, 16, 8192), "random-8b": (4096, 32, 14_336)}
"""Width, layers and units of a feed-forward layer."""
WIDE: Final = "wide-smollm2"
_QWEN: Final = {
    "model_type": "qwen3_5_text", "hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 3584,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16,
    "linear_num_value_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "vocab_size": 248_320,
}  # fmt: skip
FOLDERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "random-qwen3.5-0.8b": _QWEN,
    "random-attention-0.8b": {**_QWEN, "layer_types": ["full_attention"] * 24},
    "random-granite-4-h-350m": {
        "model_type": "granitemoehybrid", "hidden_size": 768, "num_hidden_layers": 32, "shared_intermediate_size": 2048,
        "intermediate_size": 2048, "num_attention_heads": 12, "num_key_value_heads": 4, "mamba_n_heads": 48,
        "mamba_d_head": 32, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4, "num_local_experts": 0,
        "layer_types": ["attention" if number in (10, 13, 17, 27) else "mamba" for number in range(32)],
        "position_embedding_type": "nope", "vocab_size": 100_352,
    },
    "random-lfm2-350m": {
        "model_type": "lfm2", "hidden_size": 1024, "num_hidden_layers": 16, "intermediate_size": 6656,
        "num_attention_heads": 16, "num_key_value_heads": 8, "conv_L_cache": 3, "vocab_size": 65_536,
        "layer_types": ["full_attention" if number in (2, 5, 8, 10, 12, 14) else "conv" for number in range(16)],
    },
}  # fmt: skip
_SCALES: Final = {"Q4_K": (0, (2e-4, 1.5e-3)), "Q6_K": (208, (2e-5,))}  # where a block's scales stand, and their values
_EVERY_OTHER: Final = ("attn_v", "ffn_down")  # of these matrices, each second one has six bits


def named_file(name: str | None) -> str | None:
    """The path of a target of this module, by its name; any other name, and None, as it is."""
    if name not in (*RANDOM, WIDE, *FOLDERS):
        return name
    path = cache_folder() / "benchmarks" / (name if name in FOLDERS else f"{name}.gguf")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        source = Path(locate("smollm2"))
        if name in FOLDERS:
            write_folder(source, path, FOLDERS[name])
            return str(path)
        with replacing(path) as part:
            write_random(source, part, *RANDOM[name]) if name in RANDOM else write_wide(source, part)
    return str(path)


def write_folder(source: Path, path: Path, settings: Mapping[str, Any]) -> None:
    """Random weights in bfloat16 of a model with these settings, and the tokenizer of a file."""
    import torch
    from transformers import AutoModelForCausalLM

    from draftwood.api import load

    torch.manual_seed(0)
    part = path.with_name(f"{path.name}.part")
    AutoModelForCausalLM.from_config(config_of(settings), dtype=torch.bfloat16).save_pretrained(part)
    load(source, "none").tokenizer.save_pretrained(part)
    part.rename(path)


def config_of(settings: Mapping[str, Any]) -> Any:
    """The configuration of a folder with these settings."""
    from transformers import AutoConfig

    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}  # SmolLM2's
    return AutoConfig.for_model(**{"tie_word_embeddings": True, "max_position_embeddings": 16_384, **ids, **settings})


def write_random(
    source: Path, path: Path, width: int, layers: int, feed_forward: int, heads: int = 32, shared: int = 8
) -> None:
    """Random codes of a Llama with these sizes, of which ``shared`` are the heads of keys and values."""
    from gguf import GGUFReader

    from benchmarks.llama_cpp import finish

    reader, generator, head = GGUFReader(source), np.random.default_rng(0), width // heads
    keys = head * shared
    sizes = {
        "block_count": layers, "embedding_length": width, "feed_forward_length": feed_forward, "context_length": 16_384,
        "attention.head_count": heads, "attention.head_count_kv": shared, "attention.key_length": head,
        "attention.value_length": head, "rope.dimension_count": head,
    }  # fmt: skip
    writer = _writer(reader, path, sizes)
    vocabulary = len(reader.fields["tokenizer.ggml.tokens"].data)
    _add_codes(writer, "token_embd", vocabulary, width, "Q6_K", generator)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    matrices = {
        "attn_q": (width, width), "attn_k": (keys, width), "attn_v": (keys, width), "attn_output": (width, width),
        "ffn_gate": (feed_forward, width), "ffn_up": (feed_forward, width), "ffn_down": (width, feed_forward),
    }  # fmt: skip
    for layer in range(layers):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(width, np.float32))
        for name, (outputs, inputs) in matrices.items():
            kind = "Q6_K" if layer % 2 and name in _EVERY_OTHER else "Q4_K"
            _add_codes(writer, f"blk.{layer}.{name}", outputs, inputs, kind, generator)
    finish(writer)


def write_wide(source: Path, path: Path, *, times: int = 12) -> None:
    """The model of a file with so many times the units of its feed-forward layers, in Q4_0, and its embedding in Q8_0."""
    from gguf import GGMLQuantizationType, GGUFReader, dequantize, quantize

    from benchmarks.llama_cpp import finish

    reader, generator = GGUFReader(source), np.random.default_rng(0)
    units = int(reader.fields[f"{_architecture(reader)}.feed_forward_length"].contents())
    writer, new = _writer(reader, path, {"feed_forward_length": units * times}), units * (times - 1)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1].tolist()).astype(np.float32)
        if "ffn_gate" in tensor.name or "ffn_up" in tensor.name:
            more = generator.normal(0, values.std(), (new, values.shape[1])).astype(np.float32)
            values = np.concatenate([values, more])
        elif "ffn_down" in tensor.name:
            values = np.pad(values, [(0, 0), (0, new)])
        kind = GGMLQuantizationType["F32" if values.ndim == 1 else "Q8_0" if "token_embd" in tensor.name else "Q4_0"]
        writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
    finish(writer)


def _architecture(reader: Any) -> str:
    return str(reader.fields["general.architecture"].contents())


def _writer(reader: Any, path: Path, sizes: Mapping[str, int]) -> Any:
    """A file with the settings and the tokenizer of another one, and these sizes."""
    import gguf

    architecture = _architecture(reader)
    changed = {f"{architecture}.{name}": value for name, value in sizes.items()}
    writer = gguf.GGUFWriter(path, architecture)
    for name, found in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", *changed):
            kind = found.types[0]
            writer.add_key_value(
                name, found.contents(), kind, sub_type=found.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            )
    for name, value in changed.items():
        writer.add_uint32(name, value)
    return writer


def _add_codes(writer: Any, name: str, outputs: int, inputs: int, kind: str, generator: np.random.Generator) -> None:
    import gguf

    own = gguf.GGMLQuantizationType[kind]
    count, width = gguf.GGML_QUANT_SIZES[own]
    blocks = generator.integers(0, 256, (outputs, inputs // count, width), np.uint8)
    at, scales = _SCALES[kind]
    blocks[..., at : at + 2 * len(scales)] = np.array(scales, np.float16).view(np.uint8)
    writer.add_tensor(f"{name}.weight", blocks.reshape(outputs, -1), raw_dtype=own)
