"""The house rules that a machine can check."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import draftwood

ROOT = Path(draftwood.__file__).parent
FLOORS = [
    # One set per room; a room may import rooms of lower floors only. Types of floor 0 may know each other.
    [
        {
            *("errors", "_version", "settings", "options", "checks", "checkpoint", "corpus", "cores", "machine"),
            *("laws", "tree", "counters", "noise", "sampling", "processors", "asking", "truncation", "rounds"),
        }
    ],
    [{"models"}],
    [{"draft"}, {"target"}, {"verify"}, {"output"}, {"feedback"}],
    [{"decode"}, {"batch"}],
    [{"methods"}],
    [{"loading"}, {"profile"}, {"decoders"}, {"generation"}, {"given"}, {"judging"}],
    [{"api"}, {"translation"}],
    [{"hf"}, {"train"}, {"bench"}, {"exactness"}, {"tune"}, {"serve"}, {"trace"}],
    [{"cli"}],
]
PLACE = {name: (floor, room) for floor, rooms in enumerate(FLOORS) for room, names in enumerate(rooms) for name in names}
FILES = sorted(ROOT.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def arrows(source: str, path: Path) -> list[str]:
    """Rooms that a file imports at any place."""
    out = []
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names = [f"draftwood.{a.name}" for a in node.names] if module == "draftwood" else [module]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        out += [n.split(".")[1] for n in names if n.startswith("draftwood.")]
    return [n for n in out if n != "__version__"]


def forbidden(room: str, imported: str) -> bool:
    if imported == room:
        return False
    (floor, here), (other_floor, there) = PLACE[room], PLACE[imported]
    return other_floor > floor or (other_floor == floor and here != there)


@pytest.mark.parametrize("path", [f for f in FILES if f != ROOT / "__init__.py"], ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down_only(path):
    room = room_of(path)
    assert room in PLACE, f"room {room!r} has no floor: give it one here and in docs/house.md"
    up = [name for name in arrows(path.read_text(), path) if forbidden(room, name)]
    # `cli` hands its lazily loaded commands out by name; nothing below it may import it.
    assert not up, f"{path.relative_to(ROOT)} imports {up}: an arrow that goes up or sideways"


def test_control_an_arrow_that_goes_up_is_seen():
    found = arrows("from draftwood.engine.decode import Decoder\nimport draftwood.runners.table\n", Path("x"))
    assert [forbidden("draft", name) for name in found] == [True, False]
    assert forbidden("draft", "verify")


def test_public_names():
    assert draftwood.__all__ == [
        "CacheError", "ConfigError", "Decoder", "DraftTree", "DraftwoodError", "Limits", "LoadOptions", "Method",
        "ModelError", "NumericsError", "Pair", "PairingError", "Piece", "Request", "Result", "Round", "Sampling",
        "Stateless", "Stats", "Translator", "Verdict", "__version__", "hf", "load", "load_translator",
    ]  # fmt: skip
    for name in draftwood.__all__:
        assert getattr(draftwood, name) is not None
    assert callable(draftwood.hf.recipe)
    with pytest.raises(AttributeError, match="nonsense"):
        draftwood.nonsense  # noqa: B018


def test_importing_the_package_does_not_import_torch():
    code = "import sys, draftwood; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT.parent).returncode == 0


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_stay_small(path):
    source = path.read_text()
    assert source.count("\n") <= 320
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno <= 50, f"{node.name} is long: a noun is missing"
        assert not isinstance(node, ast.Global)
        assert not (isinstance(node, ast.ExceptHandler) and node.type is None)
