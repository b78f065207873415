"""Tokenizers of folders, as ``transformers`` makes them, kept in the user's cache: its import takes longer than the rest."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from draftwood.core.files import replacing
from draftwood.hardware.machine import cache_folder, version_of
from draftwood.loading.checkpoint import CONFIG
from draftwood.loading.stored_tokenizer import NAMES, StoredTokenizer

_LOG = logging.getLogger(__name__)
_FILES: Final = (CONFIG, "*token*", "vocab*", "merges.txt", "*.model", "chat_template*", "*.tiktoken")
"""Patterns of the files that make a tokenizer."""


def kept_tokenizer(folder: Path, load: Callable[[], Any]) -> Any:
    """The tokenizer of a folder.

    Args:
        load: makes it by ``transformers``; called if these files with this version of ``transformers`` are new here, or the
            tokenizer is of a kind that is not kept.
    """
    path = cache_folder() / "tokenizers" / f"{_digest(folder)}.json"
    try:
        return _stored(json.loads(path.read_text(encoding="utf-8")), load)
    except FileNotFoundError:
        pass
    except Exception as error:  # of a damaged file, which is replaced
        _LOG.debug("%s cannot be read: %s", path, error)
    made = load()
    if (values := _values(made)) is None:
        return made
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, path.with_name(f"{path.name}.{os.getpid()}")) as part:
            part.write_text(json.dumps(values), encoding="utf-8")
    except OSError as error:
        _LOG.debug("%s cannot be written: %s", path, error)
    return _stored(values, lambda: made)


def _stored(values: dict[str, Any], whole: Callable[[], Any]) -> StoredTokenizer:
    return StoredTokenizer(Tokenizer.from_str(values["tokenizer"]), values["special"], values["template"], whole)


def _digest(folder: Path) -> str:
    found = sha256(f"{version_of('transformers')} {version_of('tokenizers')}".encode())
    for path in sorted({path for pattern in _FILES for path in folder.glob(pattern) if path.is_file()}):
        found.update(f"{path.name} {path.stat().st_size} ".encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:32]


def _values(made: Any) -> dict[str, Any] | None:
    """What a :class:`StoredTokenizer` is made of; None for a tokenizer that does more than that."""
    backend: Any = getattr(made, "backend_tokenizer", None)
    template = getattr(made, "chat_template", None)
    special = {name: token for name, token in made.special_tokens_map.items() if isinstance(token, str)}
    whole = (
        not isinstance(backend, Tokenizer)
        or not isinstance(template, str | None)
        or special.keys() - set(NAMES)
        or made.clean_up_tokenization_spaces
        or getattr(made, "split_special_tokens", False)
    )
    if whole:
        return None
    text = Tokenizer.from_str(backend.to_str())
    text.no_padding()
    text.no_truncation()
    return {"tokenizer": text.to_str(), "special": special, "template": template}
