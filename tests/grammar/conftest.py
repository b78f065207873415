"""Exactness is that of trees, so the adaptive tree drafts in every round."""

import pytest


@pytest.fixture(autouse=True)
def _drafts(always_drafts):
    """Every test of this folder uses :func:`tests.conftest.always_drafts`."""
