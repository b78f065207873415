"""The native library under the compiler's sanitizers, with AMX in software too, each in a process of its own."""

import os
import subprocess
from pathlib import Path

import pytest

from draftwood.native import build
from draftwood.native.library import instruction_sets
from tests.native.drive import CODES, drive

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="there is no C++ compiler")
BEST = [name for name in instruction_sets() if name != "amx"][-1]
AMX = {"amx": "trees"} if "avx512bf16" in instruction_sets() else {}  # which what surrounds its tiles needs
# What is not in trees has the same sums, so one instruction set computes it. Loops that stand for lanes are slow: the trees
# of codes call all of them.
PARTS = {"generic": "codes", **({"avx2": "trees"} if "avx2" in instruction_sets() else {}), BEST: "all", **AMX}


def flags_of(kind, name):
    """Flags of a sanitizer; skips the test if the compiler lacks its library."""
    found = subprocess.run([str(build.compiler()), f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    if not os.path.isabs(found.stdout.strip()):
        pytest.skip("the compiler has no such sanitizer")
    return [f"-fsanitize={kind}", "-fno-sanitize-recover=undefined", "-Wno-tsan"]


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """A library that checks each of its steps, and its flags: another level takes longer to compile than it saves."""
    tiles = ["-DDRAFTWOOD_EMULATED_TILES", "-include", str(Path(__file__).with_name("tiles_in_software.h"))]
    flags = [*flags_of("address,undefined", "libasan.so"), "-O0", *(tiles if AMX else ())]
    return build.build(tmp_path_factory.mktemp("checked") / "sanitized.so", flags, only=sorted(PARTS)), flags


@pytest.mark.parametrize("isa", PARTS)
def test_no_step_is_wrong_and_all_computes_the_same(checked, isa):
    made, flags = checked
    found = drive(made, isa, flags, part=PARTS[isa])
    if isa == "amx":  # which sums numbers in an order of its own
        assert found[-CODES:] == drive(build.LIBRARY, BEST, part="codes")
    else:
        assert found == drive(build.LIBRARY, isa, part=PARTS[isa])


def test_control_a_step_beyond_an_array_is_seen(checked):
    made, flags = checked
    with pytest.raises(AssertionError, match=r"AddressSanitizer: heap-buffer-overflow[^#]*#0 .*sanitized\.so"):
        drive(made, BEST, flags, part="short")


def test_threads_wait_for_one_another(tmp_path):
    flags = [*flags_of("thread", "libtsan.so"), "-O1"]
    made = build.build(tmp_path / "sanitized.so", flags, only=(BEST,))
    assert drive(made, BEST, flags, part="rest") == drive(build.LIBRARY, BEST, part="rest")
