"""Converted models in the user's cache: made once, and made again where a file is damaged."""

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

from draftwood.core.machine import cache_folder, version_of
from draftwood.core.settings import Weights
from draftwood.runners.openvino.graph import converting, core, graph_of, openvino, rounded
from draftwood.runners.openvino.merge import merge_layers
from draftwood.runners.pairing import whole_digest

_LOG = logging.getLogger(__name__)
_FORMAT = 2  # of the graphs that are made; counts up when they change
_FILES = ("model.xml", "model.bin")
_CHECKSUMS = "checksums.json"
_OF_THE_FILE = ("_name_or_path", "architectures", "dtype", "transformers_version")  # settings that say nothing of the model
_BLOCK = 1 << 24  # bytes


def store_folder() -> Path:
    """Where converted models lie; all of it may be deleted at any time."""
    return cache_folder() / "openvino"


def store_size() -> int:
    """Bytes of all converted models."""
    return sum(path.stat().st_size for path in store_folder().rglob("*") if path.is_file())


def is_stored(model: Any, weights: Weights = "same") -> bool:
    """Whether graphs of this very model lie there. All its weights are read for that."""
    return _has(_key(model, weights))


def _has(key: str) -> bool:
    return any(not path.suffix for path in store_folder().glob(f"{key}*"))  # with one, it is being written


def stored_graph(model: Any, weights: Weights = "same") -> Any:
    """The graph of a model from the cache, or made and put there.

    A folder that cannot be written is a warning.

    Raises:
        ConfigError: a package is missing.
        ModelError: the model cannot be converted.
    """
    [found] = stored_graphs(model, {"": graph_of}, weights)
    return found


def stored_graphs(model: Any, makers: Mapping[str, Callable[[Any], Any]], weights: Weights = "same") -> list[Any]:
    """Graphs of the parts of a model, as :func:`stored_graph`.

    Args:
        makers: what makes the graph of a part from the model, by the part's name.
    """
    key = _key(model, weights)
    folders = [store_folder() / "-".join(filter(None, (key, part))) for part in makers]
    if not _has(key):
        size = sum(weight.numel() for weight in model.parameters()) / 1e6
        _LOG.info(
            "model type %r (%.1f M parameters) is converted for OpenVINO, once; it is kept in %s",
            *(model.config.model_type, size, store_folder()),
        )
    ways = [partial(_made, model, make, weights) for make in makers.values()]
    return [_stored(folder, make) for folder, make in zip(folders, ways, strict=True)]


def _made(model: Any, make: Callable[[Any], Any], weights: Weights) -> Any:
    graph = make(model)
    with converting(model):
        merge_layers(graph)  # here, where what it was traced with is gone: a copy of its own is freed layer by layer
        return rounded(graph) if weights == "int8" else graph


def _stored(folder: Path, make: Callable[[], Any]) -> Any:
    if (found := _read(folder)) is not None:
        return found
    graph = make()
    try:
        _write(folder, graph)
    except OSError as error:
        warnings.warn(f"the converted model cannot be kept in {folder} ({error}); it is made anew every time", stacklevel=4)
    return _read(folder) or graph  # as it will be read from now on: the same graph computes the same bits


def _key(model: Any, weights: Weights) -> str:
    """A name that depends on all that a graph is made from."""
    config = {name: value for name, value in model.config.to_dict().items() if name not in _OF_THE_FILE}
    kind = type(model)
    packages = ["openvino", "torch", "transformers", *(["nncf"] if weights == "int8" else [])]
    parts = {
        "format": _FORMAT,
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "config": config,
        "attention": model.config._attn_implementation,
        "dtype": str(model.dtype),
        "weights": weights,
        "versions": {package: version_of(package) for package in packages},
        "digest": whole_digest(model),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _read(folder: Path) -> Any | None:
    """What lies there; None if it is nothing, or damaged."""
    try:
        wanted = json.loads((folder / _CHECKSUMS).read_text(encoding="utf-8"))
        if wanted != {name: _checksum(folder / name) for name in _FILES}:
            return None
        return core().read_model(folder / _FILES[0], folder / _FILES[1])
    except (OSError, ValueError, RuntimeError):
        return None


def _write(folder: Path, graph: Any) -> None:
    """All files or none, also where several processes write at once."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        openvino().save_model(graph, part / _FILES[0], compress_to_fp16=False)
        sums = {name: _checksum(part / name) for name in _FILES}
        (part / _CHECKSUMS).write_text(json.dumps(sums), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # damaged, or of a process that was as fast
        part.rename(folder)
    except RuntimeError as error:  # OpenVINO's, of a full disk for instance
        raise OSError(str(error)) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _checksum(path: Path) -> int:
    """Against damage, not against malice."""
    found = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found = zlib.crc32(block, found)
    return found
