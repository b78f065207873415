"""``draftwood adapt``."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from draftwood.cli.console import write_line
from draftwood.cli.options import dataclass_options, pick
from draftwood.core.errors import ConfigError
from draftwood.loading.names import adapted_drafter, bundled_drafter, locate
from draftwood.train.config import AdaptConfig

_LEAST: Final = 19  # the lowest priority of a process on POSIX
_ENDS: Final = (0, 1, 2)  # exit statuses of a run that was not stopped: its result, or its error
_END_SECONDS: Final = 30.0  # for a child that removes its temporary folder


@contextmanager
def _ended_in_order(with_input: bool) -> Iterator[None]:
    """What ends a process ends it as Ctrl-C does, which removes the temporary folder; so does the end of its input."""
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [number for name in names if signal.getsignal(number := getattr(signal, name)) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, signal.default_int_handler)
    if with_input:
        threading.Thread(target=_wait_for_the_end, daemon=True).start()
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _wait_for_the_end() -> None:
    """Read the input, which ends when the process at its other end has gone, however it did."""
    while os.read(0, 1):
        pass
    _thread.interrupt_main(signal.SIGTERM)


@click.command(name="adapt")
@dataclass_options(AdaptConfig)
@click.option("--remove", is_flag=True, help="Remove what was learnt: the drafter of this package is used again.")
@click.option("--with-input", is_flag=True, hidden=True)
def command(remove: bool, with_input: bool, **options: Any) -> None:
    """Train the drafter of a model further on your own texts, and keep it if it drafts better there.

    Texts are files of plain text, or .jsonl files with "messages" or "text" in each line. The texts and the drafter stay on
    this machine. The drafter is then used wherever the model is loaded with its own drafter. What the model writes keeps its
    distribution: only the speed changes.
    """
    config = pick(AdaptConfig, options)
    locate(config.target, fetch=False)

    from draftwood.loading.models import quiet_loading
    from draftwood.train import adapt

    if remove:
        found = adapt.remove(config.target)
        write_line("It is removed: the drafter of this package is used." if found else "There was nothing to remove.")
        return
    quiet_loading()
    with _ended_in_order(with_input):
        result = adapt.adapt(config)
    for name, (before, after) in (("your texts", result.texts), ("chats of the model", result.chats)):
        write_line(f"Tokens of a pass on held-out {name}: {before:.3f} before, {after:.3f} now.")
    if result.folder is None:
        write_line("That is not better by 2 %, or loses more than 0.03 on chats: nothing was changed.")
    else:
        write_line(f"The drafter is in {result.folder}, and is used from now on; --remove takes it back.")


def is_new(target: str | None, draft: str | None, texts: Path, say: Callable[[str], object]) -> bool:
    """Whether a target's drafter has something to learn from a folder of texts. ``say`` is called if it has not.

    Raises:
        ConfigError: no such folder, no file in it, no drafter for the target in this package, or a draft of its own.
    """
    from draftwood.train.own_texts import state_file, state_of

    shipped = None if target is None or draft is not None else bundled_drafter(target, adapted=False)
    if shipped is None:
        raise ConfigError(
            f"--adapt is for a target whose drafter this package holds, and the drafter of {target or 'the bundled pair'!r} "
            f"is {draft or 'none of these'!r}: give --target smollm2 without --draft, or leave --adapt out"
        )
    known, state = state_file(adapted_drafter(shipped)), state_of([texts])
    if known.is_file() and known.read_text(encoding="utf-8") == state:
        say(f"--adapt: no file in {texts} has changed since the last run, so nothing is learnt.")
        return False
    return True


@contextmanager
def in_background(target: str | None, texts: Path, say: Callable[[str], object]) -> Iterator[None]:
    """Run this command on a folder of texts in a process of one thread and the lowest priority, which ends with the block,
    and with this process if that is killed. ``say`` is called with what it came to."""
    child = subprocess.Popen(
        [sys.executable, "-m", "draftwood", "adapt", "--target", str(target), "--texts", str(texts), "--with-input"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, creationflags=getattr(subprocess, "IDLE_PRIORITY_CLASS", 0),
    )  # fmt: skip
    assert child.stdin is not None
    if hasattr(os, "setpriority"):
        os.setpriority(os.PRIO_PROCESS, child.pid, _LEAST)
    say(f"--adapt: a process of low priority learns from {texts}, for the next start of this server.")
    reader = threading.Thread(target=_last_line, args=(child, say), daemon=True)
    reader.start()
    try:
        yield
    finally:
        child.stdin.close()
        try:
            child.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
        reader.join(_END_SECONDS)


def _last_line(child: subprocess.Popen[str], say: Callable[[str], object]) -> None:
    """Say what a process says last, unless it was stopped."""
    assert child.stdout is not None
    last = ""
    for line in child.stdout:
        last = line.strip() or last
    if child.wait() in _ENDS:
        say(f"--adapt: {last}")
