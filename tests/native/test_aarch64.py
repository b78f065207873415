"""The generic instruction set on Arm, by a cross compiler and an emulator: bits are equal, also those of x86."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from draftwood.native import build
from tests.native.drive import drive

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
SYSTEM = "/usr/aarch64-linux-gnu"  # its libraries


@pytest.mark.skipif(not (shutil.which(COMPILER) and shutil.which(EMULATOR)), reason=f"there is no {COMPILER} or {EMULATOR}")
def test_arm_computes_the_bits_of_generic_on_x86(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if (here := build.compiler()) is None:
        pytest.skip("there is no C++ compiler")

    def trees(name: str, compiler: str, *emulator: str, flags: tuple[str, ...] = ()) -> list[str]:
        monkeypatch.setenv("CXX", compiler)
        library = build.build(tmp_path / name / "libdraftwood.so", flags, only=("generic",))
        return drive(library, compiler=compiler, emulator=emulator)[:24]

    found = trees("here", here)
    assert len(set(found)) == len(found) == 24
    emulator = [EMULATOR, "-L", SYSTEM]
    assert trees("arm", COMPILER, *emulator) == found
    # The control: Arm has fused products and sums, and a compiler that may use them computes other bits.
    assert trees("contracted", COMPILER, *emulator, flags=("-ffp-contract=fast",)) != found
