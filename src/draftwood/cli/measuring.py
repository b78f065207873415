"""How the commands that measure a pair load it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwood.cli.progress import loading_libraries
from draftwood.cli.settings import Models, load_session
from draftwood.core.settings import LoadOptions
from draftwood.loading.names import check_models

if TYPE_CHECKING:
    from draftwood.api import Pair


def load_fixed(models: Models, loading: LoadOptions) -> Pair:
    """Load a pair, with one number of threads from now on. Wrong names are refused before PyTorch is imported."""
    check_models("language", models.target, models.draft)
    with loading_libraries():
        from draftwood.hardware.threads import set_threads
    set_threads(loading.threads)
    pair: Pair = load_session("language", models, loading)
    return pair
