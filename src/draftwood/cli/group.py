"""Commands that are imported on use, and errors that are reported in one sentence."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, final

import click

from draftwood.cli.console import drop_output, output_is_closed
from draftwood.core.errors import ConfigError, DraftwoodError, is_out_of_memory


class Failure(click.ClickException):
    """An error as one sentence."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


@final
class Misuse(Failure):
    """An error that other options would avoid."""

    exit_code = 2


@final
class Interrupted(click.ClickException):
    """Ctrl-C, with a message about the finished work."""

    exit_code = 130

    def show(self, file: Any = None) -> None:
        if sys.stderr.isatty():
            click.echo(err=True)  # ends the line with the terminal's ^C
        click.echo(f"Stopped: {self.message}." if self.message else "Stopped.", err=True)


@final
class ClosedPipe(click.ClickException):
    """The reader of standard output has gone, as in ``| head -1``: the status of a command that SIGPIPE ends."""

    exit_code = 141

    def show(self, file: Any = None) -> None:
        drop_output()


@final
class Commands(click.Group):
    """A group that imports a command only when it is used.

    Args:
        homes: name -> (``module:attribute``, one line of help).
        elsewhere: names of commands in other programs -> what does the same here, in a sentence.
    """

    def __init__(
        self, *args: Any, homes: Mapping[str, tuple[str, str]], elsewhere: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._homes, self._elsewhere = homes, elsewhere or {}
        for name, (_, text) in homes.items():
            self.add_command(click.Command(name, short_help=text))  # in its place until it is used

    def main(self, *args: Any, **kwargs: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(encoding="utf-8", errors="backslashreplace")
        return super().main(*args, **kwargs)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _reported():
            return super().make_context(info_name, args, parent, **extra)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._homes)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in self._elsewhere:
            raise click.UsageError(f"No such command {args[0]!r}. {self._elsewhere[args[0]]}.", ctx)
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and self.imported(args[0]), rest

    def imported(self, name: str) -> click.Command:
        """A command itself."""
        module, attribute = self._homes[name][0].split(":")
        found: click.Command = getattr(import_module(module), attribute)
        return found

    def invoke(self, ctx: click.Context) -> Any:
        with _reported(debug=ctx.params.get("debug", False)):
            return super().invoke(ctx)


@contextmanager
def _reported(*, debug: bool = False) -> Iterator[None]:
    """A context whose errors become those of click; with ``debug`` only the ends that a user wants."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("") from None
    except Exception as error:
        if isinstance(error, BrokenPipeError) and output_is_closed():
            raise ClosedPipe("") from None
        failure = None if debug else as_failure(error)
        if failure is None:
            raise
        raise failure from error


def as_failure(error: Exception) -> Failure | None:
    """The message for an error; None for click's own exceptions."""
    if isinstance(error, click.ClickException | click.exceptions.Exit | click.Abort):
        return None
    if isinstance(error, DraftwoodError):
        return Misuse(str(error)) if isinstance(error, ConfigError) else Failure(str(error))
    if is_out_of_memory(error):
        return Failure("out of memory: lower --batch-size or --max-new-tokens, or take a smaller model")
    if isinstance(error, OSError):
        return Failure(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
    return Failure(
        f"unexpected {type(error).__name__}: {error}. This is a bug in Draftwood or in a library that it uses; "
        "DRAFTWOOD_DEBUG=1 shows where"
    )
