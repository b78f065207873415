"""Shapes in signatures are checked while the tests run."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from jaxtyping import install_import_hook

install_import_hook(
    [f"draftwood.{part}" for part in ("noise", "tree", "sampling", "rounds", "target", "draft", "verify", "models")],
    "beartype.beartype",
)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models are faster on one thread, above all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
