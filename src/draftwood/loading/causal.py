"""Causal models for the native engine, read from their files, and for the other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from draftwood.core.errors import ConfigError, ModelError
from draftwood.core.settings import LoadOptions
from draftwood.hardware.machine import available_memory
from draftwood.loading.gguf_model import quantized, stored_config
from draftwood.loading.models import choose_dtype, load_model
from draftwood.loading.stored import header_of, stored_file, stored_folder
from draftwood.native.library import why_missing
from draftwood.runners.auto import requested_backend
from draftwood.runners.native.stored import StoredModel


def choose_format(name: str | Path, options: LoadOptions, device: torch.device) -> torch.dtype:
    """As :func:`choose_dtype`; but ``auto`` is bfloat16 where the native engine computes from codes, of a GGUF file or of
    ``weights``.

    Raises:
        ConfigError: an unknown name, or one that cannot be combined with ``weights``.
    """
    found = choose_dtype(options.dtype, device)
    if not _native(options, device):
        return found
    if options.weights != "same":
        if options.dtype not in ("auto", "bfloat16"):
            raise ConfigError(f"dtype {options.dtype} is impossible with weights {options.weights!r}: leave one of them out")
        return torch.bfloat16
    header = header_of(name) if options.dtype == "auto" else None
    return torch.bfloat16 if header and quantized(header) and stored_config(header) is not None else found


def _native(options: LoadOptions, device: torch.device) -> bool:
    """Whether the native engine is tried."""
    return (
        device.type == "cpu"
        and not options.tensor_parallel
        and options.device_map is None
        and requested_backend(options.backend) in ("auto", "native")
        and not why_missing()
    )


def load_causal(name: str | Path, options: LoadOptions, device: torch.device, dtype: torch.dtype) -> Any:
    """As :func:`load_model`; but a model that the native engine can read from its files stays there.

    Raises:
        ModelError: as :func:`load_model`.
    """
    if _native(options, device) and dtype in (torch.float32, torch.bfloat16):
        header = header_of(name)
        found = stored_folder(name) if header is None else stored_file(header, dtype, coded=options.dtype == "auto")
        if found is not None:
            found.dtype = dtype
            if options.weights != "same":
                found.round_to(8 if options.weights == "int8" else 4)
            _check_room(name, found)
            return found
    return load_model(name, options, device, dtype)


def _check_room(name: str | Path, model: StoredModel) -> None:
    """Raise a ModelError if memory does not suffice for a model."""
    needed, room = sum(size for _, size in model.sizes()), available_memory()
    if room is not None and needed > room:
        raise ModelError(
            f"the model {str(name)!r} needs {needed / 1e9:.1f} GB of memory, and {room / 1e9:.1f} GB are available: take a "
            "smaller model, or one with fewer bits"
        )
