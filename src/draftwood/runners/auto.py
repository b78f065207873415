"""What ``auto`` is: OpenVINO for models on a CPU where it is installed and has the memory for them, else PyTorch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final, cast, get_args

import torch

from draftwood.core.errors import ConfigError
from draftwood.core.machine import available_memory, version_of
from draftwood.core.settings import BackendName
from draftwood.runners.openvino.store import is_stored

VARIABLE: Final = "DRAFTWOOD_BACKEND"
_MARGIN = 1.2  # on what the compiler takes beside the weights; 1.13 was the most that was seen
_UNKNOWN = 1 << 30  # bytes that may be taken where nobody says how many there are


def wanted(backend: BackendName) -> BackendName:
    """A backend that is named, as it is; for ``auto`` what the environment variable ``DRAFTWOOD_BACKEND`` names, if set.

    Raises:
        ConfigError: the variable names no backend.
    """
    if backend != "auto" or not (found := os.environ.get(VARIABLE)):
        return backend
    if found in get_args(BackendName):
        return cast(BackendName, found)
    raise ConfigError(f"{VARIABLE} is {found!r}: set it to auto, torch or openvino, or unset it")


def why_not_openvino(device: torch.device) -> str | None:
    """Why ``auto`` is PyTorch whatever the models on this device are; None if it tries OpenVINO."""
    if device.type != "cpu":
        return f"the models are on {device}"
    if version_of("openvino") is None:
        return 'OpenVINO is not installed (pip install "draftwood[openvino]")'
    return None


def why_no_room(models: Sequence[Any]) -> str | None:
    """Why these models, in memory already, should not be converted and compiled beside themselves; None if they may.

    The compiled weights are a copy in the models' own number format. A conversion of weights that are not float32 makes a
    copy in float32 too, unless the converted model is kept already.
    """
    room = available_memory()
    allowed = _UNKNOWN if room is None else room
    if sum(_needed(model) for model in models) <= allowed:
        return None
    needed = sum(_needed(model, stored=is_stored(model)) for model in models)
    if needed <= allowed:
        return None
    found = "how much there is cannot be told here" if room is None else f"{room / 1e9:.1f} GB are available"
    return f"its copy of the models would take about {needed / 1e9:.1f} GB of memory, and {found}"


def _needed(model: Any, *, stored: bool = False) -> int:
    """Bytes beside the model itself."""
    converted = 0 if stored or model.dtype == torch.float32 else 4
    return int(_MARGIN * sum(weight.numel() * (weight.element_size() + converted) for weight in model.parameters()))
