"""Graphs compiled in a thread while the weights that they belong to are read.

Which stored graphs a model needs is known only when its weights have been read. So a load records what it compiled,
and the thread of the next load begins with these. What it compiled is used only for the very graph that the loaded weights
need.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, final

import torch

from draftwood.core.errors import ConfigError
from draftwood.core.files import replace_file
from draftwood.hardware.machine import available_memory
from draftwood.runners.openvino.graph import core

THREADS = "INFERENCE_NUM_THREADS"
_RECORD = "compiled.json"
_LABELS = 32  # most labels in the record
_ROOM = 4  # times the stored weights: loaded weights, compiled weights, and as much again, which ``auto`` must find free

Reader = Callable[[Path], Any | None]
"""Reads the graph in a folder; None if it is missing or damaged."""


class _Entry(NamedTuple):
    """The folder of a graph in the store, and what it is compiled for."""

    folder: str
    device: str
    settings: Mapping[str, Any]


class _Done(NamedTuple):
    graph: Any
    compiled: Any


@final
class _Load:
    """The graphs of one load.

    Attributes:
        used: what was compiled for this load, or taken from the thread.
    """

    def __init__(self, entries: Sequence[_Entry], store: Path, read: Reader) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._ahead = [(entry, self._thread.submit(_done, entry, store, read)) for entry in entries]
        self._folders: list[tuple[Any, str]] = []  # of graphs
        self.used: list[_Entry] = []

    def graph(self, folder: str) -> Any | None:
        found = (future.result() for entry, future in self._ahead if entry.folder == folder)
        return next((done.graph for done in found if done is not None), None)

    def name(self, graph: Any, folder: str) -> None:
        self._folders.append((graph, folder))

    def compiled(self, graph: Any, device: str, settings: Mapping[str, Any]) -> Any | None:
        for folder in (folder for named, folder in self._folders if named is graph):
            self.used.append(wanted := _Entry(folder, device, settings))
            found = (future.result() for entry, future in self._ahead if entry == wanted)
            return next((done.compiled for done in found if done is not None and done.graph is graph), None)
        return None

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)


_LOAD: ContextVar[_Load | None] = ContextVar("_LOAD", default=None)


@contextmanager
def compiling_ahead(label: str, store: Path, read: Reader) -> Iterator[None]:
    """A context in which models are loaded; what an earlier load of this label compiled is compiled in a thread meanwhile.

    Args:
        label: the models, and everything that is given for them.
        store: the folder of stored graphs.
    """
    record = _read_record(store / _RECORD)
    recorded = record.get(label, [])
    load = _Load([_now(entry) for entry in recorded] if _possible(store, recorded) else [], store, read)
    token = _LOAD.set(load)
    try:
        yield
    finally:
        _LOAD.reset(token)
        load.close()
    if load.used != recorded:
        others = [(name, found) for name, found in record.items() if name != label]
        with suppress(OSError):  # then the next load compiles later
            store.mkdir(parents=True, exist_ok=True)
            replace_file(store / _RECORD, json.dumps(dict([*others[1 - _LABELS :], (label, load.used)])))


def reading(folder: Path, read: Reader) -> Any | None:
    """The graph in a folder, from the thread if it reads it too."""
    load = _LOAD.get()
    graph = None if load is None else load.graph(folder.name)
    return read(folder) if graph is None else graph


def from_folder(graph: Any, folder: Path) -> Any:
    """The graph, after noting which folder it is stored in."""
    if (load := _LOAD.get()) is not None:
        load.name(graph, folder.name)
    return graph


def compiled(graph: Any, device: str, settings: Mapping[str, Any]) -> Any:
    """The compiled graph, from the thread if it compiled it.

    Raises:
        RuntimeError: from OpenVINO, if it cannot be compiled.
    """
    load = _LOAD.get()
    found = None if load is None else load.compiled(graph, device, settings)
    return core().compile_model(graph, device, dict(settings)) if found is None else found


def _done(entry: _Entry, store: Path, read: Reader) -> _Done | None:
    with suppress(RuntimeError):  # the loading thread tries again, and reports it
        if (graph := read(store / entry.folder)) is not None:
            return _Done(graph, core().compile_model(graph, entry.device, dict(entry.settings)))
    return None


def _now(entry: _Entry) -> _Entry:
    """A recorded entry with the present number of threads."""
    threads = {THREADS: torch.get_num_threads()} if THREADS in entry.settings else {}
    return entry._replace(settings={**entry.settings, **threads})


def _read_record(path: Path) -> dict[str, list[_Entry]]:
    """The recorded entries by label; empty if there is no usable record."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        record = json.loads(path.read_text(encoding="utf-8"))
        return {
            label: [_Entry(str(folder), str(device), dict(settings)) for folder, device, settings in entries]
            for label, entries in record.items()
        }
    return {}


def _possible(store: Path, entries: Sequence[_Entry]) -> bool:
    """Whether there is memory for these entries, and OpenVINO is still installed."""
    room = available_memory()
    size = sum(file.stat().st_size for entry in entries for file in (store / entry.folder).glob("*.bin"))
    if room is not None and _ROOM * size > room:
        return False
    try:
        for device in {entry.device for entry in entries}:
            core().get_versions(device)  # loads the plugin here: it keeps a stack for signals of the thread that loads it
    except (ConfigError, RuntimeError):
        return False
    return True
