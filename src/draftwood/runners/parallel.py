"""One target over several processes (tensor parallelism): that of rank 0 leads, and the others make the same calls.

Each process holds a part of every large weight, so all have to call the network in the same order. Rank 0 does all the rest:
it drafts, verifies and prints. Before its runner makes a call, it sends the call and the rows' new tokens to the others.
"""

from __future__ import annotations

import io
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from itertools import count
from threading import Lock
from typing import Any, NoReturn, TypeAlias, TypeVar, cast, final
from weakref import WeakKeyDictionary, finalize

import torch
from torch import Tensor, nn

from draftwood.core.errors import DraftwoodError, ModelError
from draftwood.core.scores import Scores
from draftwood.runners.processes import END, Group, is_lost, uninterrupted
from draftwood.runners.protocols import Hidden, PerNode, Prefix, Seen, SharesBeginnings
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling.rows import Row

T = TypeVar("T")
Loader: TypeAlias = Callable[..., Any]
"""Loads this process's part of a model."""
_GRACE = 1.0  # seconds in which rank 0 may say why all end
_FIRST_FOLLOWER = 1  # the process that speaks if rank 0 has ended without a word


@final
class _RowWriter(pickle.Pickler):
    """Writes rows as numbers, and tensors without their device."""

    def __init__(self, file: io.BytesIO, number_of: Callable[[Row], int]) -> None:
        super().__init__(file)
        self._number_of = number_of

    def persistent_id(self, thing: Any) -> int | None:
        return self._number_of(thing) if isinstance(thing, Row) else None

    def reducer_override(self, thing: Any) -> Any:
        return (torch.from_numpy, (thing.cpu().numpy(),)) if isinstance(thing, Tensor) else NotImplemented


@final
class _RowReader(pickle.Unpickler):
    """Reads numbers as rows."""

    def __init__(self, data: bytes, rows: dict[int, Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._rows = rows

    def persistent_load(self, number: int) -> Row:
        found: Row = self._rows[number]
        return found


@final
class Leader:
    """What rank 0 says to the others.

    Args:
        group: the processes.
        load: loads this process's part of a model, as :func:`follow` does in the others.
    """

    def __init__(self, group: Group, load: Loader) -> None:
        self.group, self._load = group, load
        self._models: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        self._rows: WeakKeyDictionary[Row, tuple[int, int]] = WeakKeyDictionary()  # number, and tokens that were sent
        self._numbers = count()  # of models, runners and rows alike
        self._gone: list[int] = []
        self._lock, self._inside, self._ended = Lock(), False, False

    def load(self, *arguments: Any) -> Any:
        """A model of which each process has loaded its part; only its runners may call it.

        Raises:
            ModelError: one of the processes cannot load it.
        """
        number = next(self._numbers)
        model = self.call(None, "load", (number, arguments), lambda: self.group.agreed(lambda: self._load(*arguments)))
        model.register_forward_pre_hook(self._refuse)
        self._models[model] = number
        self._forget(model, number)
        _LEADERS[model] = self
        return model

    def make(self, owner: object, model: Any, **settings: Any) -> tuple[int, TorchRunner]:
        """A runner of a model, and the number by which calls name it as long as its owner lives."""
        number = next(self._numbers)
        given = number, self._models[model], settings
        made = self.call(None, "make", given, lambda: TorchRunner(model, **settings))
        self._forget(owner, number)
        return number, made

    def _forget(self, thing: object, number: int) -> None:
        """Let the others forget what a number stands for when it is gone here."""
        finalize(thing, self._gone.append, number).atexit = False

    def call(self, runner: int | None, name: str, arguments: Sequence[Any], own: Callable[[], T]) -> T:
        """Let the others make a call, and make it here by ``own``.

        Raises:
            ModelError: another process has ended.
        """
        with self._lock, uninterrupted():
            if self._ended:
                raise self.group.gone()
            self._inside = True
            try:
                self.group.send(self._message(runner, name, arguments))
                return own()
            except DraftwoodError:  # they raise it too
                raise
            except BaseException as error:
                self._ended = True
                found = self.group.gone() if is_lost(error) else error
                self.group.fail(found)
                if found is error:
                    raise
                raise found from error
            finally:
                self._inside = False

    def _message(self, runner: int | None, name: str, arguments: Sequence[Any]) -> bytes:
        file = io.BytesIO()
        _RowWriter(file, self._number_of).dump(tuple(arguments))
        texts = {}
        for row, (number, sent) in list(self._rows.items()):
            length = len(row.tokens)
            if length != sent:
                texts[number] = min(sent, length), row.tokens[sent:]
                self._rows[row] = number, length
        gone = self._gone[:]
        del self._gone[: len(gone)]
        return pickle.dumps((texts, gone, runner, name, file.getvalue()))

    def _number_of(self, row: Row) -> int:
        if row not in self._rows:
            self._rows[row] = next(self._numbers), 0
            self._forget(row, self._rows[row][0])
        return self._rows[row][0]

    def _refuse(self, *_: object) -> None:
        if not self._inside:
            raise ModelError(
                f"this model is shared by {self.group.size} processes, and the others follow its runner only: write texts "
                "with the pair, or load the model in one process to call it"
            )


_LEADERS: WeakKeyDictionary[nn.Module, Leader] = WeakKeyDictionary()


def is_shared(model: Any) -> bool:
    """Whether several processes share a model."""
    return model in _LEADERS


@final
class ParallelRunner(SharesBeginnings):
    """The runner of a shared model, in the process of rank 0.

    Args:
        model: a model that several processes share.
        check, hidden_layers: as for :class:`draftwood.runners.torch_runner.TorchRunner`.

    Raises:
        ConfigError, ModelError: as that class.
    """

    kind = TorchRunner.kind
    pads = True
    same_bits = False

    def __init__(self, model: Any, *, check: bool = True, hidden_layers: tuple[int, ...] = ()) -> None:
        self.model, self.hidden_layers = model, hidden_layers
        self._leader = _LEADERS[model]
        self._number, self._own = self._leader.make(self, model, check=check, hidden_layers=hidden_layers)
        self.network = self._own.network
        self.vocab_size, self.max_length, self.device = self._own.vocab_size, self._own.max_length, self._own.device

    @property
    def engine(self) -> str:
        return f"torch x{self._leader.group.size}"

    @property
    def token_bytes(self) -> int:
        return self._own.token_bytes // self._leader.group.size

    @property
    def forward_seconds(self) -> float:
        return self._own.forward_seconds

    @forward_seconds.setter
    def forward_seconds(self, seconds: float) -> None:
        self._own.forward_seconds = seconds

    def another(self) -> ParallelRunner:
        return ParallelRunner(self.model, check=False, hidden_layers=self.hidden_layers)

    @property
    def memory_bytes(self) -> int:
        return self._own.memory_bytes

    def _call(self, name: str, *given: Any, **named: Any) -> Any:
        return self._leader.call(self._number, name, (given, named), lambda: getattr(self._own, name)(*given, **named))

    def keep(self, row: Row, text: Row) -> None:
        self._call("keep", row, text)

    def held(self, row: Row) -> int:
        return self._own.held(row)

    def clear(self) -> None:
        self._call("clear")

    def set_rows(self, rows: Sequence[Row]) -> None:
        self._call("set_rows", list(rows))

    def prefill(self, row: Row, end: int, *, prefix: Prefix | None = None, hidden: Hidden | None = None) -> Hidden | None:
        return cast("Hidden | None", self._call("prefill", row, end, prefix=prefix))

    def extend(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Scores:
        return cast(Scores, self._call("extend", tokens, depths, ancestors))

    def commit(self, nodes: Sequence[Sequence[int]], hidden: Sequence[Hidden] | None = None) -> None:
        self._call("commit", [list(kept) for kept in nodes])


def follow(group: Group, load: Loader) -> NoReturn:
    """Make the calls of rank 0 until it ends, and print nothing; then end this process.

    Args:
        group: the processes.
        load: loads this process's part of a model.

    Raises:
        ModelError: rank 0 has ended without a word.
        SystemExit: the end; its status is 1 after an error.
    """
    came: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 gets both signals too, and may end its texts first
    signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        try:
            _Follower(group, load).run()
        except Exception as error:
            if not (lost := is_lost(error)):
                group.fail(error)
            time.sleep(_GRACE)
            if lost and group.rank == _FIRST_FOLLOWER and group.reason() is None and not came:
                raise group.gone() from error
            sys.exit(1)
        group.leave()
    sys.exit(0)


@final
class _Follower:
    """The models, runners and rows of a process above rank 0, by the numbers that rank 0 gave them."""

    def __init__(self, group: Group, load: Loader) -> None:
        self._group, self._load = group, load
        self._known: dict[int, Any] = {}

    def run(self) -> None:
        """Make the calls of rank 0 until it ends."""
        while (message := self._group.receive()) != END:
            texts, gone, runner, name, arguments = pickle.loads(message)
            for number, (start, tokens) in texts.items():
                self._known.setdefault(number, Row(tokens=[])).tokens[start:] = tokens
            for number in gone:
                self._known.pop(number, None)
            try:
                self._call(runner, name, _RowReader(arguments, self._known).load())
            except DraftwoodError:  # rank 0 raises it too
                continue

    def _call(self, runner: Any, name: str, given: tuple[Any, ...]) -> None:
        if name == "load":
            number, arguments = given
            self._known[number] = self._group.agreed(lambda: self._load(*arguments))
        elif name == "make":
            number, model, settings = given
            self._known[number] = TorchRunner(self._known[model], **settings)
        else:
            (arguments, named), own = given, self._known[runner]
            arguments = [one.to(own.device) if isinstance(one, Tensor) else one for one in arguments]
            getattr(own, name)(*arguments, **named)
