"""A target on several devices, spread by accelerate."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch

from draftwood.core.checks import short_repr
from draftwood.core.errors import ConfigError
from draftwood.core.settings import LoadOptions
from draftwood.loading.gguf_header import header_of
from draftwood.loading.models import choose_device, load_model

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
