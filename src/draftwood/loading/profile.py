"""Profiles: what ``draftwood tune`` measured for a pair on this machine, and the methods that it chose.

A profile is a JSON file with a key that says what it was measured for: the two models (by their files), number format,
device, engine, processor and number of threads. It is used only where the key is the same. A profile changes the speed of
generation, never the distribution of the text.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import torch

from draftwood.core.errors import ConfigError
from draftwood.core.settings import Method
from draftwood.hardware.cores import usable_cores
from draftwood.hardware.machine import cache_folder, cpu_name
from draftwood.loading.checkpoint import folder_of
from draftwood.native.library import instruction_sets, why_missing

FORMAT = 2
_SAMPLES, _SAMPLE = 16, 4096  # samples of a weight file in its digest, and the bytes of each
_HEADER = 1 << 16  # bytes of a GGUF file that are read whole
_EIGHT = "8-bit activations "
_AGAIN = "run 'draftwood tune' again, or use --profile none"

ProfileKey = Mapping[str, Any]
"""What a profile was measured for: models, number format, device, engine and machine, as plain values."""


@final
@dataclass(frozen=True, kw_only=True)
class Profile:
    """The fastest methods of a pair.

    Attributes:
        path: the profile's file.
        profile_key: what it was measured for.
        choices: temperature -> method.
    """

    path: Path
    profile_key: ProfileKey
    choices: Mapping[float, Method]

    def choose(self, temperature: float) -> Method:
        """The method at the nearest measured temperature."""
        return self.choices[min(self.choices, key=lambda measured: (abs(measured - temperature), measured))]


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


def default_path(profile_key: ProfileKey) -> Path:
    """The path of this key's profile in the user's cache."""
    digest = hashlib.sha256(json.dumps(_comparable(profile_key), sort_keys=True).encode()).hexdigest()
    return cache_folder() / "profiles" / f"{digest[:16]}.json"


def find(wanted: str, profile_key: ProfileKey | None) -> Profile | None:
    """The profile to use, or None.

    Args:
        wanted: ``auto`` looks in the user's cache, ``none`` means no profile, anything else is the path of a file.
        profile_key: the key that the profile must have.

    Raises:
        ConfigError: the named file does not fit. For a broken profile in the cache there is a warning instead.
    """
    if wanted == "none" or (wanted == "auto" and profile_key is None):
        return None
    if wanted != "auto":
        return _fitting(Path(wanted), profile_key)
    assert profile_key is not None
    path = default_path(profile_key)
    if not path.exists():
        _warn_of_others(profile_key)
        return None
    try:
        return _fitting(path, profile_key)
    except ConfigError as error:
        warnings.warn(f"{error}. The default method is used", stacklevel=4)
        return None


def _warn_of_others(profile_key: ProfileKey) -> None:
    """Warn if this pair has a profile for another engine or another number of threads."""
    engine, machine = profile_key["engine"], profile_key["machine"]
    others: list[tuple[str, Any, Any, ProfileKey, str]] = []
    for other in ("torch", *_natives()):
        backend, bits = other.split()[0], 8 if _EIGHT in other else 16
        if engine.split()[0] != backend:
            others.append(("engine", other, engine, {**profile_key, "engine": other}, f"--backend {backend}"))
        elif other.replace(_EIGHT, "") == engine.replace(_EIGHT, ""):
            others.append(("engine", other, engine, {**profile_key, "engine": other}, f"--activations {bits}"))
    for count in range(1, usable_cores() + 1):
        there = {**machine, "threads": count}
        others.append(("threads", count, machine["threads"], {**profile_key, "machine": there}, f"--threads {count}"))
    for name, theirs, ours, other_key, option in others:
        if theirs != ours and (path := default_path(other_key)).exists():
            warnings.warn(
                f"the profile of this pair, {path}, was measured with {name} {theirs!r}, but here it is "
                f"{ours!r}, so the default method is used: {_AGAIN}, or {option}",
                stacklevel=5,
            )


def _natives() -> list[str]:
    """The native engines of this machine, by instruction set and bits of the inputs of products with codes."""
    return [] if why_missing() else [f"native {bits}{name}" for name in instruction_sets() for bits in ("", _EIGHT)]


def _fitting(path: Path, profile_key: ProfileKey | None) -> Profile:
    profile = read(path)
    if unlike := difference(profile.profile_key, profile_key):
        raise ConfigError(f"profile {path} was measured for something else: {unlike}; {_AGAIN}")
    return profile


def read(path: Path) -> Profile:
    """A profile from its file.

    Raises:
        ConfigError: the file does not exist, or is not a profile of this format.
    """
    try:
        found = json.loads(path.read_bytes())
        written = found["format"]
        if written != FORMAT:
            raise ValueError(f"its format is {written!r}, this version reads {FORMAT}")
        choices = {float(c["temperature"]): Method(**c["method"]) for c in found["choices"]}
        profile_key = found["profile_key"]
        _comparable(profile_key)
        torch.device(profile_key["device"])
        getattr(torch, profile_key["dtype"])
    except OSError as error:
        raise ConfigError(f"profile {path} cannot be read ({error.strerror or error}): {_AGAIN}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, RuntimeError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"profile {path} is not one that this 'draftwood tune' writes ({what}): {_AGAIN}") from error
    if not choices:
        raise ConfigError(f"profile {path} chooses nothing: {_AGAIN}")
    return Profile(path=path, profile_key=profile_key, choices=choices)


def why_not(profile: Profile) -> str | None:
    """The reason why a profile does not apply here; None if it applies."""
    profile_key = profile.profile_key
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


def document(profile_key: ProfileKey, choices: Mapping[float, Method], rest: Mapping[str, Any]) -> dict[str, Any]:
    """A profile as JSON values.

    Args:
        rest: other measurements to keep in the file.
    """
    return {
        "format": FORMAT,
        "profile_key": dict(profile_key),
        "choices": [{"temperature": t, "method": asdict(method)} for t, method in sorted(choices.items())],
        **rest,
    }


def difference(measured: ProfileKey, wanted: ProfileKey | None) -> str | None:
    """The first difference between a profile's key and the wanted one; None if there is none."""
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
    if Path(name).is_file():
        return {"name": str(Path(name).resolve()), "fingerprint": _digest([Path(name)])}
    folder = folder_of(name)
    if folder is None:
        return None
    digest = _digest(sorted([folder / "config.json", *folder.glob("*.safetensors")]))
    return {"name": str(folder.resolve() if Path(name).is_dir() else name), "fingerprint": digest}


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
