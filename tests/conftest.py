"""Shapes in signatures are checked while the tests run."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from jaxtyping import install_import_hook

install_import_hook(
    [f"draftwood.{part}" for part in ("noise", "tree", "sampling", "rounds", "target", "draft", "verify", "models")],
    "beartype.beartype",
)
