"""The native engine is compiled at installation where there is a compiler, and a file that is not its library is refused."""

import _ctypes
import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch

from draftwood.core.errors import ConfigError
from draftwood.native import build, library
from draftwood.runners import backends
from draftwood.runners.factory import make_runners
from tests.helpers import tiny_gpt

ROOT = Path(__file__).parents[2]
SHOWN = "#pragma GCC visibility push(default)\n"
SOURCES = {
    "api.cpp": SHOWN + 'extern "C" const char* draftwood_version() { return DRAFTWOOD_VERSION; }\n',
    "forward.cpp": "int DRAFTWOOD_KERNELS;\n",
}
needs_compiler = pytest.mark.skipif(build.compiler() is None, reason="there is no C++ compiler")


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Where the library of two small sources belongs, which are in the same folder."""
    for name, text in SOURCES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(build, "HERE", tmp_path)
    monkeypatch.delenv(build.VARIABLE, raising=False)
    return tmp_path / "libdraftwood.so"


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("CXX", "g++")


@pytest.fixture
def project(monkeypatch, tmp_path):
    """A checkout without models, with a library of other sources in it."""
    pytest.importorskip("hatchling")
    root = tmp_path / "project"
    shutil.copytree(ROOT / "src" / "draftwood", root / "src" / "draftwood", ignore=shutil.ignore_patterns("pairs", "*.so"))
    for name in (".gitignore", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, root)
    (root / "src" / "draftwood" / "native" / "libdraftwood.so").write_text("old")
    monkeypatch.chdir(root)
    monkeypatch.delenv(build.VARIABLE, raising=False)
    return root


def wheel(folder):
    """A wheel's tag, and its files of the native engine; it is unpacked into ``wheel``."""
    from hatchling.build import build_wheel

    name = build_wheel(str(folder))
    with ZipFile(folder / name) as file:
        file.extractall(folder / "wheel")
        inside = sorted(Path(one).name for one in file.namelist() if one.startswith("draftwood/native/"))
    return name.removesuffix(".whl").split("-", 2)[2], inside


def test_without_a_compiler_the_wheel_is_for_any_machine_and_says_why(project, no_compiler, tmp_path, capsys):
    tag, inside = wheel(tmp_path)
    assert tag == "py3-none-any"
    assert {"api.cpp", "engine.h", "build.py"} <= {*inside}
    assert "libdraftwood.so" not in inside
    said = "no C++ compiler was found (c++, g++, clang++, or what CXX names)"
    assert capsys.readouterr().err == f"Draftwood is installed without its native engine: {said}\n"
    code = "from draftwood.native.library import library; library()"
    place = {"env": {"PYTHONPATH": str(tmp_path / "wheel")}, "cwd": tmp_path}
    found = subprocess.run([sys.executable, "-c", code], **place, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "the native engine is missing: it was not compiled at installation" in found.stderr
    assert "run 'python -m draftwood.native.build'; or use --backend torch" in found.stderr


@pytest.mark.skipif(os.name == "nt", reason="the compiler is a shell script")
def test_with_a_compiler_the_wheel_has_the_library_and_is_for_this_machine(project, monkeypatch, tmp_path):
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho compiled > "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    tag, inside = wheel(tmp_path)
    assert tag.startswith("py3-none-")
    assert tag != "py3-none-any"
    assert {build.LIBRARY.name, "api.cpp", "engine.h"} <= {*inside}
    assert (tmp_path / "wheel" / "draftwood" / "native" / build.LIBRARY.name).read_text() == "compiled\n"
    assert (project / "src" / "draftwood" / "native" / "libdraftwood.so").read_text() == "old"
    monkeypatch.setenv(build.VARIABLE, "0")
    assert wheel(tmp_path)[0] == "py3-none-any"


@needs_compiler
def test_the_library_is_compiled_where_it_is_missing_or_the_sources_are_others(small, monkeypatch):
    assert str(build.why_missing(small)).startswith("it was not compiled at installation")
    assert (build.prepare(small), build.why_missing(small)) == (None, None)
    made = small.stat()
    assert build.prepare(small) is None
    assert small.stat() == made
    before = build.digest()
    small.with_name("engine.h").write_text("// other sources\n")
    assert f"was made from other sources ({before}, not {build.digest()}): run 'python -m " in str(build.why_missing(small))
    assert build.prepare(small) is None
    copy = shutil.copy(small, small.with_name("copy.so"))  # under the old name this process still has the old one
    assert build.why_missing(copy) is None
    small.with_name("api.cpp").write_text("nonsense\n")
    assert "nonsense" in str(build.prepare(small))
    monkeypatch.setenv(build.VARIABLE, "0")
    assert build.prepare(small) == "DRAFTWOOD_NATIVE is 0"
    assert not small.exists()


@needs_compiler
@pytest.mark.parametrize("rest", [0, 3, 40, 1000, 5000, -1])
def test_a_library_that_is_cut_off_is_refused_and_made_again(small, rest, monkeypatch):
    build.build(small)
    small.write_bytes(small.read_bytes()[:rest])
    assert f"{small} cannot be loaded (" in str(build.why_missing(small))
    monkeypatch.setattr(library, "LIBRARY", small)
    with pytest.raises(ConfigError, match=r"^the native engine is missing: .* cannot be loaded .*; or use --backend"):
        library.library.__wrapped__()
    assert (build.prepare(small), build.why_missing(small)) == (None, None)


def test_another_library_is_refused(small):
    shutil.copy(_ctypes.__file__, small)
    assert "draftwood_version" in str(build.why_missing(small))


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_what_is_there_stays(small, monkeypatch):
    assert str(build.prepare(small)).startswith("no C++ compiler was found")
    monkeypatch.setattr(build, "why_missing", lambda path: None)
    assert build.prepare(small) is None


def test_an_instruction_set_that_the_processor_lacks_is_an_error_also_where_auto_chooses(monkeypatch):
    for module in (library, backends):
        monkeypatch.setattr(module, "why_missing", lambda: None)
    monkeypatch.setattr(library, "instruction_sets", lambda: ["generic", "avx2"])
    assert library.instruction_set() == "avx2"
    monkeypatch.setenv(library.ISA_VARIABLE, "generic")
    assert library.instruction_set() == "generic"
    assert backends.why_not_native(torch.device("cpu")) is None
    monkeypatch.setenv(library.ISA_VARIABLE, "sse9")
    monkeypatch.setenv(backends.VARIABLE, "auto")
    said = "DRAFTWOOD_ISA is 'sse9': this processor has generic, avx2; set one of them, or unset it"
    with pytest.raises(ConfigError, match=said):
        make_runners(tiny_gpt(6, 1), None)
    assert backends.why_not_native(torch.device("cuda")) == "the models are on cuda"
    monkeypatch.setattr(backends, "why_missing", lambda: "it is missing")
    assert backends.why_not_native(torch.device("cpu")) == "it is missing"


@needs_compiler
def test_a_library_with_other_structures_was_built_elsewhere(monkeypatch):
    longer = type("Cuts", (library.Cuts,), {"_fields_": [("more", ctypes.c_double)]})
    monkeypatch.setattr(library, "STRUCTURES", (*library.STRUCTURES, longer))
    with pytest.raises(ConfigError, match="built elsewhere: its Cuts has 24 bytes, and 32 here; run 'python -m draftwood"):
        library.library.__wrapped__()


@needs_compiler
def test_the_sources_have_no_warnings():
    facts = [f"-DDRAFTWOOD_{fact}" for fact in ('VERSION=""', "ISAS=ISA(generic)", "KERNELS=kernels", "FORMAT=Portable")]
    command = [str(build.compiler()), "-std=c++17", *build.WARNINGS, "-Werror", "-fsyntax-only", *facts]
    subprocess.run([*command, *build.HERE.glob("*.cpp")], check=True)


def _kept_in_memory(assembly):
    """How many vectors each loop of products of a tile stores."""
    found, labels, inside = [], {}, False
    lines = assembly.splitlines()
    for number, line in enumerate(lines):
        if line[:1] not in ("\t", " ", ".", ""):
            labels, inside = {}, "4tileILi" in line
        elif label := re.match(r"(\.L\d+):", line):
            labels = {label[1]: number}
        elif inside and (jump := re.match(r"\s+j\w+\s+(\.L\d+)", line)) and jump[1] in labels:
            loop = "\n".join(lines[labels[jump[1]] : number])
            if "vfmadd" in loop:
                found.append(len(re.findall(r"\svmov\w+\s+%[yz]mm\d+, .*\(", loop)))
    return found


@needs_compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are instructions of x86")
def test_the_sums_of_a_tile_stay_in_registers(tmp_path):
    if "clang" in subprocess.run([str(build.compiler()), "--version"], capture_output=True, text=True, check=True).stdout:
        pytest.skip("the control is one of GCC, which unrolls later")
    flags = ["-std=c++17", "-O3", "-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-S", "-w"]
    facts = ["-DDRAFTWOOD_KERNELS=kernels", "-DDRAFTWOOD_FORMAT=Float32"]
    stored = {}
    for name, early in (("as it is", "#pragma GCC unroll"), ("control", "// not unrolled")):
        shutil.copytree(build.HERE, tmp_path / name, ignore=shutil.ignore_patterns("*.so"))
        gemm = tmp_path / name / "gemm.h"
        gemm.write_text(gemm.read_text().replace("#pragma GCC unroll", early))
        command = [str(build.compiler()), *flags, *facts, "-o", tmp_path / "made.s", gemm.with_name("forward.cpp")]
        subprocess.run(command, check=True)
        stored[name] = _kept_in_memory((tmp_path / "made.s").read_text())
    assert len(stored["as it is"]) > 5
    assert set(stored["as it is"]) == {0}
    assert max(stored["control"]) > 0
