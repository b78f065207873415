"""Arm, by a cross compiler and an emulator: bits are those of x86."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

from draftwood.native import build
from draftwood.native.library import instruction_sets
from tests.native.drive import drive

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
SYSTEM = "/usr/aarch64-linux-gnu"  # its libraries


@pytest.mark.skipif(not (shutil.which(COMPILER) and shutil.which(EMULATOR)), reason=f"there is no {COMPILER} or {EMULATOR}")
def test_arm_computes_the_bits_of_generic_on_x86(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if (here := build.compiler()) is None:
        pytest.skip("there is no C++ compiler")

    def trees(
        name: str, compiler: str, *emulator: str, isa: str = "generic", flags: tuple[str, ...] = (), part: str = "trees"
    ) -> list[str]:
        monkeypatch.setenv("CXX", compiler)
        monkeypatch.setattr(platform, "machine", lambda: "aarch64" if emulator else "x86_64")
        library = build.build(tmp_path / name / "libdraftwood.so", flags, only=(isa,))
        return drive(library, isa, compiler=compiler, emulator=emulator, part=part)

    if "avx2" not in instruction_sets():
        pytest.skip("this processor has no fused products and sums")
    found = trees("here", here, isa="avx2")
    # The control: a compiler that may fuse products and sums computes other bits.
    assert trees("contracted", here, isa="avx2", flags=("-ffp-contract=fast",)) != found
    assert len(set(found)) == len(found) == 76
    emulator = [EMULATOR, "-cpu", "max", "-L", SYSTEM]
    assert trees("arm", COMPILER, *emulator) == found
    for isa in ("dotprod", "i8mm"):
        assert trees(isa, COMPILER, *emulator, isa=isa, part="codes") == found[56:]
