"""A program that uses every function of a native library, compiled and run."""

import os
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from draftwood.native import build

_FOLDER = TemporaryDirectory()
CODES = 19
"""Digests of trees of models in codes."""


@cache
def _program(library, flags, compiler):
    """The program for a library, which is compiled once."""
    files = Path(__file__).with_name("driver.cpp"), build.HERE / "codes.cpp", library
    made = f"{_FOLDER.name}/{_program.cache_info().misses}"
    run_path = f"-Wl,-rpath,{library.parent}"
    command = [compiler, "-std=c++17", *flags, f"-I{build.HERE}", *map(str, files), run_path, "-pthread", "-o", made]
    subprocess.run(command, check=True)
    return made


def drive(library, isa="generic", flags=(), compiler=None, emulator=(), part="all"):
    """The digests of what is computed with an instruction set: 49 of trees, 19 of trees of models in codes with inputs of 8
    bits, and two of all the rest. The ``part`` is all of them, ``trees`` for the first 68, ``codes`` for the 19 alone, or
    ``rest``.

    Raises:
        AssertionError: with what the program says on standard error.
    """
    program = _program(library, tuple(flags), compiler or build.compiler())
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run([*emulator, program, isa, part], capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.split()
