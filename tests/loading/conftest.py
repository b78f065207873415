"""A cache of its own for every test, and a GGUF file."""

import pytest

from draftwood.loading import checkpoint
from tests.loading.gguf_files import source, write_gguf


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "cache"))
    checkpoint._check_hub.cache_clear()  # of names that tests share
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path):
    return write_gguf(tmp_path / "files" / "fox.gguf", *source())
