"""Garbage is not collected while packages are imported, and is collected again afterwards."""

from __future__ import annotations

import gc
from importlib import import_module

import pytest

from draftwood.cli.progress import importing


@pytest.mark.parametrize("before", [True, False])
def test_collection_stops_for_an_import_and_is_as_before_afterwards(before: bool) -> None:
    try:
        (gc.enable if before else gc.disable)()
        with importing():
            assert not gc.isenabled()
        assert gc.isenabled() is before
        with pytest.raises(ModuleNotFoundError), importing():
            import_module("no_such_module")
        assert gc.isenabled() is before
    finally:
        gc.enable()
