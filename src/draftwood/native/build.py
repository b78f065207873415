"""The compiler's part: the library of this folder's C++ sources, for all instruction sets of the processor's family."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

HERE = Path(__file__).parent
LIBRARY = HERE / ("draftwood.dll" if sys.platform == "win32" else "libdraftwood.so")
VARIABLE: Final = "DRAFTWOOD_NATIVE"
COMMAND = "python -m draftwood.native.build"
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
_VNNI = (*_AVX512, "-mavx512vnni")
_BF16 = (*_VNNI, "-mavx512bf16")
_X86 = {
    "avx2": _AVX2,
    "avxvnni": (*_AVX2, "-mavxvnni"),
    "avx512": _AVX512,
    "avx512vnni": _VNNI,
    "avx512bf16": _BF16,
    "amx": (*_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8", "-DDRAFTWOOD_AMX"),
}
_ARM = {"dotprod": ("-march=armv8.2-a+dotprod",), "i8mm": ("-march=armv8.2-a+dotprod+i8mm",)}
_FAMILIES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "x86_64": _X86, "amd64": _X86, "aarch64": _ARM, "arm64": _ARM,
}  # fmt: skip
# The headers of gcc 12 for AVX-512 use what they do not set.
WARNINGS: Final = ("-Wall", "-Wextra", "-Wshadow", "-Wno-uninitialized", "-Wno-maybe-uninitialized")
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-pthread", "-ffp-contract=off", "-fvisibility=hidden", *WARNINGS)


class CompilerError(Exception):
    """There is no C++ compiler, or it cannot compile the sources."""


def digest() -> str:
    """What the sources are: a library that says another digest was made from others."""
    found = hashlib.sha256()
    for path in sorted([*HERE.glob("*.cpp"), *HERE.glob("*.h")]):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()[:16]


def why_missing(path: Path = LIBRARY) -> str | None:
    """Why a file is not the library of these sources, or cannot be loaded; None if all is well."""
    if not path.exists():
        why = f"as no C++ compiler there could, or {VARIABLE} was 0"
        return f"it was not compiled at installation, {why}: install g++ or clang++, and run '{COMMAND}'"
    try:
        _check_end(path)
        version = ctypes.CDLL(str(path)).draftwood_version
    except (OSError, AttributeError) as error:
        return f"{path} cannot be loaded ({error}): run '{COMMAND}'"
    version.restype = ctypes.c_char_p
    if (found := version().decode()) != digest():
        return f"{path} was made from other sources ({found}, not {digest()}): run '{COMMAND}'"
    return None


def _check_end(path: Path) -> None:
    """Raise an OSError if an ELF file is cut off: to load it would end the process. The table of sections is its end."""
    with path.open("rb") as file:
        head = file.read(64)
    if head[:5] != b"\x7fELF\x02":
        return  # the loaders of other formats look
    if len(head) == 64:
        (table,), (size, count) = struct.unpack_from("=Q", head, 40), struct.unpack_from("=HH", head, 58)
        if table + size * count <= path.stat().st_size:
            return
    raise OSError("the file is cut off")


def compiler() -> str | None:
    """The C++ compiler: ``CXX``, or the first that is found."""
    return next(
        (found for name in (os.environ.get("CXX"), "c++", "g++", "clang++") if name and (found := shutil.which(name))), None
    )


def build(target: Path = LIBRARY, more: Sequence[str] = (), only: Collection[str] = ()) -> Path:
    """Compile the library; ``more`` are further flags, and ``only`` the instruction sets if it does not have them all.

    Raises:
        CompilerError: with what the compiler said.
    """
    chosen = compiler()
    if chosen is None:
        raise CompilerError("no C++ compiler was found (c++, g++, clang++, or what CXX names)")
    isas: dict[str, tuple[str, ...]] = {"generic": (), **_FAMILIES.get(platform.machine().lower(), {})}
    isas = {name: flags for name, flags in isas.items() if (not only or name in only) and _knows(chosen, flags)}
    facts = [f'-DDRAFTWOOD_VERSION="{digest()}"', f"-DDRAFTWOOD_ISAS={' '.join(f'ISA({name})' for name in isas)}"]
    with tempfile.TemporaryDirectory() as folder:
        jobs = {path.stem: [str(path), *facts] for path in HERE.glob("*.cpp")}
        forward = jobs.pop("forward")
        for name, flags in isas.items():
            for numbers in ("Float32", "Portable", "Bfloat16"):
                own = [f"-DDRAFTWOOD_KERNELS=kernels_{name}_{numbers}", f"-DDRAFTWOOD_FORMAT={numbers}"]
                jobs[f"forward_{name}_{numbers}"] = [*forward, *own, *flags]
        objects = [os.path.join(folder, f"{name}.o") for name in jobs]
        commands = [
            [chosen, *_FLAGS, *more, *job, "-c", "-o", name] for job, name in zip(jobs.values(), objects, strict=True)
        ]
        with ThreadPoolExecutor(os.cpu_count()) as workers:
            list(workers.map(_run, commands))
        made = os.path.join(folder, target.name)
        _run([chosen, *_FLAGS, *more, "-shared", *objects, "-o", made])
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made, partial := target.with_suffix(f".{os.getpid()}"))
        partial.replace(target)
    return target


def _knows(chosen: str, flags: Sequence[str]) -> bool:
    """Whether a compiler has these flags: old ones lack the newest instruction sets."""
    command = [chosen, *flags, "-x", "c++", "-fsyntax-only", os.devnull]
    return subprocess.run(command, capture_output=True).returncode == 0


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CompilerError(f"{command[0]} failed: {done.stderr.strip()}")


def prepare(path: Path = LIBRARY) -> str | None:
    """Compile the library unless it is there; why it is missing after all. ``DRAFTWOOD_NATIVE=0`` removes it."""
    if os.environ.get(VARIABLE) == "0":
        path.unlink(missing_ok=True)
        return f"{VARIABLE} is 0"
    try:
        if why_missing(path) is not None:
            if compiler() is not None:
                print("Compiling the native engine (less than a minute) ...", file=sys.stderr)
            build(path)
    except (CompilerError, OSError) as error:
        return str(error)
    return None


if __name__ == "__main__":
    if (_reason := prepare()) is not None:
        sys.exit(f"Draftwood has no native engine: {_reason}")
