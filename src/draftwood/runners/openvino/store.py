"""Converted models in the user's cache; damaged files are made again."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from draftwood.core.files import replace_file
from draftwood.core.settings import Weights
from draftwood.hardware.machine import cache_folder, cpu_name, version_of
from draftwood.runners.openvino.ahead import compiling_ahead, from_folder, reading
from draftwood.runners.openvino.graph import converting, core, graph_of, openvino
from draftwood.runners.openvino.merge import merge_layers
from draftwood.runners.openvino.paged import paged_graph, read_sizes
from draftwood.runners.openvino.quantize import SCHEMES, quantized
from draftwood.runners.pairing import whole_digest

_LOG = logging.getLogger(__name__)
_FORMAT = 7  # version of the graphs
_FILES = ("model.xml", "model.bin")
_CHECKSUMS = "checksums.json"
_COMPARED = "compared.json"  # the processors on which the graph scores as its model
_FOLDER = ["draftwood", "folder"]  # where a graph, in memory only, keeps the folder that it was read from
_OF_THE_FILE = ("_name_or_path", "architectures", "dtype", "transformers_version")  # settings that do not affect scores
_BLOCK = 1 << 24  # bytes


def store_folder() -> Path:
    """The folder of converted models; it may be deleted at any time."""
    return cache_folder() / "openvino"


def store_size() -> int:
    """Size of all converted models in bytes."""
    return sum(path.stat().st_size for path in store_folder().rglob("*") if path.is_file())


def loading(label: str) -> AbstractContextManager[None]:
    """A context in which models are loaded; see :func:`draftwood.runners.openvino.ahead.compiling_ahead`."""
    return compiling_ahead(label, store_folder(), _read)


def _has(key: str) -> bool:
    return any(not path.suffix for path in store_folder().glob(f"{key}*"))  # a folder with a suffix is being written


def stored_graph(model: Any, weights: Weights = "same", hidden_layers: Sequence[int] = (), *, paged: bool = False) -> Any:
    """The graph of a model from the cache; a new one is stored there, or warns that it cannot be.

    Args:
        hidden_layers: as for :func:`draftwood.runners.openvino.graph.graph_of`.
        paged: the graph with paged attention, :func:`draftwood.runners.openvino.paged.paged_graph`.

    Raises:
        ConfigError: a package is missing.
        ModelError: the model cannot be converted.
    """
    part = "-".join([*(["paged"] if paged else []), *(["hidden", *map(str, hidden_layers)] if hidden_layers else [])])
    make = paged_graph if paged else graph_of
    [found] = stored_graphs(model, {part: partial(make, hidden_layers=hidden_layers)}, weights)
    return found


def stored_graphs(model: Any, makers: Mapping[str, Callable[[Any], Any]], weights: Weights = "same") -> list[Any]:
    """As :func:`stored_graph`, for the parts of a model; ``makers`` make their graphs, by name."""
    key = _key(model, weights)
    folders = [store_folder() / "-".join(filter(None, (key, part))) for part in makers]
    if not _has(key):
        size = sum(weight.numel() for weight in model.parameters()) / 1e6
        _LOG.info(
            "model type %r (%.1f M parameters) is converted for OpenVINO once and stored in %s",
            *(model.config.model_type, size, store_folder()),
        )
    making = [partial(_made, model, make, weights) for make in makers.values()]
    return [_stored(folder, make) for folder, make in zip(folders, making, strict=True)]


def is_compared(graph: Any, device: str) -> bool:
    """Whether :func:`note_compared` was called for this stored graph on this processor and device before."""
    return _processor(device) in _compared(graph)


def note_compared(graph: Any, device: str) -> None:
    """Record that the graph scores as its model does; nothing happens if it is not stored."""
    if (record := _record(graph)) is not None:
        with suppress(OSError):  # then it is compared again
            replace_file(record, json.dumps([*_compared(graph), _processor(device)]))


def _record(graph: Any) -> Path | None:
    return Path(graph.get_rt_info(_FOLDER).value) / _COMPARED if graph.has_rt_info(_FOLDER) else None


def _compared(graph: Any) -> list[Any]:
    with suppress(OSError, ValueError):
        if (record := _record(graph)) is not None:
            known = json.loads(record.read_text(encoding="utf-8"))
            return known if isinstance(known, list) else []
    return []


def _processor(device: str) -> list[str]:
    return [cpu_name(), device]


def _made(model: Any, make: Callable[[Any], Any], weights: Weights) -> Any:
    graph = make(model)
    with converting(model):
        merge_layers(graph)
        return quantized(graph, weights)


def _stored(folder: Path, make: Callable[[], Any]) -> Any:
    if (found := reading(folder, _read)) is not None:
        return from_folder(found, folder)
    graph = make()
    try:
        _write(folder, graph)
    except OSError as error:
        warnings.warn(f"the converted model cannot be kept in {folder} ({error}); it is made again every time", stacklevel=4)
    return from_folder(_read(folder) or graph, folder)  # from the file, as later: the same graph computes the same bits


def _key(model: Any, weights: Weights) -> str:
    """A name that depends on everything that affects a graph."""
    config = {name: value for name, value in model.config.to_dict().items() if name not in _OF_THE_FILE}
    kind = type(model)
    packages = ["openvino", "torch", "transformers", *(["nncf"] if weights != "same" else [])]
    parts = {
        "format": _FORMAT,
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "config": config,
        "attention": model.config._attn_implementation,
        "dtype": str(model.dtype),
        "weights": SCHEMES[weights],
        "versions": {package: version_of(package) for package in packages},
        "digest": whole_digest(model),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _read(folder: Path) -> Any | None:
    """The graph in this folder; None if it is missing or damaged."""
    try:
        wanted = json.loads((folder / _CHECKSUMS).read_text(encoding="utf-8"))
        if wanted != {name: _checksum(folder / name) for name in _FILES}:
            return None
        graph = read_sizes(core().read_model(folder / _FILES[0], folder / _FILES[1]))
        graph.set_rt_info(str(folder), _FOLDER)
        return graph
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
