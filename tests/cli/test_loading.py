"""On a terminal ``generate`` says within a moment what it is loading; into a pipe it says nothing of the kind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.cli.test_chat import Terminal
from tests.faults.folders import save_tiny


def arguments(folder: Path) -> list[str]:
    return [sys.executable, "-m", "draftwood", "generate", "ab", "--target", str(folder), "--max-new-tokens", "2"]


def on_a_terminal(command: list[str]) -> str:
    """What a process writes to a terminal, both streams."""
    terminal = Terminal(command, dict(os.environ))
    terminal.exit_code()
    terminal.close()
    return terminal.seen


def test_a_terminal_is_told_first_that_pytorch_and_then_which_model_is_loading(tmp_path: Path) -> None:
    seen = on_a_terminal(arguments(save_tiny(tmp_path)))
    libraries, model = seen.find("Loading PyTorch"), seen.find(tmp_path.name)
    assert 0 <= libraries < model < seen.find("tokens in"), seen


def test_a_pipe_is_told_nothing_of_it(tmp_path: Path) -> None:
    shown = subprocess.run(arguments(save_tiny(tmp_path)), capture_output=True, text=True, check=True)
    assert "Loading" not in shown.stdout + shown.stderr
