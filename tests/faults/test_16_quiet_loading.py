"""Loading the bundled models says nothing that a user would have to wonder about."""

from __future__ import annotations

import logging

import pytest

import draftwood


def test_a_bundled_pair_is_loaded_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    transformers = logging.getLogger("transformers")
    transformers.addHandler(caplog.handler)
    try:
        for load in (draftwood.load, draftwood.load_translator):
            load(options={"backend": "torch"})
    finally:
        transformers.removeHandler(caplog.handler)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
