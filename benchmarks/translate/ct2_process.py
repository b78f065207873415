"""CTranslate2 in a process of its own, as it would be used.

In the process of PyTorch it would share PyTorch's OpenMP runtime (GNU's), with more threads than cores. That runtime then
lets threads sleep instead of waiting actively for the next operation. Every small operation of PyTorch has to wake them, for
as long as the process lives.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing import get_context
from time import perf_counter
from typing import Any, NamedTuple, TypeVar, final

from draftwood.core.errors import ModelError

T = TypeVar("T")


class Found(NamedTuple):
    """Translations as token names, and the seconds of the call that made them."""

    rows: list[list[str]]
    seconds: float


@final
class CT2Process:
    """A converted model in a process that ends with this object.

    Args:
        folder: the model; it is not needed any more when this returns.
        device: ``cpu`` or ``cuda``.
        threads: of one translation.

    Raises:
        ModelError: the process has ended.
    """

    def __init__(self, folder: str, device: str, threads: int) -> None:
        self._model = folder, device, threads
        # A fork would bring PyTorch's threads along. Ctrl-C reaches both processes, and this one ends the other one.
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN))
        self._run(_load, *self._model)

    def translate(self, sources: list[list[str]], **options: Any) -> Found:
        """As ``translate_batch`` of CTranslate2, whose options these are."""
        return self._run(_translate, self._model, sources, options)

    def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        try:
            return self._pool.submit(function, *arguments).result()
        except BrokenProcessPool as error:
            raise ModelError(
                "the process that runs CTranslate2 has ended: free some memory, or leave it out with --peers generate"
            ) from error


@cache
def _translator(folder: str, device: str, threads: int) -> Any:
    import ctranslate2

    return ctranslate2.Translator(folder, device=device, inter_threads=1, intra_threads=threads, compute_type="float32")


def _load(folder: str, device: str, threads: int) -> None:
    _translator(folder, device, threads)


def _translate(model: tuple[str, str, int], sources: list[list[str]], options: dict[str, Any]) -> Found:
    translator = _translator(*model)
    start = perf_counter()
    found = translator.translate_batch(sources, **options)
    return Found([result.hypotheses[0] for result in found], perf_counter() - start)
