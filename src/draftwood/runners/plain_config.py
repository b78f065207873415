"""Configurations of models that are read without ``transformers``."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any


class PlainConfig:
    """A configuration as its file has it, without ``transformers``, which is slow to import.

    Args:
        values: its settings.
    """

    model_type = ""
    is_encoder_decoder = False

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def get_text_config(self, **_: Any) -> PlainConfig:
        """The configuration itself."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """All settings."""
        return {"model_type": self.model_type, **deepcopy(vars(self))}

    def save_pretrained(self, folder: str | Path) -> None:
        """Write ``config.json``."""
        values = {
            name: str(value).removeprefix("torch.") if name == "dtype" else value for name, value in self.to_dict().items()
        }
        text = json.dumps(values, indent=2, sort_keys=True)
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / "config.json").write_text(text + "\n", encoding="utf-8")


class PlainGeneration(PlainConfig):
    """A generation config; what it does not set is None."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> None:
            if name.startswith("_"):
                raise AttributeError(name)

    def to_diff_dict(self) -> dict[str, Any]:
        """What it sets."""
        return deepcopy(vars(self))
