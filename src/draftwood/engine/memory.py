"""What adaptive methods have learnt about a pair on this machine, kept between processes.

A file in the user's cache holds costs and probabilities by method. Its name is that of the pair's profile, so a change of
models, number format, engine or threads begins a new one. It changes the speed of generation, never the distribution of the
text, and may be deleted at any time.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import final
from uuid import uuid4

from draftwood.core.errors import ConfigError
from draftwood.core.files import replacing
from draftwood.draft.adaptive.learnt import Knowledge
from draftwood.hardware.machine import cache_folder
from draftwood.loading.checkpoint import folder_of
from draftwood.loading.profile import ProfileKey, default_path

_LOG = logging.getLogger(__name__)
FORMAT = 3


@final
class Memory:
    """The file of a pair.

    Args:
        profile_key: what the file is for.

    Attributes:
        path: the file; it need not exist.
    """

    def __init__(self, profile_key: ProfileKey) -> None:
        self.path = cache_folder() / "learnt" / default_path(profile_key).name

    def read(self) -> dict[str, Knowledge]:
        """Name -> knowledge; empty without a file. A damaged file gives a warning."""
        return _read(self.path, "drafting learns anew, and replaces it")

    def write(self, learnt: Mapping[str, Knowledge]) -> None:
        """Replace the file as a whole; a cache that cannot be written is no error."""
        document = {"format": FORMAT, "learnt": {name: asdict(value) for name, value in learnt.items()}}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path, self.path.with_name(f"{uuid4().hex}.part")) as part:
                part.write_text(json.dumps(document), encoding="utf-8")
        except OSError as error:
            _LOG.info("%s cannot be written: %s", self.path, error)


def calibration_of(draft: str | Path | None) -> dict[str, Knowledge]:
    """What is known of a drafter's drafts before its first text, from the file ``calibration.json`` in its folder: what its
    levels bring on any machine. Their costs are those of this one."""
    folder = None if draft is None else folder_of(draft)
    return {} if folder is None else _read(folder / "calibration.json", "drafting learns from the beginning")


def _read(path: Path, otherwise: str) -> dict[str, Knowledge]:
    try:
        found = json.loads(path.read_bytes())
        if found["format"] != FORMAT:
            raise ValueError(f"its format is {found['format']!r}, this version reads {FORMAT}")
        return {str(name): Knowledge.from_json(value) for name, value in found["learnt"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError) as error:
        warnings.warn(f"{path} cannot be used ({error}): {otherwise}", stacklevel=3)
        return {}


def memory_of(profile: str, profile_key: ProfileKey | None) -> Memory | None:
    """The memory of a pair; None if its files are unknown, or the option ``profile`` is ``none``."""
    return None if profile == "none" or profile_key is None else Memory(profile_key)
