"""What the commands that measure a pair share: their prompts, and how the models are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from draftwood.cli.progress import loading_libraries
from draftwood.cli.settings import Models, load_session
from draftwood.core.checks import setting
from draftwood.core.settings import LoadOptions
from draftwood.loading.names import check_models
from draftwood.tune.prompts import built_in

if TYPE_CHECKING:
    from draftwood.api import Pair


@final
@dataclass(frozen=True, kw_only=True)
class PromptFile:
    """The prompts that are continued."""

    input: Path | None = setting(None, "JSON lines with a prompt each, as for generate; default: built-in stories and sums")

    def prompts(self, most: int) -> list[str]:
        """The first prompts of the file, or of the built-in ones with alternating sources."""
        if self.input is None:
            return built_in(most)
        from draftwood.cli.prompts import read_texts

        return read_texts(self.input)[:most]


def load_fixed(models: Models, loading: LoadOptions) -> Pair:
    """Load a pair, with one number of threads from now on. Wrong names are refused before PyTorch is imported."""
    check_models("language", models.target, models.draft)
    with loading_libraries():
        from draftwood.hardware.threads import set_threads
    set_threads(loading.threads)
    pair: Pair = load_session("language", models, loading)
    return pair
