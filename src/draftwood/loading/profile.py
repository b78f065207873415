"""The key of what is known of a pair: both models (by their files), number format, device, engine, processor and threads.

What was measured is used only where the key is the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from draftwood.hardware.machine import cpu_name
from draftwood.loading.checkpoint import folder_of
from draftwood.loading.gguf_header import parts_of
from draftwood.native.library import instruction_sets, why_missing

_SAMPLES, _SAMPLE = 16, 4096  # samples of a weight file in its digest, and the bytes of each
_HEADER = 1 << 16  # bytes of a GGUF file that are read whole
_EIGHT = "8-bit activations "

ProfileKey = Mapping[str, Any]
"""What was measured: models, number format, device, engine and machine, as plain values."""


def profile_key_of(
    target: str | Path, draft: str | Path | None, dtype: torch.dtype, device: torch.device, engine: str = "torch"
) -> ProfileKey | None:
    """The key of this pair on this machine; None if a model's files cannot be found.

    Args:
        target, draft: folders, or names of downloaded hub models.
        engine: the engine that runs them (:class:`draftwood.runners.protocols.ModelRunner`).
    """
    models = {"target": identity(target), "draft": None if draft is None else identity(draft)}
    if models["target"] is None or (draft is not None and models["draft"] is None):
        return None
    return {
        **models,
        "dtype": str(dtype).removeprefix("torch."),
        "device": device.type,
        "engine": engine,
        "machine": {
            "cpu": cpu_name(),
            "threads": torch.get_num_threads(),
            "accelerator": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        },
    }


def digest_of(profile_key: ProfileKey) -> str:
    """A digest of the values that must be equal; raises what a mapping of another shape raises."""
    return hashlib.sha256(json.dumps(_comparable(profile_key), sort_keys=True).encode()).hexdigest()[:16]


def same_models(one: ProfileKey, other: ProfileKey) -> bool:
    """Whether both keys are of the same files."""
    sides = _comparable(one), _comparable(other)
    return all(sides[0][name] == sides[1][name] for name in ("target", "draft"))


def _natives() -> list[str]:
    """The native engines of this machine, by instruction set and bits of the inputs of products with codes."""
    return [] if why_missing() else [f"native {bits}{name}" for name in instruction_sets() for bits in ("", _EIGHT)]


def why_not(profile_key: ProfileKey) -> str | None:
    """The reason why what was measured with a key does not apply here; None if it applies."""
    device, dtype = torch.device(profile_key["device"]), getattr(torch, profile_key["dtype"])
    if device.type == "cuda" and not torch.cuda.is_available():
        return "there is no CUDA here"
    engine = str(profile_key["engine"])
    if not engine.startswith("torch") and re.sub(r"int[48] ", "", engine) not in _natives():
        return f"there is no engine {engine!r} here"
    draft = profile_key["draft"]
    return difference(
        profile_key, profile_key_of(profile_key["target"]["name"], draft and draft["name"], dtype, device, engine)
    )


def difference(measured: ProfileKey, wanted: ProfileKey | None) -> str | None:
    """The first difference between the key of a measurement and the wanted one; None if there is none."""
    if wanted is None:
        return "the models' files, to compare with, cannot be found"
    theirs, ours = _comparable(measured), _comparable(wanted)
    for name in ours:
        if theirs[name] != ours[name]:
            shown = [_shown(side, name) for side in (measured, wanted)]
            files = " (the files have changed)" if shown[0] == shown[1] else ""
            return f"there {name} is {shown[0]}, here {shown[1]}{files}"
    return None


def _comparable(profile_key: ProfileKey) -> dict[str, Any]:
    """The values that must be equal. Models are compared by their digests, not by their names."""
    models = {n: None if profile_key[n] is None else str(profile_key[n]["fingerprint"]) for n in ("target", "draft")}
    machine = {n: profile_key["machine"][n] for n in ("cpu", "threads", "accelerator")}
    return {**models, **{n: profile_key[n] for n in ("dtype", "device", "engine")}, **machine}


def _shown(profile_key: ProfileKey, name: str) -> str:
    value = profile_key["machine"].get(name) if name in profile_key["machine"] else profile_key[name]
    return repr(value["name"] if isinstance(value, Mapping) else value)


def identity(name: str | Path) -> dict[str, str] | None:
    """Name and digest of a model; None if its files cannot be found.

    Args:
        name: a folder, a GGUF file, or the name of a downloaded hub model.
    """
    if not (files := _files(name)):
        return None
    return {"name": str(Path(name).resolve() if Path(name).exists() else name), "fingerprint": _digest(files)}


def _files(name: str | Path) -> list[Path]:
    """The files of a model."""
    if Path(name).is_file():
        return [part for part in parts_of(Path(name)) if part.is_file()]
    folder = folder_of(name)
    return [] if folder is None else sorted([folder / "config.json", *folder.glob("*.safetensors")])


def bits_keys(profile_key: ProfileKey) -> dict[str, list[Any]]:
    """For ``target`` and ``draft``, what the bits of their keys and values depend on. The digest of a model's files has
    samples of them, so when they were written counts too; raises an OSError if they have gone."""
    engine = re.sub(rf"({_EIGHT})\w+$", r"\1", profile_key["engine"])  # integers are the same on every instruction set
    files = [
        [side["fingerprint"], *(path.stat().st_mtime_ns for path in _files(side["name"]))]
        for name in ("target", "draft")
        if (side := profile_key[name]) is not None
    ]
    return {
        "target": [files[0], profile_key["dtype"], engine],
        "draft": [files, profile_key["dtype"], profile_key["engine"]],
    }


def _digest(paths: Sequence[Path]) -> str:
    """A digest of files: configurations whole, of weights the size, the header and some samples. Further training changes
    it. Large files are not read completely."""
    digest = hashlib.sha256()
    for path in paths:
        if not path.is_file():
            continue
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            whole = _HEADER if path.suffix == ".gguf" else size
            header = 8 + int.from_bytes(file.read(8), "little") if path.suffix == ".safetensors" else whole
            file.seek(0)
            digest.update(file.read(min(header, size)))
            for i in range(_SAMPLES):
                file.seek(size * i // _SAMPLES)
                digest.update(file.read(_SAMPLE))
    return digest.hexdigest()
