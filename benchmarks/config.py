"""Settings of a benchmark run. Command-line options are derived from these; defaults exist only here."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal, final

from benchmarks.lists import chosen, listed, whole_numbers
from benchmarks.settings import METHODS
from draftwood.core.errors import ConfigError
from draftwood.core.settings import Backend, Weights

PresetName = Literal["peers", "all-peers"]
DTypeName = Literal["auto", "float32", "bfloat16", "float16", "float64"]
BackendName = Literal["native", "torch", "both"]


@final
@dataclass(frozen=True, kw_only=True)
class Scale:
    """The amount of measurements.

    Attributes:
        repeats: how often every setting continues every prompt.
        prompts_per_source: prompts taken from each source.
        max_new_tokens: the longest continuation.
        temperatures: each is measured with every setting.
        tested: whether sampled texts are tested against the target's distribution; it costs one forward per text.
    """

    repeats: int
    prompts_per_source: int
    max_new_tokens: int
    temperatures: tuple[float, ...]
    tested: bool = False


SCALES: dict[PresetName, Scale] = {
    "peers": Scale(repeats=5, prompts_per_source=4, max_new_tokens=128, temperatures=(0.0, 1.0)),
    "all-peers": Scale(repeats=5, prompts_per_source=4, max_new_tokens=128, temperatures=(0.0, 1.0), tested=True),
}


@final
@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """The methods, models, prompts and output of a benchmark.

    Raises:
        ConfigError: a value out of range, an unknown method, two sources of prompts.
    """

    preset: PresetName = field(
        default="peers",
        metadata={
            "help": "peers: equally many shapes of every method, and transformers; all-peers: OpenVINO GenAI and llama.cpp "
            "too, and a test of the sampled texts' distribution"
        },
    )
    target: str | None = field(
        default=None, metadata={"help": "target model, a folder or a hub name; the bundled pair without it"}
    )
    draft: str | None = field(default=None, metadata={"help": "draft model, a folder or a hub name"})
    dtype: DTypeName = field(default="auto", metadata={"help": "number format of weights and arithmetic, on both sides"})
    device: str = field(default="auto", metadata={"help": "cpu, cuda or cuda:1; auto takes CUDA if there is one"})
    backend: BackendName = field(default="torch", metadata={"help": "what runs our side; transformers' own side is PyTorch"})
    data: Path | None = field(default=None, metadata={"help": "folder with held-out text, NAME.val.txt or NAME.val.txt.xz"})
    prompts: Path | None = field(
        default=None,
        metadata={"help": "JSON lines with 'prompt' and, if there are several sources, 'source'; or a folder of such files"},
    )
    chat: bool = field(default=False, metadata={"help": "prompts are messages, put into the target's chat template"})
    prompt_tokens: int = field(default=24, metadata={"help": "tokens of a held-out document that become a prompt"})
    batch: str = field(
        default="1", metadata={"help": "texts that are continued together, of one source; comma-separated, such as 1,4"}
    )
    repeats: int | None = field(
        default=None, metadata={"help": "repeats of every setting on every prompt; by default the preset's"}
    )
    prompts_per_source: int | None = field(
        default=None, metadata={"help": "prompts of each source; by default the preset's"}
    )
    skip_prompts: int = field(default=0, metadata={"help": "held-out documents of each source that are passed over first"})
    max_new_tokens: int | None = field(
        default=None, metadata={"help": "longest continuation in tokens; by default the preset's"}
    )
    temperatures: str | None = field(
        default=None, metadata={"help": "comma-separated, for example 0,0.6,1; by default the preset's"}
    )
    methods: str | None = field(
        default=None, metadata={"help": f"measure only these, comma-separated: {', '.join(METHODS)}"}
    )
    seed: int = field(default=0, metadata={"help": "seed of the texts and of the order of the settings"})
    output: Path = field(default=Path("draftwood-bench"), metadata={"help": "folder for bench.json and bench.md"})

    def __post_init__(self) -> None:
        for name in ("repeats", "prompts_per_source", "max_new_tokens", "prompt_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}: give 1 or more")
        if self.skip_prompts < 0:
            raise ConfigError(f"skip_prompts is {self.skip_prompts}: give 0 or more")
        if self.skip_prompts and self.data is None:
            raise ConfigError("skip_prompts passes over held-out documents: give --data")
        if self.chat and self.data is not None:
            raise ConfigError("chat puts prompts into a chat template, but data gives beginnings of texts: give --prompts")
        if self.data is not None and self.prompts is not None:
            raise ConfigError("data and prompts were both given: take the prompts from one of them")
        self.scale()
        self.method_names()
        self.batch_sizes()

    def backends(self) -> tuple[Backend, ...]:
        """The backends of Draftwood, in order."""
        return backends(self.backend)

    def scale(self) -> Scale:
        """The preset's scale with the given options."""
        scale = SCALES[self.preset]
        for name in ("repeats", "prompts_per_source", "max_new_tokens"):
            if (value := getattr(self, name)) is not None:
                scale = replace(scale, **{name: value})
        if self.temperatures is not None:
            scale = replace(scale, temperatures=listed("temperatures", self.temperatures, _temperature))
        return scale

    def method_names(self) -> tuple[str, ...] | None:
        """The methods to keep; None for all of the preset's."""
        return None if self.methods is None else chosen("methods", self.methods, METHODS)

    def batch_sizes(self) -> tuple[int, ...]:
        """Texts of a batch, smallest first."""
        return tuple(sorted(whole_numbers("batch", self.batch, minimum=1, example="1,4")))


@final
@dataclass(frozen=True, kw_only=True)
class DivergenceConfig:
    """Which file is compared, on which texts, and where the result goes; raises a ConfigError for a value out of range."""

    target: str = field(default="smollm2", metadata={"help": "a GGUF file in codes, or a short name"})
    data: Path = field(
        default=Path("examples/texts"), metadata={"help": "folder with held-out text, NAME.val.txt or NAME.val.txt.xz"}
    )
    pieces: int = field(default=8, metadata={"help": "pieces of each text"})
    tokens: int = field(default=256, metadata={"help": "tokens of a piece"})
    output: Path = field(default=Path("draftwood-bench"), metadata={"help": "folder for divergence.json and divergence.md"})

    dtype: ClassVar[DTypeName] = "auto"
    device: ClassVar[str] = "cpu"
    draft: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.pieces < 1 or self.tokens < 2:
            raise ConfigError(f"pieces is {self.pieces} and tokens {self.tokens}: give 1 or more, and 2 or more")


@final
@dataclass(frozen=True, kw_only=True)
class InflateConfig:
    """Which model is grown, how far, and where it goes.

    Raises:
        ConfigError: a value out of range.
    """

    target: str | None = field(
        default=None, metadata={"help": "Llama model to grow, a folder or a hub name; the bundled target without it"}
    )
    draft: str | None = field(
        default=None, metadata={"help": "its draft model, which is copied; that of the bundled pair goes with its target"}
    )
    parameters: str = field(default="110M", metadata={"help": "parameters of the copy, such as 110M, 410M or 1B"})
    context: int | None = field(
        default=None, metadata={"help": "positions of the copies in tokens; by default those of the models"}
    )
    seed: int = field(default=0, metadata={"help": "seed of the weights that do not matter"})
    out: Path = field(default=Path("draftwood-inflated"), metadata={"help": "folder for the folders target and draft"})

    def __post_init__(self) -> None:
        self.count()
        if self.context is not None and self.context < 1:
            raise ConfigError(f"context is {self.context}: give 1 or more")

    def count(self) -> int:
        """The parameters as a number."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMB]?)", self.parameters)
        found = round(float(match[1]) * {"": 1, "k": 1e3, "M": 1e6, "B": 1e9}[match[2]]) if match else 0
        if found < 1:
            raise ConfigError(f"parameters is {self.parameters!r}: give a number such as 110M, 1B or 110000000")
        return found


@final
@dataclass(frozen=True, kw_only=True)
class CostConfig:
    """Which forwards are timed, and where the result goes.

    Raises:
        ConfigError: a value out of range.
    """

    target: str | None = field(default=None, metadata={"help": "a folder or a hub name; the bundled pair without it"})
    dtype: DTypeName = field(default="auto", metadata={"help": "number format of weights and arithmetic"})
    device: str = field(default="auto", metadata={"help": "cpu, cuda or cuda:1; auto takes CUDA if there is one"})
    backend: BackendName = field(default="torch", metadata={"help": "what runs the model"})
    weights: tuple[Weights, ...] = field(
        default=(), metadata={"help": "also time quantized weights, int8 or int4, natively; may be given several times"}
    )
    activations: tuple[int, ...] = field(
        default=(8,), metadata={"help": "bits of the inputs of products with codes, 8 or 16; may be given several times"}
    )
    prompt: int = field(default=0, metadata={"help": "also time the reading of a prompt of so many tokens"})
    llama_cpp: bool = field(
        default=False,
        metadata={"help": "also time a token and the prompt in llama.cpp (xllamacpp), which reads the GGUF file"},
    )
    tokens: tuple[int, ...] = field(
        default=(1, 2, 4, 8, 16, 32, 64), metadata={"help": "tokens of a forward; may be given several times"}
    )
    context: tuple[int, ...] = field(
        default=(256,), metadata={"help": "tokens before those of the forward; may be given several times"}
    )
    repeats: int = field(default=15, metadata={"help": "forwards of every size"})
    output: Path = field(default=Path("draftwood-bench"), metadata={"help": "folder for cost.json and cost.md"})

    draft: ClassVar[None] = None  # only the target is timed

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise ConfigError(f"repeats is {self.repeats}: give 1 or more")
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


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ConfigError(f"temperatures holds {text!r}: give numbers of 0 or more, for example 0,0.6,1")
    return value
