"""Output of text to a terminal or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from typing import Any, final

import click

from draftwood.cli.console import standard_output
from draftwood.core.detokenizer import Marks
from draftwood.core.rounds import Piece

DRAFTED, OWN = "cyan", "yellow"
_OPEN, _CLOSE = "⟦", "⟧"
_UNSAFE = {c: None for c in [*range(32), *range(127, 160)] if chr(c) not in "\n\t"}


@final
class Screen:
    """Standard output. A pipe gets bare text; a terminal gets the prompt first, and no control characters."""

    def __init__(self) -> None:
        from rich.console import Console

        console = Console(file=sys.stdout)
        self.terminal = console.is_terminal
        self.coloured = console.is_terminal and console.color_system is not None and not console.no_color

    def prompt(self, text: str) -> None:
        if self.terminal:
            self.write(text, dim=True)

    def write(self, text: str, **style: Any) -> None:
        if self.terminal:
            text = text.translate(_UNSAFE)
        with standard_output():
            click.echo(click.style(text, **style) if self.coloured and style else text, nl=False, color=True)

    def remark(self, text: str) -> None:
        """A line about the text: on the same terminal, else on standard error."""
        click.echo(click.style(text, dim=True) if self.coloured else text, err=not self.terminal, color=self.coloured)


@final
class Painter:
    """Writes the text after a prompt piece by piece. With ``marks`` drafted tokens are marked by colour, or by brackets."""

    def __init__(self, screen: Screen, tokenizer: Any, prompt: Sequence[int], *, marks: bool) -> None:
        self.screen = screen
        self._marks = Marks(tokenizer, prompt) if marks else None

    @property
    def legend(self) -> str:
        """What the marks mean; empty without."""
        drafted, own = (DRAFTED, OWN) if self.screen.coloured else (f"in {_OPEN} {_CLOSE}", "bare")
        return f"{drafted}: drafted and accepted; {own}: the target's own token of each round" if self._marks else ""

    def take(self, piece: Piece) -> None:
        if self._marks is None:
            self.screen.write(piece.text)
            return
        parts = self._marks.take(piece.tokens, piece.drafted, piece.text, last=piece.finish_reason is not None)
        for drafted, run in groupby(parts, key=lambda part: part[1]):
            self._write("".join(text for text, _ in run), drafted)

    def _write(self, text: str, drafted: bool) -> None:
        if self.screen.coloured:
            self.screen.write(text, fg=DRAFTED if drafted else OWN)
        else:
            self.screen.write(f"{_OPEN}{text}{_CLOSE}" if drafted else text)
