"""``--help`` of every command, and a mistyped option, import neither PyTorch nor transformers."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from draftwood.cli import main

HEAVY = ("torch", "transformers", "openvino", "numpy")
CODE = (
    "import sys\n"
    "from draftwood.cli import main\n"
    "try:\n"
    "    main(sys.argv[1:])\n"
    "except SystemExit as end:\n"
    f"    print('imported:', *[name for name in {HEAVY} if name in sys.modules])\n"
    "    raise\n"
)


def commands() -> list[list[str]]:
    """Every command and subcommand, as arguments."""
    found: list[list[str]] = [[]]
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        found.append([name])
        if isinstance(command, click.Group):
            found += [[name, below] for below in command.list_commands(context)]
    return found


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", commands(), ids=lambda names: " ".join(names) or "draftwood")
def test_the_help_of_a_command_imports_nothing_heavy(arguments: list[str]) -> None:
    shown = run(*arguments, "--help")
    assert shown.returncode == 0, shown.stderr
    assert "Usage:" in shown.stdout
    assert shown.stdout.splitlines()[-1].strip() == "imported:"


def test_a_mistyped_option_is_told_without_importing_anything_heavy() -> None:
    shown = run("generate", "Once", "--max-new-token", "5")
    assert shown.returncode == 2
    assert "--max-new-tokens" in shown.stderr
    assert shown.stdout.splitlines()[-1].strip() == "imported:"


def test_control_what_is_imported_is_seen() -> None:
    shown = run("info", "--json")
    assert shown.returncode == 0, shown.stderr
    assert "torch" in shown.stdout.splitlines()[-1]
