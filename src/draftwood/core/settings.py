"""Settings of callers: loading of models, drafting and verification.

This module imports nothing heavy, since the command line derives its options from these classes before PyTorch is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, final, get_args

from draftwood.core.checks import choice, flag, integer, number, setting, short_repr
from draftwood.core.errors import ConfigError
from draftwood.core.methods import METHODS, MethodName
from draftwood.core.shapes import MAX_NODES
from draftwood.core.unknown import known_fields
from draftwood.core.verifiers import VerifierName

DTypeName: TypeAlias = Literal["auto", "float32", "bfloat16", "float16", "float64"]
Backend: TypeAlias = Literal["native", "torch"]
"""The library that runs a model."""
Weights: TypeAlias = Literal["same", "int8", "int4"]
"""Unchanged, or rounded to eight or four bits."""
BackendName: TypeAlias = Literal["auto", Backend]
"""A backend, or the choice between them."""
MAX_THREADS: Final = 1024
MAX_SEED: Final = (1 << 63) - 1
BETA: Final = 3  # beta and tau of SpecDec (arXiv 2203.16487)
TAU: Final = 1.0


@final
@known_fields("options")
@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How models are loaded and run.

    ``threads`` apply to the whole process. By default their number follows the cores that other processes leave free, from
    round to round (:mod:`draftwood.hardware.threads`). A number that you gave with ``OMP_NUM_THREADS`` or
    ``torch.set_num_threads`` is left alone.

    Raises:
        ConfigError: a value of another type, or an unknown one.
    """

    dtype: DTypeName = setting("auto", "number format of weights and arithmetic")
    device: str = setting("auto", "cpu, cuda or cuda:1; auto takes CUDA if there is one")
    backend: BackendName = setting(
        "auto",
        "library that runs the models; auto: on a CPU the native engine if it runs both models, else PyTorch",
    )
    weights: Weights = setting(
        "same", "int8 and int4 round weights to eight or four bits (native engine only), which changes the model"
    )
    activations: int = setting(
        8,
        "bits of the inputs of products with weights in codes (GGUF files, --weights; native engine only): 8, the same text "
        "on every processor, or 16, closer to the file's numbers and slower",
    )
    threads: int | None = setting(None, "threads of the library that runs the models; by default the number of free cores")
    device_map: str | Mapping[str, str | int] | None = setting(
        None,
        "spread the target over devices by accelerate: auto, balanced, balanced_low_0, sequential, or JSON such as "
        '\'{"model": 0, "lm_head": 1}\' (PyTorch only)',
    )
    trust_remote_code: bool = setting(False, "run code that comes with a model")
    profile: str = setting(
        "auto",
        "profile of 'draftwood tune': auto (the one for this pair and machine), a file, or none (without what "
        "earlier runs have learnt, too)",
    )

    def __post_init__(self) -> None:
        for name, kind in (("dtype", DTypeName), ("backend", BackendName), ("weights", Weights)):
            choice(name, getattr(self, name), get_args(kind))
        for name in ("device", "profile"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"{name} is {short_repr(getattr(self, name))}: give a text such as 'auto'")
        if integer("activations", self.activations) not in (8, 16):
            raise ConfigError(f"activations is {self.activations}: give 8 or 16")
        if self.threads is not None and integer("threads", self.threads, 1) > MAX_THREADS:
            raise ConfigError(f"threads is {self.threads}: give at most {MAX_THREADS}; more than there are cores are slower")
        flag("trust_remote_code", self.trust_remote_code)
        if self.device_map is not None:
            self._check_spread()
        if self.backend == "torch":
            check_weights(self.weights)
        if self.backend == "native" and self.dtype in ("float16", "float64"):
            raise ConfigError(
                f"dtype {self.dtype} is impossible with --backend native: use float32 or bfloat16, or --backend torch"
            )

    def _check_spread(self) -> None:
        """Raise a ConfigError for options that a target over several devices cannot have."""
        for name, given, allowed, why in (
            ("backend", self.backend, ("auto", "torch"), "PyTorch runs a divided target"),
            ("device", self.device, ("auto",), "the map names them"),
        ):
            if given not in allowed:
                raise ConfigError(f"{name} {given!r} is impossible with device_map: {why}, so leave {name} out")
        if self.weights != "same":
            raise ConfigError(f"weights {self.weights!r} are impossible with device_map: leave one of them out")


def check_weights(weights: Weights) -> None:
    """Raise a ConfigError for weights that the native engine alone has."""
    if weights != "same":
        raise ConfigError(f"weights {weights!r} need the native engine: leave --backend out, or leave --weights out")


_WITH_NODES: Final = [spec.name for spec in METHODS.values() if spec.takes_nodes]


@final
@known_fields("method")
@dataclass(frozen=True, kw_only=True)
class Method:
    """A drafting method and its verifier.

    Attributes:
        method, verifier: names from :data:`draftwood.METHODS` and :data:`draftwood.VERIFIERS`, or ``auto``, which depends on
            the temperature and the models.
        shape: ``2-2-2`` is branching, ``3x5`` is width x length, ``4`` is the length of a chain.
        nodes: the node budget of a tree; without budget and shape, a shared-noise tree grows as far as it pays.
        beta, tau: verifier ``tolerance`` keeps tokens among the target's ``beta`` best and within ``tau`` nats of the best,
            at temperature 0. Either setting selects that verifier, and the text may then differ from the target's.
    """

    method: MethodName = setting("auto", "drafting method; 'draftwood info' lists them")
    verifier: VerifierName = setting("auto", "verifier of drafts")
    shape: str | None = setting(None, "2-2-2 is branching, 3x5 width x length, 4 a chain")
    nodes: int | None = setting(None, f"node budget (methods {', '.join(_WITH_NODES)})")
    beta: int | None = setting(
        None, f"changes the text: keep drafts among the target's BETA best tokens ({BETA} if only --tau is given)"
    )
    tau: float | None = setting(
        None, f"changes the text: keep drafts within TAU nats of the best ({TAU:g} if only --beta is given)"
    )

    def __post_init__(self) -> None:
        for name, value, kind in (("method", self.method, MethodName), ("verifier", self.verifier, VerifierName)):
            choice(name, value, get_args(kind))
        if self.shape is not None and not isinstance(self.shape, str):
            raise ConfigError(f"shape is {short_repr(self.shape)}: give a text such as '4', '3x4' or '2-2-2'")
        if self.nodes is not None:
            integer("nodes", self.nodes, 1, MAX_NODES)
        if self.nodes is not None and self.method != "auto" and self.method not in _WITH_NODES:
            raise ConfigError(
                f"nodes is a budget for methods {' and '.join(map(repr, _WITH_NODES))}, but the method is "
                f"{self.method!r}: choose one of them, or leave nodes out"
            )
        if (self.beta, self.tau) != (None, None):
            check_tolerance(BETA if self.beta is None else self.beta, TAU if self.tau is None else self.tau)
            if self.verifier not in ("auto", "tolerance"):
                raise ConfigError(
                    f"beta and tau are for verifier 'tolerance', but the verifier is {self.verifier!r}: leave one out"
                )


def check_tolerance(beta: int, tau: float) -> None:
    """Check the settings of verifier ``tolerance``.

    Raises:
        ConfigError: a value out of range.
    """
    if integer("beta", beta) < 1:
        raise ConfigError(f"beta is {beta}: give 1 (the target's best token only) or more")
    if number("tau", tau) < 0:
        raise ConfigError(f"tau is {tau}: give 0 (the target's best token only) or more")
