"""The native library under the compiler's sanitizers, and with AMX in software, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from draftwood.native import build
from draftwood.native.library import instruction_sets

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="there is no C++ compiler")
BEST = [name for name in instruction_sets() if name != "amx"][-1]
SANITIZERS = {
    "address,undefined": ("libasan.so", "libstdc++.so"),  # the second one so that exceptions are seen
    "thread": ("libtsan.so",),
}


@cache
def file_of(name: str) -> str:
    """A library of the compiler; its bare name if it has none."""
    command = [str(build.compiler()), f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def drive(library: Path, isa: str, first: str = "") -> str:
    """The digest of all that the library computes with an instruction set."""
    root = Path(__file__).parents[2]
    env = {**os.environ, "LD_PRELOAD": first, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": f"{root / 'src'}:{root}"}
    command = [sys.executable, str(Path(__file__).with_name("drive.py")), str(library), isa]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", SANITIZERS)
def test_no_sanitizer_finds_anything_and_all_computes_the_same(kind: str, tmp_path: Path) -> None:
    found = [file_of(name) for name in SANITIZERS[kind]]
    if not all(map(os.path.isabs, found)):
        pytest.skip("the compiler has no such sanitizer")
    flags = ["-O1", f"-fsanitize={kind}", "-fno-sanitize-recover=undefined", "-Wno-tsan"]
    made = build.build(tmp_path / "sanitized.so", flags, only=("generic", BEST))
    for isa in {"generic", BEST}:
        assert drive(made, isa, " ".join(found)) == drive(build.LIBRARY, isa)


def test_control_a_sanitizer_sees_a_wrong_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "native"
    folder.mkdir()
    for path in [*build.HERE.glob("*.cpp"), *build.HERE.glob("*.h")]:
        text = path.read_text().replace("m.page_numbers = (size_t)facts.layers", "m.page_numbers = (size_t)1")
        (folder / path.name).write_text(text)
    found = [file_of(name) for name in SANITIZERS["address,undefined"]]
    if not all(map(os.path.isabs, found)):
        pytest.skip("the compiler has no such sanitizer")
    version = build.digest()
    monkeypatch.setattr(build, "HERE", folder)
    monkeypatch.setattr(build, "digest", lambda: version)
    made = build.build(tmp_path / "wrong.so", ["-O1", "-fsanitize=address"], only=("generic",))
    with pytest.raises(AssertionError, match="AddressSanitizer"):
        drive(made, "generic", " ".join(found))


@pytest.mark.skipif("avx512bf16" not in instruction_sets(), reason="what surrounds the tiles of AMX needs AVX512-BF16")
def test_what_surrounds_the_tiles_of_amx(tmp_path: Path) -> None:
    flags = ["-O1", "-DDRAFTWOOD_EMULATED_TILES", "-fsanitize=address"]
    sanitizer = [file_of(name) for name in SANITIZERS["address,undefined"]]
    assert drive(build.build(tmp_path / "tiles.so", flags, only=("amx",)), "amx", " ".join(sanitizer))
