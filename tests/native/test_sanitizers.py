"""The native library under the compiler's sanitizers, and with AMX in software, each in a process of its own."""

import os
import subprocess
from pathlib import Path

import pytest

from draftwood.native import build
from draftwood.native.library import instruction_sets
from tests.native.drive import drive

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="there is no C++ compiler")
BEST = [name for name in instruction_sets() if name != "amx"][-1]
SANITIZERS = {"address,undefined": "libasan.so", "thread": "libtsan.so"}


def check_compiler(kind):
    """Skip the test if the compiler has no such sanitizer."""
    command = [str(build.compiler()), f"-print-file-name={SANITIZERS[kind]}"]
    if not os.path.isabs(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()):
        pytest.skip("the compiler has no such sanitizer")


@pytest.mark.parametrize("kind", SANITIZERS)
def test_no_sanitizer_finds_anything_and_all_computes_the_same(kind, tmp_path):
    check_compiler(kind)
    # For addresses a higher level takes longer to compile than it saves.
    flags = ["-O1" if kind == "thread" else "-O0", f"-fsanitize={kind}", "-fno-sanitize-recover=undefined", "-Wno-tsan"]
    sets = {BEST} if kind == "thread" else {"avx2", BEST} & {*instruction_sets()}
    made = build.build(tmp_path / "sanitized.so", flags, only=sorted(sets | {"generic"} if kind != "thread" else sets))
    for isa in sets:  # what is not in trees has the same sums, so one instruction set computes it
        part = "all" if isa == BEST else "trees"
        assert drive(made, isa, flags, part=part) == drive(build.LIBRARY, isa, part=part)
    if kind != "thread":  # loops that stand for lanes are slow: the trees of codes call all of them
        assert drive(made, "generic", flags, part="codes") == drive(build.LIBRARY, "generic", part="codes")


def test_control_a_sanitizer_sees_a_wrong_step(tmp_path, monkeypatch):
    check_compiler("address,undefined")
    folder = tmp_path / "native"
    folder.mkdir()
    right = "model_.page_numbers += head_at(layer, layer.kv_heads) - layer.keys"
    assert right in (build.HERE / "engine.cpp").read_text()
    for path in [*build.HERE.glob("*.cpp"), *build.HERE.glob("*.h")]:
        (folder / path.name).write_text(path.read_text().replace(right, "model_.page_numbers = 1"))
    version = build.digest()
    monkeypatch.setattr(build, "HERE", folder)
    monkeypatch.setattr(build, "digest", lambda: version)
    flags = ["-O0", "-fsanitize=address"]
    made = build.build(tmp_path / "wrong.so", flags, only=(BEST,))
    with pytest.raises(AssertionError, match="AddressSanitizer"):
        drive(made, BEST, flags)


@pytest.mark.skipif("avx512bf16" not in instruction_sets(), reason="what surrounds the tiles of AMX needs AVX512-BF16")
def test_what_surrounds_the_tiles_of_amx(tmp_path):
    tiles = str(Path(__file__).with_name("tiles_in_software.h"))
    flags = ["-O1", "-DDRAFTWOOD_EMULATED_TILES", "-fsanitize=address", "-include", tiles]
    found = drive(build.build(tmp_path / "tiles.so", flags, only=("amx",)), "amx", flags, part="trees")
    assert len(found) == 76
    assert found[56:] == drive(build.LIBRARY, BEST, part="codes")
