"""On a terminal ``generate`` says within a moment what it is loading; ``test_disk.py`` compares what a pipe gets."""

import os
import sys

from tests.cli.test_chat import Terminal
from tests.faults.folders import save_tiny


def on_a_terminal(command):
    """What a process writes to a terminal, both streams."""
    terminal = Terminal(command, dict(os.environ))
    terminal.exit_code()
    terminal.close()
    return terminal.seen


def test_a_terminal_is_told_first_that_pytorch_and_then_which_model_is_loading(tmp_path):
    command = [sys.executable, "-m", "draftwood", "generate", "ab", "--target", str(save_tiny(tmp_path)), "--max-new-tokens"]
    seen = on_a_terminal([*command, "2"])
    libraries, model = seen.find("Loading PyTorch"), seen.find(tmp_path.name)
    assert 0 <= libraries < model < seen.find("tokens in"), seen
