"""The processes that share a model: they are started by ``torchrun``, and the one of rank 0 sends messages to the others."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import Final, TypeVar, final

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from draftwood.core.errors import ConfigError, ModelError, is_out_of_memory

T = TypeVar("T")
END: Final = b"end"
"""The message after which the others end."""
_IDLE = timedelta(days=365)  # a server may wait that long for its next request
_ERROR: Final = "draftwood/error"  # the key under which a process leaves the reason why it ends
_PACKET: Final = 4096  # bytes of a message that are sent at once, with its length in the first eight
_HEAD: Final = 8


@final
class Group:
    """The processes that ``torchrun`` has started, on CPUs by gloo or with a GPU each by NCCL. Messages always go by gloo.

    Attributes:
        rank, size: number of this process, and of all.

    Raises:
        ConfigError: this process was not started so, or there are GPUs but none for this process.
        ModelError: the processes do not find each other.
    """

    def __init__(self) -> None:
        if not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} <= os.environ.keys():
            raise ConfigError(
                "tensor_parallel shares the target among processes, but torchrun has not started this one: begin the "
                "command with torchrun --nproc-per-node N -m draftwood, or leave tensor_parallel out"
            )
        local, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if gpus and local >= gpus:
            raise ConfigError(f"process {local} of this machine finds no GPU: start {gpus} processes here, one for each GPU")
        if gpus:
            torch.cuda.set_device(local)
        try:
            found: tuple[dist.Store, int, int] = next(iter(rendezvous("env://")))
            self._store, self.rank, self.size = found
            backend = "nccl" if gpus else "gloo"
            dist.init_process_group(backend, store=self._store, rank=self.rank, world_size=self.size)
            self._messages = dist.new_group(backend="gloo", timeout=_IDLE)
        except (RuntimeError, ValueError) as error:
            raise ModelError(
                f"the processes of torchrun do not find each other ({_line(error)}): start them again"
            ) from error
        if not self.rank:
            atexit.register(self._end)

    def send(self, message: bytes) -> None:
        """Send a message to all other processes."""
        head = len(message).to_bytes(_HEAD, "little")
        packet = torch.frombuffer(bytearray((head + message).ljust(_PACKET, b"\0")), dtype=torch.uint8)
        dist.broadcast(packet[:_PACKET], src=0, group=self._messages)
        if len(packet) > _PACKET:
            dist.broadcast(packet[_PACKET:], src=0, group=self._messages)

    def receive(self) -> bytes:
        """The next message of rank 0."""
        packet = torch.empty(_PACKET, dtype=torch.uint8)
        dist.broadcast(packet, src=0, group=self._messages)
        found = packet.numpy().tobytes()
        length = int.from_bytes(found[:_HEAD], "little")
        if (missing := _HEAD + length - _PACKET) > 0:
            rest = torch.empty(missing, dtype=torch.uint8)
            dist.broadcast(rest, src=0, group=self._messages)
            found += rest.numpy().tobytes()
        return found[_HEAD : _HEAD + length]

    def agreed(self, make: Callable[[], T]) -> T:
        """What ``make`` returns, once it has succeeded in all processes; else raise this process's error, or the first."""
        made: list[T] = []
        failed: Exception | None = None
        try:
            made.append(make())
        except Exception as error:
            failed = error
        everywhere: list[str | None] = [None] * self.size
        try:
            dist.all_gather_object(everywhere, None if failed is None else _line(failed), group=self._messages)
        except RuntimeError as error:
            raise self.gone() from error
        if failed is not None:
            raise failed
        for rank, said in enumerate(everywhere):
            if said is not None:
                raise ModelError(f"process {rank} of {self.size}: {said}")
        return made[0]

    def fail(self, error: BaseException) -> None:
        """Leave the group for a reason, which the others can read unless one of them left sooner."""
        said = "out of memory: take a shorter number format or more processes" if is_out_of_memory(error) else _line(error)
        with suppress(RuntimeError):
            if self.reason() is None:
                self._store.set(_ERROR, f"process {self.rank} of {self.size}: {said}")
        self.leave()

    def reason(self) -> str | None:
        """The reason that a process has left; None if none has left any."""
        with suppress(RuntimeError):  # the process that kept the reasons has ended
            if self._store.check([_ERROR]):
                return str(self._store.get(_ERROR).decode())
        return None

    def gone(self) -> ModelError:
        """The error after another process has ended."""
        return ModelError(
            self.reason()
            or f"one of the {self.size} processes that share the model has ended, so no text can go on: look whether it was "
            "killed, for example for want of memory, and start the command again"
        )

    def leave(self) -> None:
        """Close all connections."""
        with suppress(RuntimeError, ValueError, AssertionError):
            dist.destroy_process_group()

    def _end(self) -> None:
        with suppress(RuntimeError, ValueError):  # they have ended already
            self.send(END)
        self.leave()


@cache
def joined() -> Group:
    """The group of this process, which it joins at the first call; raises what :class:`Group` raises."""
    return Group()


def is_lost(error: BaseException) -> bool:
    """Whether an error says that the connection to another process is lost."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A context that puts off Ctrl-C and SIGTERM: a process that leaves a forward would leave the others in it.

    An error inside comes first: ``torchrun`` sends SIGTERM to all processes as soon as one of them has ended.
    """
    came: list[int] = []
    kinds = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {kind: signal.signal(kind, lambda number, _: came.append(number)) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
    if came:
        signal.raise_signal(came[-1])


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
