"""What is known of a pair on this machine, in one file: which methods are fastest, what drafts cost, and what they bring.

``draftwood tune`` writes the chosen methods; the trial at load, every text and ``tune`` write the rest. The name of the file
is a digest of its key: models, number format, device, engine, processor and threads. It changes the speed of generation,
never the distribution of the text, and may be deleted at any time.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, final
from uuid import uuid4

import torch

from draftwood.core.errors import ConfigError
from draftwood.core.files import replacing
from draftwood.core.settings import Method
from draftwood.draft.adaptive.learnt import Knowledge, value_of
from draftwood.hardware.machine import cache_folder
from draftwood.loading.checkpoint import folder_of
from draftwood.loading.profile import ProfileKey, difference, digest_of, same_models

_LOG = logging.getLogger(__name__)
FORMAT: Final = 6
_AGAIN: Final = "run 'draftwood tune' again, or use --profile none"
_OPTIONS: Final = {"engine": "--backend or --activations", "threads": "--threads"}


@final
@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of a pair.

    Attributes:
        profile_key: what it was measured for; None where the models' files are unknown.
        choices: temperature -> the fastest method; empty before ``tune``.
        learnt: method and temperature -> what its drafts cost and bring.
        path: the file that keeps what texts teach; None to keep nothing.
    """

    profile_key: ProfileKey | None = None
    choices: Mapping[float, Method] = field(default_factory=dict)
    learnt: Mapping[str, Knowledge] = field(default_factory=dict)
    path: Path | None = None

    def choose(self, temperature: float) -> Method:
        """The method at the nearest measured temperature; one without any setting before ``tune``."""
        nearest = min(self.choices, key=lambda measured: (abs(measured - temperature), measured), default=None)
        return Method() if nearest is None else self.choices[nearest]

    def keep(self, learnt: Mapping[str, Knowledge]) -> None:
        """Write what texts have taught, if that is new; a cache that cannot be written is no error."""
        if self.path is None or self.profile_key is None or learnt == self.learnt:
            return
        try:
            save(self.path, self.profile_key, learnt=learnt)
        except OSError as error:
            _LOG.info("%s cannot be written: %s; DRAFTWOOD_CACHE names another folder", self.path, error)


def default_path(profile_key: ProfileKey) -> Path:
    """The file of this key in the user's cache."""
    return cache_folder() / "known" / f"{digest_of(profile_key)}.json"


def known_of(wanted: str, profile_key: ProfileKey | None, draft: str | Path | None = None) -> Known:
    """What is known of a pair.

    Args:
        wanted: ``auto`` is the file in the user's cache, ``none`` is no file, anything else is the path of a file, whose
            methods are used.
        profile_key: the key of the pair; None if its files cannot be found.
        draft: the drafter. The file ``calibration.json`` in its folder says what its levels bring on any machine.

    Raises:
        ConfigError: the named file does not fit. For a broken one in the cache there is a warning instead.
    """
    folder = None if draft is None else folder_of(draft)
    learnt = {} if folder is None else dict(_or_nothing(folder / "calibration.json").learnt)
    choices = {} if wanted in ("auto", "none") else _fitting(Path(wanted), profile_key).choices
    if wanted == "none" or profile_key is None:
        return Known(profile_key=profile_key, choices=choices, learnt=learnt)
    path = default_path(profile_key)
    found = _or_nothing(path)
    if wanted == "auto" and not (choices := found.choices):
        _warn_of_others(profile_key)
    return Known(profile_key=profile_key, choices=choices, learnt=learnt | dict(found.learnt), path=path)


def _fitting(path: Path, profile_key: ProfileKey | None) -> Known:
    found = read(path)
    if not found.choices or found.profile_key is None:
        raise ConfigError(f"profile {path} chooses nothing: {_AGAIN}")
    if unlike := difference(found.profile_key, profile_key):
        raise ConfigError(f"profile {path} was measured for something else: {unlike}; {_AGAIN}")
    return found


def _or_nothing(path: Path) -> Known:
    """What a file says; nothing if there is none or, with a warning, if it is broken."""
    try:
        return read(path) if path.exists() else Known()
    except ConfigError as error:
        warnings.warn(f"{error}. The default method is used, and drafting learns anew", stacklevel=5)
        return Known()


def _warn_of_others(profile_key: ProfileKey) -> None:
    """Warn if this pair has chosen methods for another engine or another number of threads."""
    for path in sorted((cache_folder() / "known").glob("*.json")):
        try:
            other = read(path)
        except ConfigError:
            continue
        if not other.choices or other.profile_key is None or not same_models(other.profile_key, profile_key):
            continue
        unlike = difference(other.profile_key, profile_key) or ""
        option = next((option for name, option in _OPTIONS.items() if f"there {name} is" in unlike), None)
        if option is not None:
            warnings.warn(
                f"draftwood tune has measured this pair with something else ({path}): {unlike}, so the default method is "
                f"used: {_AGAIN}, or {option}",
                stacklevel=5,
            )


def read(path: Path) -> Known:
    """What a file says.

    Raises:
        ConfigError: the file does not exist, or is not one of this format.
    """
    return _read(path)[1]


def _read(path: Path) -> tuple[dict[str, Any], Known]:
    """A file's JSON and what it says."""
    try:
        found = json.loads(path.read_bytes())
        if (written := found["format"]) != FORMAT:
            if not found.get("choices"):  # another version's lessons are learnt anew
                return {}, Known(path=path)
            raise ValueError(f"its format is {written!r}, this version reads {FORMAT}")
        profile_key = found.get("profile_key")
        if profile_key is not None:
            digest_of(profile_key)
            torch.device(profile_key["device"])
            getattr(torch, profile_key["dtype"])
        return found, Known(
            profile_key=profile_key,
            choices={float(c["temperature"]): Method(**c["method"]) for c in found.get("choices", [])},
            learnt={str(name): value_of(Knowledge, value) for name, value in found.get("learnt", {}).items()},
            path=path,
        )
    except OSError as error:
        raise ConfigError(f"profile {path} cannot be read ({error.strerror or error}): {_AGAIN}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, RuntimeError, ConfigError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"{path} is not a file that this version writes ({what}): {_AGAIN}") from error


def save(
    path: Path,
    profile_key: ProfileKey,
    *,
    choices: Mapping[float, Method] | None = None,
    learnt: Mapping[str, Knowledge] | None = None,
    **more: Any,
) -> None:
    """Replace parts of a file; what is not given stays, where the file can be read.

    Args:
        more: other measurements to keep in the file, as JSON values.

    Raises:
        OSError: the file cannot be written.
    """
    document: dict[str, Any] = {"format": FORMAT, "profile_key": dict(profile_key)}
    try:
        if path.exists():
            document = _read(path)[0] | document
    except ConfigError:
        _LOG.info("%s cannot be read, and is replaced", path)
    if choices is not None:
        document["choices"] = [{"temperature": t, "method": asdict(method)} for t, method in sorted(choices.items())]
    if learnt is not None:
        document["learnt"] = {name: asdict(value) for name, value in learnt.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, path.with_name(f"{uuid4().hex}.part")) as part:
        part.write_text(json.dumps(document | more, indent=1), encoding="utf-8")
