"""What ``auto`` asks: which libraries are there for models on a device, and whether memory suffices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final, cast, get_args

import torch

from draftwood.core.errors import ConfigError
from draftwood.core.settings import BackendName
from draftwood.hardware.machine import available_memory
from draftwood.native.library import instruction_set, why_missing
from draftwood.runners.native.stored import weight_sizes

VARIABLE: Final = "DRAFTWOOD_BACKEND"
_MARGIN = 1.2  # keys, values and what a forward computes come on top of the weights
_UNKNOWN = 1 << 30  # bytes that may be used if the available memory is unknown


def requested_backend(backend: BackendName) -> BackendName:
    """The backend; for ``auto`` the one that the environment variable ``DRAFTWOOD_BACKEND`` names, if set.

    Raises:
        ConfigError: the variable names no backend.
    """
    if backend != "auto" or not (found := os.environ.get(VARIABLE)):
        return backend
    if found in get_args(BackendName):
        return cast(BackendName, found)
    raise ConfigError(f"{VARIABLE} is {found!r}: set it to one of {', '.join(get_args(BackendName))}, or unset it")


def why_not_native(device: torch.device) -> str | None:
    """Why ``auto`` does not try the native engine for any models on this device; None if it does.

    Raises:
        ConfigError: ``DRAFTWOOD_ISA`` names an instruction set that this processor lacks.
    """
    if device.type != "cpu":
        return f"the models are on {device}"
    if (reason := why_missing()) is None:
        instruction_set()
    return reason


def why_no_room(models: Sequence[Any]) -> str | None:
    """Why memory does not suffice to prepare these loaded models; None if it does.

    The prepared weights are a copy in the models' number format.
    """
    room = available_memory()
    needed = int(_MARGIN * sum(size for model in models for _, size in weight_sizes(model)))
    if needed <= (_UNKNOWN if room is None else room):
        return None
    found = "the available memory is unknown" if room is None else f"{room / 1e9:.1f} GB are available"
    return f"its copy of the models would take about {needed / 1e9:.1f} GB of memory, and {found}"
