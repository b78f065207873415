"""The generic instruction set on Arm, by a cross compiler and an emulator: bits are equal, also those of x86."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from draftwood.native import build

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
SYSTEM = "/usr/aarch64-linux-gnu"  # its libraries


def digests(compiler: str, emulator: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, *flags: str) -> list[str]:
    """What the driver prints that a compiler makes, with a library of the same compiler."""
    monkeypatch.setenv("CXX", compiler)
    made = build.build(folder / "libdraftwood.so", flags, only=("generic",))
    command = [compiler, "-std=c++17", f"-I{build.HERE}", str(Path(__file__).with_name("driver.cpp")), str(made)]
    subprocess.run([*command, f"-Wl,-rpath,{folder}", "-pthread", "-o", str(folder / "driver")], check=True)
    done = subprocess.run([*emulator, str(folder / "driver")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.split()


@pytest.mark.skipif(not (shutil.which(COMPILER) and shutil.which(EMULATOR)), reason=f"there is no {COMPILER} or {EMULATOR}")
def test_arm_computes_the_bits_of_generic_on_x86(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if (here := build.compiler()) is None:
        pytest.skip("there is no C++ compiler")
    folders = [tmp_path / name for name in ("here", "arm", "contracted")]
    for folder in folders:
        folder.mkdir()
    emulator = [EMULATOR, "-L", SYSTEM]
    found = digests(here, [], folders[0], monkeypatch)
    assert len(set(found)) == len(found) == 24
    assert digests(COMPILER, emulator, folders[1], monkeypatch) == found
    # The control: Arm has fused products and sums, and a compiler that may use them computes other bits.
    assert digests(COMPILER, emulator, folders[2], monkeypatch, "-ffp-contract=fast") != found
