"""Models that the native engine reads from their files: folders with safetensors, and GGUF files."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from draftwood.loading.checkpoint import CONFIG, GENERATION_CONFIG, folder_of, forget_default_end, note_untied_head
from draftwood.loading.gguf_header import Header, read_header
from draftwood.loading.gguf_model import stored_config, stored_gguf
from draftwood.native.library import why_missing
from draftwood.runners.native.stored import EMBEDDING, FAMILIES, HEAD, StoredModel, shapes_of, why_not_stored
from draftwood.runners.native.weights import Weight
from draftwood.runners.plain_config import PlainConfig, PlainGeneration

_LOG = logging.getLogger(__name__)
_KINDS: Final = {"F32": 0, "F16": 1, "BF16": 30}
_NEEDED: Final = {
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "rms_norm_eps", "max_position_embeddings", "hidden_act",
}  # fmt: skip
_DRAWN: Final = {"do_sample", "temperature", "top_k", "top_p", "repetition_penalty"}
_ENDS: Final = ("bos_token_id", "eos_token_id", "pad_token_id")
_NOTES: Final = ("_from_model_config", "transformers_version")
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"


def stored_folder(name: str | Path) -> StoredModel | None:
    """The model of a folder, or of a downloaded hub model, in float32; None if it is not read from its files.

    Then ``transformers`` loads it, or says what is wrong with it.
    """
    folder = folder_of(name)
    if folder is None or (folder / "adapter_config.json").exists():
        return None
    try:
        return _stored(name, folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _LOG.debug("%s is not read from its files: %s", name, error)
        return None


def _stored(name: str | Path, folder: Path) -> StoredModel | None:
    raw = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    config, generation = _plain(folder, raw) or _filled(folder)
    if why_not_stored(config) is not None:
        return None
    weights, shapes = _weights(folder), shapes_of(config)
    if HEAD in weights and config.tie_word_embeddings:
        if np.array_equal(weights[HEAD].data, weights[EMBEDDING].data):
            del weights[HEAD]
        else:
            note_untied_head(name)
    elif HEAD not in weights and not config.tie_word_embeddings:
        return None
    if {key: weight.shape for key, weight in weights.items()} != {
        key: shapes[key] for key in shapes if key != HEAD or HEAD in weights
    }:
        return None
    found = StoredModel(config, generation, weights, torch.float32)
    forget_default_end(name, found, raw)
    return found


def _plain(folder: Path, raw: dict[str, Any]) -> tuple[PlainConfig, PlainGeneration] | None:
    """A folder's configurations as its files have them; None if the classes of ``transformers`` may add to them."""
    path, scaling = folder / GENERATION_CONFIG, raw.get("rope_scaling") or {}
    if not path.is_file():
        return None
    own = json.loads(path.read_text(encoding="utf-8"))
    own = {name: value for name, value in own.items() if value is not None and value is not False and name not in _NOTES}
    plain = (
        raw["model_type"] in FAMILIES
        and raw.keys() >= _NEEDED
        and not raw.get("use_sliding_window")
        and (raw["model_type"] != "mistral" or "sliding_window" in raw)
        and ("rope_type" in scaling or not scaling)
        and own.keys() <= {*_ENDS, "use_cache", *(_DRAWN if own.get("do_sample") else ())}
    )
    if not plain:
        return None
    absent = {**dict.fromkeys(("attention_bias", "mlp_bias", "tie_word_embeddings"), False), **dict.fromkeys(_ENDS)}
    rotary = {"rope_type": "default", "rope_theta": raw.get("rope_theta", 10000.0), **scaling}
    stated = {name: value for name, value in raw.items() if name not in ("rope_theta", "rope_scaling")}
    config = PlainConfig(**{**absent, "rope_parameters": rotary, **stated, "_name_or_path": str(folder)})
    if raw["model_type"].startswith("qwen"):
        config.sliding_window = None  # it is not used
    return config, PlainGeneration(**own)


def _filled(folder: Path) -> tuple[Any, Any]:
    """A folder's configurations as ``transformers`` reads them."""
    from transformers import AutoConfig, GenerationConfig

    config = AutoConfig.from_pretrained(folder)
    own = (folder / GENERATION_CONFIG).is_file()
    return config, GenerationConfig.from_pretrained(folder) if own else GenerationConfig.from_model_config(config)


def _weights(folder: Path) -> dict[str, Weight]:
    """All tensors of a folder's files."""
    if (folder / _INDEX).is_file():
        files = sorted(set(json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
    else:
        files = [_WEIGHTS]
    return {key: weight for file in files for key, weight in _tensors(folder / file).items()}


def _tensors(path: Path) -> dict[str, Weight]:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        table: dict[str, Any] = json.loads(file.read(size))
    table.pop("__metadata__", None)
    data = np.memmap(path, np.uint8, mode="c", offset=0)
    found = {}
    for key, entry in table.items():
        begin, end = (8 + size + place for place in entry["data_offsets"])
        if end > len(data):
            raise ValueError(f"{path} is incomplete")
        found[key] = Weight(data=data[begin:end], kind=_KINDS[entry["dtype"]], shape=tuple(entry["shape"]), mapped=True)
    return found


def header_of(name: str | Path) -> Header | None:
    """The header of a GGUF file; None for another name."""
    return read_header(Path(name)) if Path(name).is_file() else None


def stored_file(header: Header, dtype: torch.dtype, *, coded: bool = False) -> StoredModel | None:
    """A GGUF file of a family that is read from files; raises a ModelError as :func:`stored_gguf` does."""
    if (values := stored_config(header)) is None:
        return None
    config, ends = PlainConfig(**values), {name: value for name, value in values.items() if name.endswith("_token_id")}
    generation = PlainGeneration(**ends)
    return stored_gguf(header, config, generation, dtype, coded=coded)


def model_of(header: Header, dtype: torch.dtype) -> Any:
    """The model of ``transformers`` of a GGUF file."""
    found = None if why_missing() else stored_file(header, dtype if dtype == torch.bfloat16 else torch.float32)
    if found is None:
        from draftwood.loading.gguf_convert import convert

        return convert(header, dtype)
    return found.module.to(dtype)
