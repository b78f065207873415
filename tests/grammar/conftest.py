"""Exactness is that of trees, so the adaptive tree drafts in every round."""

from tests.ladder.conftest import _drafts  # noqa: F401  # a fixture
