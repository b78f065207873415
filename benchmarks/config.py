"""Settings of a benchmark run. Command-line options are derived from these; defaults exist only here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, final

from benchmarks.lists import at_least, chosen, numbers
from benchmarks.settings import METHODS, OURS, PEERS
from draftwood.core.checks import setting
from draftwood.core.errors import ConfigError
from draftwood.core.settings import Backend, Weights

DTypeName = Literal["auto", "float32", "bfloat16", "float16", "float64"]
BackendName = Literal["native", "torch", "both"]


@dataclass(frozen=True, kw_only=True)
class Models:
    """The models that most benchmarks load."""

    target: str | None = setting(None, "target model, a folder or a hub name; the bundled pair without it")
    draft: str | None = setting(None, "draft model, a folder or a hub name")
    dtype: DTypeName = setting("auto", "number format of weights and arithmetic, of transformers too")


class _OnThisProcessor:
    """How a target is opened whose drafter, if any, comes with it."""

    dtype: ClassVar[DTypeName] = "auto"
    device: ClassVar[str] = "cpu"
    draft: ClassVar[None] = None


@final
@dataclass(frozen=True, kw_only=True)
class BenchConfig(Models):
    """The methods, models, prompts and output of a benchmark.

    Raises:
        ConfigError: a value out of range, an unknown method.
    """

    device: str = setting("auto", "cpu, cuda or cuda:1; auto takes CUDA if there is one")
    backend: BackendName = setting("torch", "what runs our side; transformers' own side is PyTorch")
    prompts: Path | None = setting(
        None, "JSON lines with 'prompt' and, if there are several sources, 'source'; or a folder of such files"
    )
    chat: bool = setting(False, "prompts are messages, put into the target's chat template")
    repeats: int = setting(5, "repeats of every setting on every prompt")
    prompts_per_source: int = setting(4, "prompts of each source")
    max_new_tokens: int = setting(128, "longest continuation in tokens")
    temperatures: str = setting("0,1", "comma-separated, for example 0,0.6,1")
    methods: str = setting(",".join(OURS + PEERS), f"comma-separated, of {', '.join(METHODS)}")
    seed: int = setting(0, "seed of the texts and of the order of the settings")
    output: Path = setting(Path("draftwood-bench"), "folder for bench.json and bench.md")

    def __post_init__(self) -> None:
        at_least(self, 1, "repeats", "prompts_per_source", "max_new_tokens")
        self.temperature_values()
        self.method_names()

    def backends(self) -> tuple[Backend, ...]:
        """The backends of Draftwood, in order."""
        return backends(self.backend)

    def temperature_values(self) -> tuple[float, ...]:
        """Temperatures, 0 or more."""
        return numbers("temperatures", self.temperatures, "0,0.6,1")

    def method_names(self) -> tuple[str, ...]:
        """The methods to measure."""
        return chosen("methods", self.methods, METHODS)


@final
@dataclass(frozen=True, kw_only=True)
class DivergenceConfig(_OnThisProcessor):
    """Which file is compared, on which texts, and where the result goes; raises a ConfigError for a value out of range."""

    target: str = setting("smollm2", "a GGUF file in codes, or a short name")
    data: Path = setting(Path("examples/texts"), "folder with held-out text, NAME.val.txt or NAME.val.txt.xz")
    pieces: int = setting(8, "pieces of each text")
    tokens: int = setting(256, "tokens of a piece")
    output: Path = setting(Path("draftwood-bench"), "folder for divergence.json and divergence.md")

    def __post_init__(self) -> None:
        at_least(self, 1, "pieces")
        at_least(self, 2, "tokens")


@final
@dataclass(frozen=True, kw_only=True)
class EditsConfig(_OnThisProcessor):
    """Which files a target edits; raises a ConfigError for a value out of range."""

    target: str = setting("smollm2", "a chat model with a drafter of its own")
    folder: Path = setting(Path("src/draftwood"), "folder with files of Python")
    files: int = setting(40, "files, of 60 to 200 lines")
    tokens: int = setting(800, "the most tokens of a new file")
    output: Path = setting(Path("draftwood-bench"), "folder for edits.json and edits.md")

    def __post_init__(self) -> None:
        at_least(self, 1, "files", "tokens")


@final
@dataclass(frozen=True, kw_only=True)
class CostConfig:
    """Which forwards are timed, and where the result goes.

    Raises:
        ConfigError: a value out of range.
    """

    target: str | None = setting(None, "a folder or a hub name; the bundled pair without it")
    dtype: DTypeName = setting("auto", "number format of weights and arithmetic")
    device: str = setting("auto", "cpu, cuda or cuda:1; auto takes CUDA if there is one")
    backend: BackendName = setting("torch", "what runs the model")
    weights: tuple[Weights, ...] = setting(
        (), "also time quantized weights, int8 or int4, natively; may be given several times"
    )
    activations: tuple[int, ...] = setting(
        (8,), "bits of the inputs of products with codes, 8 or 16; may be given several times"
    )
    prompt: int = setting(0, "also time the reading of a prompt of so many tokens")
    llama_cpp: bool = setting(False, "also time a token and the prompt in llama.cpp (xllamacpp), which reads the GGUF file")
    tokens: tuple[int, ...] = setting((1, 2, 4, 8, 16, 32, 64), "tokens of a forward; may be given several times")
    context: tuple[int, ...] = setting((256,), "tokens before those of the forward; may be given several times")
    repeats: int = setting(15, "forwards of every size")
    output: Path = setting(Path("draftwood-bench"), "folder for cost.json and cost.md")

    draft: ClassVar[None] = None  # only the target is timed

    def __post_init__(self) -> None:
        at_least(self, 1, "repeats")
        if "same" in self.weights or len(set(self.weights)) < len(self.weights):
            raise ConfigError(f"weights is {', '.join(self.weights)}: give int8, int4 or both, to be timed with the others")
        if self.prompt < 0 or not {*self.activations} or {*self.activations} - {8, 16}:
            raise ConfigError(
                f"prompt is {self.prompt} and activations {self.activations}: give 0 or more, and 8, 16 or both"
            )
        for name, values in (("tokens", self.tokens), ("context", self.context)):
            if not values or min(values) < 1 or len(set(values)) < len(values):
                raise ConfigError(f"{name} is {', '.join(map(str, values))}: give different numbers of 1 or more")

    def backends(self) -> tuple[Backend, ...]:
        """The backends of the model, in order."""
        return backends(self.backend)


def backends(name: BackendName) -> tuple[Backend, ...]:
    """One; ``both`` are PyTorch and the native engine."""
    return ("torch", "native") if name == "both" else (name,)
