"""Arm, by a cross compiler and an emulator: bits are those of x86."""

import platform
import shutil

import pytest

from draftwood.native import build
from draftwood.native.library import instruction_sets
from tests.native.drive import CODES, drive

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
SYSTEM = "/usr/aarch64-linux-gnu"  # its libraries


@pytest.mark.skipif(not (shutil.which(COMPILER) and shutil.which(EMULATOR)), reason=f"there is no {COMPILER} or {EMULATOR}")
def test_arm_computes_the_bits_of_generic_on_x86(tmp_path, monkeypatch):
    if build.compiler() is None:
        pytest.skip("there is no C++ compiler")
    if "avx2" not in instruction_sets():
        pytest.skip("this processor has no fused products and sums")
    found = drive(build.LIBRARY, "avx2", part="trees")
    assert len(set(found)) == len(found) == 49 + CODES
    # The control: a compiler that may fuse products and sums computes other bits.
    fast = ["-O1", "-fexpensive-optimizations"]  # takes half the time to compile; the bits are those of any level
    contracted = build.build(tmp_path / "contracted.so", ["-ffp-contract=fast", *fast], only=("avx2",))
    assert drive(contracted, "avx2", part="codes") != found[-CODES:]
    monkeypatch.setenv("CXX", COMPILER)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    arm, emulator = build.build(tmp_path / "arm" / "libdraftwood.so", fast), [EMULATOR, "-cpu", "max", "-L", SYSTEM]
    for isa, part, wanted in (("generic", "trees", found), *((isa, "codes", found[-CODES:]) for isa in ("dotprod", "i8mm"))):
        assert drive(arm, isa, compiler=COMPILER, emulator=emulator, part=part) == wanted
