"""Other programs that generate. Each is opened once; one that fails is left out, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol, TypeAlias, final

from benchmarks.measure import Maker
from benchmarks.settings import ENGINES, PACKAGES, Setting
from draftwood.api import Pair
from draftwood.core.errors import install

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRIAL = 3  # tokens of each prompt in the trial of an engine


class Engine(Protocol):
    """A program with the target's weights."""

    def maker(self, setting: Setting, temperature: float, max_new_tokens: int) -> Maker:
        """A function that continues prompts."""
        ...


Open: TypeAlias = Callable[[Pair, str, Path], Engine]
"""Makes an engine of a pair for a method, with a folder for its files."""


@final
@dataclass(frozen=True, kw_only=True)
class Engines:
    """The programs that support the models, by method, and the reasons why others do not."""

    opened: dict[str, Engine] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def takes(self, setting: Setting) -> bool:
        """Whether a setting can be measured; settings without another program always can."""
        return setting.method in self.opened or setting.method not in ENGINES


@contextmanager
def engines(
    settings: Sequence[Setting],
    pair: Pair,
    temperatures: Sequence[float],
    prompt: Sequence[int],
    openers: Mapping[str, Open] | None = None,
) -> Iterator[Engines]:
    """The programs of the settings. Each first continues a prompt at every temperature, as a trial.

    Args:
        openers: replacements of the usual openers, by method.
    """
    first = {setting.method: setting for setting in reversed(settings) if setting.method in ENGINES}
    makers, found = openers or _openers(), Engines()
    with TemporaryDirectory(prefix="draftwood-bench-") as folder:
        for method, setting in first.items():
            try:
                engine = makers[method](pair, method, _below(Path(folder), method))
                for temperature in temperatures:
                    engine.maker(setting, temperature, _TRIAL)([prompt], [0])
            except ImportError as error:
                found.skipped[method] = f"not installed ({error}): {install('peers')}"
            except Exception as error:  # any error of another program: the rest is still measured
                found.skipped[method] = _reason_of(error)
            else:
                found.opened[method] = engine
        yield found


def _reason_of(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _below(folder: Path, name: str) -> Path:
    own = folder / name
    own.mkdir()
    return own


def _openers() -> dict[str, Open]:
    from benchmarks.genai import GenAI
    from benchmarks.llama_cpp import LlamaCpp
    from benchmarks.llama_wheel import LlamaWheel

    kinds: dict[str, Open] = {"llama-cpp-python": LlamaCpp, "xllamacpp": LlamaWheel, "openvino-genai": GenAI}
    return {name: kinds[package] for name, package in PACKAGES.items()}
