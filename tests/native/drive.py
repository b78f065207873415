"""A program that uses every function of a native library, compiled and run."""

import os
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from draftwood.native import build

_FOLDER = TemporaryDirectory()


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
    """The digests of what is computed with an instruction set: 56 of trees, 20 of trees of models in codes with inputs of 8
    bits, and two of all the rest. The ``part`` is all of them, ``trees`` for the first 76, or ``codes`` for the 20 alone.
    Behind texts of up to 64 tokens every node has the bits of its path; where programs are slow, of up to 16.

    Raises:
        AssertionError: with what the program says on standard error.
    """
    program, until = _program(library, tuple(flags), compiler or build.compiler()), "16" if flags or emulator else "64"
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run([*emulator, program, isa, part, until], capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.split()
