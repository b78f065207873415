"""Targets, also spread over devices by accelerate; and causal models, read from their files or by other libraries."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from draftwood.core.checks import short_repr
from draftwood.core.draft_kind import MTP as MTP_HEAD
from draftwood.core.errors import ConfigError, ModelError
from draftwood.core.settings import LoadOptions
from draftwood.hardware.machine import available_memory
from draftwood.loading.checkpoint import (
    CONFIG,
    GENERATION_CONFIG,
    folder_of,
    forget_default_end,
    note_untied_head,
    tensor_table,
    weight_files,
)
from draftwood.loading.gguf_header import header_of
from draftwood.loading.gguf_model import stored_file
from draftwood.loading.models import choose_device, class_of, load_model, raw_config
from draftwood.loading.plan import Plan
from draftwood.runners.context import SLIDING
from draftwood.runners.native.experts import from_folder
from draftwood.runners.native.families import FAMILIES, LAYERS, family_named
from draftwood.runners.native.family import EMBEDDING, HEAD, MTP
from draftwood.runners.native.layers import idle_weights
from draftwood.runners.native.layouts import shapes_among
from draftwood.runners.native.refusals import why_not_config
from draftwood.runners.native.stored import StoredModel
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
_ROTARY: Final = ("rope_parameters", "rope_scaling")  # since version 5 of transformers, and before
_NOTES: Final = ("_from_model_config", "transformers_version")


def load_target(plan: Plan) -> Any:
    """The target of a plan: with an encoder, spread over devices, or as :func:`load_causal` loads it."""
    name, options = plan.target, plan.options
    if plan.kind.reads_source:
        return load_model(name, options, plan.device, plan.dtype, class_of(plan.kind))
    if options.device_map is not None:
        # An MTP head is left out later: only the native engine reads it.
        reads = plan.draft_kind is not None and plan.draft_kind.reads_hidden and plan.draft_kind is not MTP_HEAD
        return load_spread(name, str(plan.draft) if reads else None, options, plan.dtype)
    return load_causal(name, plan)


def load_causal(name: str | Path, plan: Plan) -> Any:
    """As :func:`load_model`; but a model that the native engine can read from its files stays there.

    Raises:
        ModelError: as :func:`load_model`; or weights are to be rounded that the native engine does not read.
    """
    options, dtype = plan.options, plan.dtype
    if plan.engine.reads_files:
        header = header_of(name)
        found = stored_folder(name) if header is None else stored_file(header, dtype)
        if found is not None:
            found.dtype, found.activations, found.coded = dtype, options.activations, options.dtype == "auto"
            if options.weights != "same":
                found.round_to(8 if options.weights == "int8" else 4)
            _check_room(name, sum(size for _, size in found.sizes()))
            return found
    if options.weights != "same":
        if (why := plan.engine.library.why_not(plan.device)) is not None:
            raise ModelError(
                f"weights {options.weights!r} need the native engine, which does not run here ({why}): leave --weights out"
            )
        raise ModelError(
            f"weights {options.weights!r} are for models that the native engine reads from their files, and {str(name)!r} "
            f"(model type {raw_config(name, options).get('model_type')!r}) is not one: leave --weights out"
        )
    if plan.device.type == "cpu":
        _check_room(name, dtype.itemsize * _elements(name))
    return load_model(name, options, plan.device, dtype)


def _elements(name: str | Path) -> int:
    """The numbers in a model's files; 0 where that is not known, and loading may say why."""
    try:
        if (header := header_of(name)) is not None:
            return sum(tensor.elements for tensor in header.tensors)
        tables = [tensor_table(path)[0] for path in weight_files(folder)] if (folder := folder_of(name)) else []
        return sum(prod(one["shape"]) for table in tables for one in table.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0


def _check_room(name: str | Path, needed: int) -> None:
    """Raise a ModelError if memory does not suffice for a model of so many bytes."""
    room = available_memory()
    if room is not None and needed > room:
        raise ModelError(
            f"the model {str(name)!r} needs {needed / 1e9:.1f} GB of memory, and {room / 1e9:.1f} GB are available: take a "
            "smaller model, or one with fewer bits"
        ) from MemoryError()


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
    if why_not_config(config) is not None:
        return None
    every = {key: weight for file in weight_files(folder) for key, weight in _tensors(file).items()}
    vars(config).pop("quantization_config", None)  # codes have their type with them
    own = FAMILIES[config.model_type]
    weights = from_folder(own, _text_weights(every, own.others))
    for idle in idle_weights(config):
        weights.pop(idle, None)
    if HEAD in weights and config.tie_word_embeddings:
        if np.array_equal(weights[HEAD].data, weights[EMBEDDING].data):
            del weights[HEAD]
        else:
            note_untied_head(name)
    elif HEAD not in weights and not config.tie_word_embeddings:
        return None
    shapes = shapes_among(config, weights.__contains__)
    if {key: weight.shape for key, weight in weights.items()} != {
        key: shapes[key] for key in shapes if key != HEAD or HEAD in weights
    }:
        return None
    found = StoredModel(config, generation, weights, torch.float32)
    found.mtp = {key.removeprefix(MTP): weight for key, weight in every.items() if key.startswith(MTP)}
    forget_default_end(name, found, raw)
    return found


def _plain(folder: Path, raw: dict[str, Any]) -> tuple[PlainConfig, PlainGeneration] | None:
    """A folder's configurations as its files have them; None if the classes of ``transformers`` may add to them."""
    path, given = folder / GENERATION_CONFIG, [raw[name] for name in _ROTARY if raw.get(name)]
    if not path.is_file() or len(given) > 1 or "partial_rotary_factor" in raw:
        return None
    scaling: dict[str, Any] = given[0] if given else {}
    own = json.loads(path.read_text(encoding="utf-8"))
    own = {name: value for name, value in own.items() if value is not None and value is not False and name not in _NOTES}
    family = FAMILIES.get(raw["model_type"])
    plain = (
        family is not None
        and family.stated is not None
        and raw.keys() >= _NEEDED.union(family.stated)
        and not raw.get("use_sliding_window")
        and SLIDING not in (raw.get("layer_types") or ())
        and ("rope_type" in scaling or not scaling)
        and "type" not in scaling
        and ("rope_theta" in scaling) != ("rope_theta" in raw)
        and own.keys() <= {*_ENDS, "use_cache", *(_DRAWN if own.get("do_sample") else ())}
    )
    if not plain:
        return None
    absent = {**dict.fromkeys(("attention_bias", "mlp_bias", "tie_word_embeddings"), False), **dict.fromkeys(_ENDS)}
    rotary = {"rope_type": "default", "rope_theta": raw.get("rope_theta"), **scaling}
    stated = {name: value for name, value in raw.items() if name not in ("rope_theta", *_ROTARY)}
    config = PlainConfig(**{**absent, "rope_parameters": rotary, **stated, "_name_or_path": str(folder)})
    if family is not None and family.windows == LAYERS:
        config.sliding_window = None  # which no layer uses
    return config, PlainGeneration(**own)


def _filled(folder: Path) -> tuple[Any, Any]:
    """A folder's configurations as ``transformers`` reads them."""
    from transformers import AutoConfig, GenerationConfig

    config = AutoConfig.from_pretrained(folder)
    if config.model_type not in FAMILIES and family_named(config.model_type) is not None:
        text, tied = config.get_text_config(), config.tie_word_embeddings
        config, text.tie_word_embeddings, text._name_or_path = text, tied or text.tie_word_embeddings, str(folder)
    own = (folder / GENERATION_CONFIG).is_file()
    return config, GenerationConfig.from_pretrained(folder) if own else GenerationConfig.from_model_config(config)


def _text_weights(weights: dict[str, Any], others: tuple[str, ...]) -> dict[str, Any]:
    """The weights of the text of a model of several parts, by their names in a model of text."""
    if not others:
        return weights
    named = {key.replace("language_model.", "", 1): weight for key, weight in weights.items()}
    return {key: weight for key, weight in named.items() if not key.startswith(others)}


def _tensors(path: Path) -> dict[str, Any]:
    """The tensors of a file; bytes without a type as arrays."""
    table, size = tensor_table(path)
    data = np.memmap(path, np.uint8, mode="c", offset=0)
    found: dict[str, Any] = {}
    for key, entry in table.items():
        begin, end = (size + place for place in entry["data_offsets"])
        if end > len(data):
            raise ValueError(f"{path} is incomplete")
        own, kind, shape = data[begin:end], entry["dtype"], tuple(entry["shape"])
        bare = kind == "U8"
        found[key] = own.reshape(shape) if bare else Weight(data=own, kind=_KINDS[kind], shape=shape, mapped=True)
    return found


_NAMES: Final = ("auto", "balanced", "balanced_low_0", "sequential")
_DISK: Final = "disk"


def load_spread(name: str | Path, reader: str | None, options: LoadOptions, dtype: torch.dtype) -> Any:
    """A target in evaluation mode on the devices of ``options.device_map``; ``reader`` is the draft that reads it, or None.

    Raises:
        ConfigError: accelerate is not installed, a map that cannot be used here, or models that it is not for.
        ModelError: the model cannot be loaded.
    """
    if find_spec("accelerate") is None:
        raise ConfigError("device_map needs the package accelerate; install it with: pip install accelerate")
    devices = _devices(options.device_map)
    if header_of(name) is not None:
        raise ConfigError("device_map is for models of transformers, but the target is a GGUF file: leave it out")
    if reader is not None:
        raise ConfigError(
            f"the draft {reader!r} reads the target's hidden states, which device_map leaves on several devices: leave "
            "device_map out, or take a draft model of its own"
        )
    model = load_model(name, options, choose_device("auto"), dtype, device_map=devices)
    known = {module for module, _ in model.named_modules()} | {weight for weight, _ in model.named_parameters()}
    if isinstance(devices, dict) and (unknown := sorted(devices.keys() - known)):
        raise ConfigError(f"device_map names {unknown[0]!r}, which is no module of this model: correct it, or take auto")
    if model.device.type == "meta":  # where the weights of modules on the disk are
        raise ConfigError("device_map leaves the model's first module on the disk: give it a device")
    return model


def _devices(given: str | Mapping[str, str | int] | None) -> str | dict[str, str | int]:
    """What ``from_pretrained`` takes; raises a ConfigError for anything else, or a device that cannot be used here."""
    found: Any = given
    if isinstance(given, str) and given.lstrip().startswith("{"):
        try:
            found = json.loads(given)
        except ValueError as error:
            raise ConfigError(f"device_map {given!r} is not valid JSON ({error}): correct it") from error
    if found in _NAMES:
        return str(found)
    if not isinstance(found, Mapping) or not found or not all(isinstance(one, str) for one in found):
        raise ConfigError(
            f"device_map is {short_repr(given)}: give {', '.join(_NAMES)}, or a map from modules to devices such as "
            '{"model": 0, "lm_head": 1}'
        )
    for device in found.values():
        try:
            if device != _DISK:
                choose_device(f"cuda:{device}" if isinstance(device, int) else str(device))
        except ConfigError as error:
            raise ConfigError(
                f"device_map names the device {device!r}, which cannot be used here: take another one"
            ) from error
    if set(found.values()) == {_DISK}:
        raise ConfigError("device_map leaves the whole model on the disk: give some of its modules a device")
    return dict(found)
