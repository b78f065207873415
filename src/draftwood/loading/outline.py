"""What the files of a model say of it, before anything of it is loaded; its chat template among that."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from draftwood.core.errors import ConfigError, ModelError
from draftwood.loading.checkpoint import CONFIG, folder_of
from draftwood.loading.gguf_header import Header, header_of
from draftwood.loading.gguf_names import QUANTISATIONS
from draftwood.loading.names import resolve

NO_TEMPLATE: Final = (
    "has no chat template, so it is no chat model: take a chat model, or continue a text by generate or /v1/completions"
)
_CONFIG: Final = "tokenizer_config.json"
_KEY: Final = "chat_template"
_FILE: Final = "chat_template.jinja"


@final
@dataclass(frozen=True, kw_only=True)
class Outline:
    """What is known of a model.

    Attributes:
        files: those on this machine.
        architecture: its name; empty where it is not known.
        length: tokens of its context; None where it is not known.
        template: its chat template; empty without one.
        quantisation: of a GGUF file, as Ollama names it; empty for a folder.
    """

    files: tuple[Path, ...] = ()
    architecture: str = ""
    length: int | None = None
    template: str = ""
    quantisation: str = ""


def outline_of(name: str | Path) -> Outline:
    """What is known of a model; little of one that is not on this machine, or whose files are damaged."""
    try:
        place, kind = resolve(name) if str(name) else "", ""
        if (header := header_of(place)) is not None:
            length = header.value(f"{header.architecture}.context_length")
            kind = QUANTISATIONS.get(header.single("general.file_type"), "unknown")
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
    return Outline(files=files, architecture=architecture, length=known, template=_usual(template), quantisation=kind)


def _usual(template: Any) -> str:
    """The usual one of several templates."""
    if isinstance(template, list):
        template = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
    found = template.get("default") if isinstance(template, dict) else template
    return found if isinstance(found, str) else ""


def refuse_without_template(name: str | Path) -> None:
    """Refuse a model on this machine without a chat template. Other names, and damaged files, are left to loading.

    Raises:
        ConfigError: it has none.
    """
    found = outline_of(name)
    if found.files and not found.template:
        raise ConfigError(f"the target {str(name)!r} {NO_TEMPLATE}")


def templates_of(header: Header) -> Any:
    """The chat template of a GGUF file, or several by name; None without one.

    The one for tools is the usual one too if there is no other for that, as in llama.cpp.
    """
    whole = f"tokenizer.{_KEY}"
    found = {"default": header.single(whole)}
    found |= {key.removeprefix(f"{whole}."): header.single(key) for key in header.metadata if key.startswith(f"{whole}.")}
    found["default"] = found["default"] or found.get("tool_use")
    return found["default"] if len(set(found.values())) == 1 else {name: text for name, text in found.items() if text}


def template_in(folder: Path) -> Any:
    """The chat template of a folder, or several by name; None without one. Raises an error for files that cannot be read."""
    if (file := folder / _FILE).is_file():
        return file.read_text(encoding="utf-8")
    return json.loads((folder / _CONFIG).read_text(encoding="utf-8")).get(_KEY)
