"""CTranslate2 in a process of its own, as it would be used.

In the process of PyTorch it would share PyTorch's OpenMP runtime (GNU's), with more threads than cores. That runtime then
lets threads sleep instead of waiting actively for the next operation. Every small operation of PyTorch has to wake them, for
as long as the process lives.
"""

from __future__ import annotations

import signal
from multiprocessing import get_context
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any, NamedTuple, final

from draftwood.core.errors import ModelError


class Found(NamedTuple):
    """Translations as token names, and the seconds of the call that made them."""

    rows: list[list[str]]
    seconds: float


@final
class CT2Process:
    """A converted model in a process that ends with this object, or with the process that made it.

    Args:
        folder: the model; it is not needed any more when this returns.
        device: ``cpu`` or ``cuda``.
        threads: of one translation.

    Raises:
        ModelError: the process has ended.
    """

    def __init__(self, folder: str, device: str, threads: int) -> None:
        context = get_context("spawn")  # a fork would bring PyTorch's threads along
        self._pipe, there = context.Pipe()
        settings = {"device": device, "inter_threads": 1, "intra_threads": threads, "compute_type": "float32"}
        self._process = context.Process(target=_serve, args=(there, folder, settings), daemon=True)
        self._process.start()
        there.close()  # so that the end of the process is the end of the pipe
        self._answer()

    def translate(self, sources: list[list[str]], **options: Any) -> Found:
        """As ``translate_batch`` of CTranslate2, whose options these are."""
        found: Found = self._answer((sources, options))
        return found

    def _answer(self, question: Any = None) -> Any:
        """The next answer of the process, after a request if there is one; the process may have ended."""
        try:
            if question is not None:
                self._pipe.send(question)
            found = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            self._process.join(timeout=5)
            raise ModelError(
                f"the process that runs CTranslate2 has ended (exit status {self._process.exitcode}): free some memory, or "
                "leave it out with --peers generate,beam,assisted"
            ) from error
        if isinstance(found, Exception):
            raise found
        return found


def _serve(pipe: Connection[Any, Any], folder: str, settings: dict[str, Any]) -> None:
    """Answer requests until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both processes, and the other one ends this one
    import ctranslate2

    translator = ctranslate2.Translator(folder, **settings)
    pipe.send(None)
    while True:
        try:
            sources, options = pipe.recv()
        except EOFError:
            return
        try:
            start = perf_counter()
            found = translator.translate_batch(sources, **options)
            pipe.send(Found([result.hypotheses[0] for result in found], perf_counter() - start))
        except Exception as error:  # sent to the caller
            pipe.send(error)
