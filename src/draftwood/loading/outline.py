"""What the files of a model say of it, before anything of it is loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from draftwood.core.errors import ModelError
from draftwood.loading.checkpoint import CONFIG, folder_of
from draftwood.loading.gguf_header import header_of
from draftwood.loading.names import resolve
from draftwood.loading.templates import template_in, templates_of


@final
@dataclass(frozen=True, kw_only=True)
class Outline:
    """What is known of a model.

    Attributes:
        files: those on this machine.
        architecture: its name; empty where it is not known.
        length: tokens of its context; None where it is not known.
        template: its chat template; empty without one.
    """

    files: tuple[Path, ...] = ()
    architecture: str = ""
    length: int | None = None
    template: str = ""


def outline_of(name: str | Path) -> Outline:
    """What is known of a model; little of one that is not on this machine, or whose files are damaged."""
    try:
        place = resolve(name) if str(name) else ""
        if (header := header_of(place)) is not None:
            length = header.metadata.get(f"{header.architecture}.context_length")
            template, files = templates_of(header), (header.path, *(part.path for part in header.parts))
        elif place and (folder := folder_of(place)) is not None:
            files, template = tuple(sorted(path for path in folder.iterdir() if path.is_file())), template_in(folder)
            config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            length = config.get("text_config", config).get("max_position_embeddings")
        else:
            return Outline()
        architecture = str(config["model_type"]) if header is None else header.architecture
    except (OSError, ValueError, KeyError, AttributeError, ModelError):
        return Outline()
    known = length if isinstance(length, int) else None
    return Outline(files=files, architecture=architecture, length=known, template=_usual(template))


def _usual(template: Any) -> str:
    """The usual one of several templates."""
    if isinstance(template, list):
        template = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
    found = template.get("default") if isinstance(template, dict) else template
    return found if isinstance(found, str) else ""
