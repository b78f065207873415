"""GGUF files that have a name: on the hub, and in the folders of Ollama and LM Studio."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from draftwood.core.errors import ModelError
from draftwood.loading.checkpoint import hub_errors
from draftwood.loading.gguf_header import PART

_LOG = logging.getLogger(__name__)
QUANTISATIONS: Final[Mapping[Any, str]] = {
    15: "Q4_K_M", 14: "Q4_K_S", 2: "Q4_0", 3: "Q4_1", 38: "MXFP4", 4: "MXFP4", 17: "Q5_K_M", 18: "Q6_K", 7: "Q8_0",
    32: "BF16", 1: "F16", 16: "Q5_K_S", 9: "Q5_1", 8: "Q5_0", 30: "IQ4_XS", 25: "IQ4_NL", 13: "Q3_K_L", 12: "Q3_K_M",
    11: "Q3_K_S", 10: "Q2_K", 0: "F32",
}  # fmt: skip
"""Names by ``general.file_type``; where a name has none, the first that there is. 4 is Ollama's."""
SIDE: Final = ("mmproj", "imatrix")  # files that are no language model
_SHOWN: Final = 12  # files that a message names
_REGISTRY: Final = "registry.ollama.ai"
_MODEL: Final = "application/vnd.ollama.image.model"


def repository(name: object) -> tuple[str, str] | None:
    """Repository and quantisation of ``owner/name-GGUF`` or ``owner/name:QUANT``; None for another name."""
    repo, colon, tag = str(name).partition(":")
    named = isinstance(name, str) and repo.count("/") == 1 and repo[0] not in "./~" and not Path(repo).exists()
    return (repo, tag) if named and (colon or "gguf" in repo.lower()) else None


def choose(files: Sequence[str], tag: str, repo: str) -> list[str]:
    """The file of a repository's model, or all of its parts in order.

    Raises:
        ModelError: there is no file of this quantisation, or none at all.
    """
    models = sorted(file for file in files if file.lower().endswith(".gguf"))
    if aside := [file for file in models if file.rpartition("/")[2].lower().startswith(SIDE)]:
        _LOG.info("%s of %r is left alone: it is for pictures or for quantising, and no language model", aside[0], repo)
    whole = {PART.sub("", file): file for file in reversed(models) if file not in aside}
    for wanted in (tag,) if tag else QUANTISATIONS.values():
        word = re.compile(rf"(^|[-._/]){re.escape(wanted)}([-./]|$)", re.IGNORECASE)
        if found := sorted((name for name in whole if word.search(name.removesuffix(".gguf"))), key=len):
            break
    else:
        found = [] if tag else sorted(whole)
    if not found:
        listed = ", ".join(list(map(os.path.basename, sorted(whole)))[:_SHOWN]) or "no GGUF file of a language model"
        raise ModelError(f"{repo!r} has no file {tag or '*.gguf'}: it has {listed}. Name one of these, as in {repo}:Q8_0")
    first = PART.search(whole[found[0]])
    return [file for file in models if PART.sub("", file) == found[0]] if first else [whole[found[0]]]


def file_here(name: object) -> Path | None:
    """The file of a name on this machine: in the hub's cache, in LM Studio's folder, or in Ollama's. None if it is not here.

    Ollama's names have a tag, as in ``qwen3:4b``.
    """
    if isinstance(name, str) and ":" in name and (found := _of_ollama(name)) is not None:
        return found
    repo, tag = repository(name) or ("", "")
    for folder in _folders(repo) if repo else ():
        files = [path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf")]
        try:
            return folder / choose(files, tag, repo)[0]
        except ModelError:
            continue
    return None


def _folders(repo: str) -> Iterator[Path]:
    """Folders in which files of a repository may be."""
    from huggingface_hub import constants

    kept = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"
    if (branch := kept / "refs" / "main").is_file():
        yield kept / "snapshots" / branch.read_text().strip()
    yield from (root / repo for root in _lm_studio())


def _lm_studio() -> list[Path]:
    return [Path.home() / ".lmstudio" / "models", Path.home() / ".cache" / "lm-studio" / "models"]


def _ollama() -> Path:
    return Path(os.environ.get("OLLAMA_MODELS") or Path.home() / ".ollama" / "models")


def _of_ollama(name: str) -> Path | None:
    model, _, tag = name.rpartition(":")
    root = _ollama() / "manifests"
    for folder in (root / _REGISTRY / "library", root / _REGISTRY, root):
        if (found := _blob(folder / model / tag)) is not None:
            return found
    return None


def _blob(manifest: Path) -> Path | None:
    """The model's file of a manifest of Ollama; None if there is none."""
    try:
        layers = json.loads(manifest.read_text(encoding="utf-8"))["layers"]
        digest = next(layer["digest"] for layer in layers if layer["mediaType"] == _MODEL)
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return None
    path = _ollama() / "blobs" / str(digest).replace(":", "-")
    return path if path.is_file() else None


def files_here() -> dict[str, str]:
    """The paths of the files on this machine, by name."""
    from huggingface_hub import constants

    hub = Path(constants.HF_HUB_CACHE)
    files = [
        (path.relative_to(hub).parts[0][8:].replace("--", "/"), path) for path in hub.glob("models--*/snapshots/*/**/*.gguf")
    ]
    files += [(path.parent.relative_to(root).as_posix(), path) for root in _lm_studio() for path in root.glob("*/*/*.gguf")]
    models = ((repo, path) for repo, path in sorted(files) if not path.name.lower().startswith(SIDE))
    found: dict[str, str] = {}
    for repo, path in models:  # of parts the first
        found.setdefault(f"{repo}:{PART.sub('', path.name)[:-5]}", str(path))
    root = _ollama() / "manifests"
    for manifest in root.glob("**/*"):
        if manifest.is_file() and (blob := _blob(manifest)) is not None:
            model = manifest.parent.relative_to(root).as_posix().removeprefix(f"{_REGISTRY}/").removeprefix("library/")
            found[f"{model}:{manifest.name}"] = str(blob)
    return found


@cache
def on_hub(repo: str, tag: str) -> list[str]:
    """The files of a name on the hub.

    Raises:
        ModelError: the hub has no such model or no such file, or it cannot be reached.
    """
    with hub_errors(repo):
        from huggingface_hub import HfApi

        files = [file.rfilename for file in HfApi().model_info(repo).siblings or ()]  # one request, which is not repeated
    return choose(files, tag, repo)


def download(repo: str, files: Sequence[str]) -> Path:
    """The first of a repository's files, all downloaded to the hub's cache; raises a ModelError as :func:`on_hub`."""
    with hub_errors(repo):
        from huggingface_hub import hf_hub_download

        first, *_ = [Path(hf_hub_download(repo, file)) for file in files]
    return first
