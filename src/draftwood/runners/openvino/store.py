"""Converted models in the user's cache; damaged files are made again."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from draftwood.hardware.machine import cache_folder, version_of
from draftwood.runners.openvino.graph import core, openvino
from draftwood.runners.pairing import whole_digest

_LOG = logging.getLogger(__name__)
_FORMAT = 9  # version of the graphs
_FILES = ("model.xml", "model.bin")
_CHECKSUMS = "checksums.json"
_OF_THE_FILE = ("_name_or_path", "architectures", "dtype", "transformers_version")  # settings that do not affect scores
_BLOCK = 1 << 24  # bytes


def store_folder() -> Path:
    """The folder of converted models; it may be deleted at any time."""
    return cache_folder() / "openvino"


def store_size() -> int:
    """Size of all converted models in bytes."""
    return sum(path.stat().st_size for path in store_folder().rglob("*") if path.is_file())


def _has(key: str) -> bool:
    return any(not path.suffix for path in store_folder().glob(f"{key}*"))  # a folder with a suffix is being written


def stored_graphs(model: Any, makers: Mapping[str, Callable[[Any], Any]]) -> list[Any]:
    """The graphs of a model's parts from the cache; new ones are stored there, or a warning says that they cannot be.

    Args:
        makers: make the graphs of the parts, by name.

    Raises:
        ConfigError: OpenVINO is not installed.
        ModelError: the model cannot be converted.
    """
    key = _key(model)
    if not _has(key):
        size = sum(weight.numel() for weight in model.parameters()) / 1e6
        _LOG.info(
            "model type %r (%.1f M parameters) is converted for OpenVINO once and stored in %s",
            *(model.config.model_type, size, store_folder()),
        )
    return [_stored(store_folder() / f"{key}-{part}", partial(make, model)) for part, make in makers.items()]


def _stored(folder: Path, make: Callable[[], Any]) -> Any:
    if (found := _read(folder)) is not None:
        return found
    graph = make()
    try:
        _write(folder, graph)
    except OSError as error:
        warnings.warn(f"the converted model cannot be kept in {folder} ({error}); it is made again every time", stacklevel=4)
    return _read(folder) or graph  # from the file, as later: the same graph computes the same bits


def _key(model: Any) -> str:
    """A name that depends on everything that affects a graph."""
    config = {name: value for name, value in model.config.to_dict().items() if name not in _OF_THE_FILE}
    kind = type(model)
    parts = {
        "format": _FORMAT,
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "config": config,
        "attention": model.config._attn_implementation,
        "dtype": str(model.dtype),
        "versions": {package: version_of(package) for package in ("openvino", "torch", "transformers")},
        "digest": whole_digest(model),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _read(folder: Path) -> Any | None:
    """The graph in this folder; None if it is missing or damaged."""
    try:
        wanted = json.loads((folder / _CHECKSUMS).read_text(encoding="utf-8"))
        if wanted != {name: _checksum(folder / name) for name in _FILES}:
            return None
        return core().read_model(folder / _FILES[0], folder / _FILES[1])
    except (OSError, ValueError, RuntimeError):
        return None


def _write(folder: Path, graph: Any) -> None:
    """Write all files or none, even if several processes write at once."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        openvino().save_model(graph, part / _FILES[0], compress_to_fp16=False)
        sums = {name: _checksum(part / name) for name in _FILES}
        (part / _CHECKSUMS).write_text(json.dumps(sums), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one, or that of a concurrent process
        part.rename(folder)
    except RuntimeError as error:  # from OpenVINO, for example if the disk is full
        raise OSError(str(error)) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _checksum(path: Path) -> int:
    """CRC-32 of a file, against accidental damage only."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found = zlib.crc32(block, found)
    return found
