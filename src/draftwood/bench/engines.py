"""Other programs that generate: each is opened once, and left out with a word where that fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, final

from draftwood.api import Pair
from draftwood.bench.measure import Maker
from draftwood.bench.settings import ENGINES, Setting

if TYPE_CHECKING:
    from collections.abc import Iterator

EXTRA: Final = 'pip install "draftwood[peers]"'
_TRIAL = 3  # tokens that an engine writes before it is believed to take the model


class Engine(Protocol):
    """A program with the target's weights."""

    def maker(self, setting: Setting, temperature: float, max_new_tokens: int) -> Maker:
        """What continues prompts."""
        ...


Open: TypeAlias = Callable[[Pair, str, Path], Engine]
"""Makes an engine of a pair for a method, with a folder for its files."""


@final
@dataclass(frozen=True, kw_only=True)
class Engines:
    """Those that take the models, by method, and why others do not."""

    opened: dict[str, Engine] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


@contextmanager
def engines(
    settings: Sequence[Setting],
    pair: Pair,
    temperatures: Sequence[float],
    prompt: Sequence[int],
    openers: Mapping[str, Open] | None = None,
) -> Iterator[Engines]:
    """What the settings need; each writes a few tokens of ``prompt`` at every temperature first.

    Args:
        openers: by method, in the place of those that there are.
    """
    first = {setting.method: setting for setting in reversed(settings) if setting.method in ENGINES}
    makers, found = openers or _openers(), Engines()
    with TemporaryDirectory(prefix="draftwood-bench-") as folder:
        for method in (name for name in ENGINES if name in first):
            try:
                engine = makers[method](pair, method, _below(Path(folder), method))
                for temperature in temperatures:
                    engine.maker(first[method], temperature, _TRIAL)(prompt, 0)
            except ImportError as error:
                found.skipped[method] = f"not installed ({error}): {EXTRA}"
            except Exception as error:  # whatever a foreign program does: the others are measured all the same
                found.skipped[method] = " ".join(f"{type(error).__name__}: {error}".split())
            else:
                found.opened[method] = engine
        yield found


def _below(folder: Path, name: str) -> Path:
    own = folder / name
    own.mkdir()
    return own


def _openers() -> dict[str, Open]:
    from draftwood.bench.genai import GenAI
    from draftwood.bench.llama_cpp import LlamaCpp

    return {name: LlamaCpp if name.startswith("llama") else GenAI for name in ENGINES}
