"""``--help`` of every command, ``models``, and a mistyped option import neither PyTorch nor transformers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from benchmarks.__main__ import main as benchmarks
from draftwood.cli import main

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "openvino", "numpy")
CODE = (
    "import sys\n"
    "from {module} import main\n"
    "try:\n"
    "    main(sys.argv[1:])\n"
    "except SystemExit as end:\n"
    "    print('imported:', *[name for name in {heavy} if name in sys.modules])\n"
    "    raise\n"
)


def commands(group: click.Group) -> list[list[str]]:
    """Every command and subcommand, as arguments."""
    found: list[list[str]] = [[]]
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        found.append([name])
        if isinstance(command, click.Group):
            found += [[name, below] for below in command.list_commands(context)]
    return found


def run(*arguments: str, module: str = "draftwood.cli") -> subprocess.CompletedProcess[str]:
    code = CODE.format(module=module, heavy=HEAVY)
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.parametrize("arguments", commands(main), ids=lambda names: " ".join(names) or "draftwood")
def test_the_help_of_a_command_imports_nothing_heavy(arguments: list[str]) -> None:
    shown = run(*arguments, "--help")
    assert shown.returncode == 0, shown.stderr
    assert "Usage:" in shown.stdout
    assert shown.stdout.splitlines()[-1].strip() == "imported:"


@pytest.mark.parametrize("arguments", commands(benchmarks), ids=lambda names: " ".join(names) or "benchmarks")
def test_the_help_of_a_benchmark_imports_nothing_heavy(arguments: list[str]) -> None:
    shown = run(*arguments, "--help", module="benchmarks.__main__")
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


@pytest.mark.parametrize("arguments", [["models"], ["models", "--json"]], ids=" ".join)
def test_the_names_of_models_are_listed_without_importing_anything_heavy(arguments: list[str]) -> None:
    shown = run(*arguments)
    assert shown.returncode == 0, shown.stderr
    assert "smollm2" in shown.stdout
    assert shown.stdout.splitlines()[-1].strip() == "imported:"
