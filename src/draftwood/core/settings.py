"""Settings of callers: loading of models, drafting, verification and sampling.

This module imports nothing heavy, since the command line derives its options from these classes before PyTorch is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, final, get_args

from draftwood.core.checks import LARGEST, choice, factor, flag, integer, number, shown
from draftwood.core.errors import ConfigError
from draftwood.core.grammar import Grammar
from draftwood.core.methods import METHODS, MethodName, Option, taking
from draftwood.core.shapes import MAX_NODES
from draftwood.core.unknown import known_fields
from draftwood.core.verifiers import VerifierName

DTypeName: TypeAlias = Literal["auto", "float32", "bfloat16", "float16", "float64"]
Backend: TypeAlias = Literal["torch", "openvino"]
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

    ``threads`` apply to the whole process. By default PyTorch's number follows the cores that other processes leave free,
    from round to round, and OpenVINO's is that of the moment (:mod:`draftwood.core.threads`). A number that you gave with
    ``OMP_NUM_THREADS`` or ``torch.set_num_threads`` is left alone.

    Raises:
        ConfigError: a value of another type, or an unknown one.
    """

    dtype: DTypeName = field(default="auto", metadata={"help": "number format of weights and arithmetic"})
    device: str = field(
        default="auto",
        metadata={"help": "cpu, cuda, cuda:1, or openvino:GPU (run by OpenVINO); auto takes CUDA if there is one"},
    )
    backend: BackendName = field(
        default="auto",
        metadata={
            "help": "library that runs the models; auto: OpenVINO on a CPU if installed and able to run both, else PyTorch"
        },
    )
    weights: Weights = field(
        default="same",
        metadata={"help": "int8 and int4 round weights to eight or four bits (OpenVINO only), which changes the model"},
    )
    threads: int | None = field(
        default=None, metadata={"help": "threads of PyTorch and OpenVINO; by default the number of free cores"}
    )
    trust_remote_code: bool = field(default=False, metadata={"help": "run code that comes with a model"})
    profile: str = field(
        default="auto",
        metadata={
            "help": "profile of 'draftwood tune': auto (the one for this pair and machine), a file, or none (without what "
            "earlier runs have learnt, too)"
        },
    )

    def __post_init__(self) -> None:
        for name, kind in (("dtype", DTypeName), ("backend", BackendName), ("weights", Weights)):
            choice(name, getattr(self, name), get_args(kind))
        for name in ("device", "profile"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"{name} is {shown(getattr(self, name))}: give a text such as 'auto'")
        if self.threads is not None and integer("threads", self.threads) < 1:
            raise ConfigError(f"threads is {self.threads}: give 1 or more")
        if self.threads is not None and self.threads > MAX_THREADS:
            raise ConfigError(f"threads is {self.threads}: give at most {MAX_THREADS}; more than there are cores are slower")
        flag("trust_remote_code", self.trust_remote_code)
        if self.backend == "torch":
            check_torch(self.weights, self.device)
        if self.backend == "openvino" and self.dtype in ("float16", "float64"):
            raise not_openvino(self.dtype)


def check_torch(weights: Weights, device: str) -> None:
    """Raise a ConfigError for settings that PyTorch does not have."""
    if weights != "same":
        raise ConfigError(f"weights {weights!r} are for OpenVINO: add --backend openvino, or leave --weights out")
    if device.startswith("openvino:"):
        raise ConfigError(f"device {device!r} is for OpenVINO: add --backend openvino")


def not_openvino(dtype: str) -> ConfigError:
    """The error for a number format that OpenVINO does not compute in here."""
    return ConfigError(f"dtype {dtype} is impossible with OpenVINO: use --dtype float32 or bfloat16, or --backend torch")


def _named(option: Option) -> str:
    return f"methods {', '.join(taking(option))}"


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
        min_gain: the least expected number of accepted tokens for another level, from 0 to 1, in a tree that is drawn level
            by level; by default every tree has its full shape.
        beta, tau: verifier ``tolerance`` keeps tokens among the target's ``beta`` best and within ``tau`` nats of the best,
            at temperature 0. Either setting selects that verifier, and the text may then differ from the target's.
    """

    method: MethodName = field(default="auto", metadata={"help": "drafting method; 'draftwood info' lists them"})
    verifier: VerifierName = field(default="auto", metadata={"help": "verifier of drafts"})
    shape: str | None = field(default=None, metadata={"help": "2-2-2 is branching, 3x5 width x length, 4 a chain"})
    nodes: int | None = field(default=None, metadata={"help": f"node budget ({_named('nodes')})"})
    min_gain: float | None = field(
        default=None,
        metadata={
            "help": "stop drafting where another level is expected to bring fewer accepted tokens, from 0 to 1 "
            f"({_named('min_gain')})"
        },
    )
    beta: int | None = field(
        default=None,
        metadata={
            "help": f"changes the text: keep drafts among the target's BETA best tokens ({BETA} if only --tau is given)"
        },
    )
    tau: float | None = field(
        default=None,
        metadata={"help": f"changes the text: keep drafts within TAU nats of the best ({TAU:g} if only --beta is given)"},
    )

    def __post_init__(self) -> None:
        for name, value, kind in (("method", self.method, MethodName), ("verifier", self.verifier, VerifierName)):
            choice(name, value, get_args(kind))
        if self.shape is not None and not isinstance(self.shape, str):
            raise ConfigError(f"shape is {shown(self.shape)}: give a text such as '4', '3x4' or '2-2-2'")
        if self.nodes is not None and not 1 <= integer("nodes", self.nodes) <= MAX_NODES:
            raise ConfigError(f"nodes is {self.nodes}: give a number from 1 to {MAX_NODES}")
        if self.nodes is not None and self.method != "auto" and "nodes" not in METHODS[self.method].options:
            raise ConfigError(
                f"nodes is a budget for methods {' and '.join(map(repr, taking('nodes')))}, but the method is "
                f"{self.method!r}: choose one of them, or leave nodes out"
            )
        if self.min_gain is not None and not 0 <= number("min_gain", self.min_gain) <= 1:
            raise ConfigError(
                f"min_gain is {self.min_gain}: a level brings at most one accepted token, so give a number from 0 to 1"
            )
        if self.min_gain is not None and (self.method == "auto" or "min_gain" not in METHODS[self.method].options):
            raise ConfigError(
                f"min_gain is {self.min_gain}, but method {self.method!r} does not draw its tree level by level: choose one "
                f"of {', '.join(taking('min_gain'))}, or leave it out"
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


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


ONLY_PYTHON = ("processors", "warpers")
"""Settings of a :class:`Sampling` that hold Python objects."""
NO_PLAIN_OPTION = ("logit_bias", "grammar", *ONLY_PYTHON)
"""Settings without a derived command-line option."""


@final
@known_fields("sampling")
@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are drawn from the model's scores.

    ``presence_penalty`` and ``frequency_penalty`` count the generated text only (as OpenAI and vLLM do).
    ``repetition_penalty`` counts the prompt too (as ``transformers`` does, arXiv 1909.05858). ``processors`` is any
    ``transformers.LogitsProcessorList``. They are also called for tree nodes that never become text, so each must be a
    function of one row. Classes of ``transformers`` that keep state or mix rows are refused by name, and so is any other
    class that is not declared stateless (:class:`draftwood.Stateless`). ``warpers`` are processors that run after
    temperature, top-k, top-p and min-p, such as ``transformers.TypicalLogitsWarper``; temperature 0 skips them. ``grammar``
    constrains the text: its mask follows penalties, processors and bias, and precedes the temperature and truncation.

    Raises:
        ConfigError: a value out of range.
    """

    temperature: float = _setting(1.0, "0 for the most likely text, 1 for the model's own distribution")
    top_k: int = _setting(0, "keep the k most likely tokens; 0 keeps all")
    top_p: float = _setting(1.0, "keep the most likely tokens that together reach this probability; 1 keeps all")
    min_p: float = _setting(0.0, "drop tokens less likely than this share of the most likely one")
    repetition_penalty: float = _setting(1.0, "divide the scores of tokens already in prompt or text; 1 is off")
    presence_penalty: float = _setting(0.0, "subtract from the scores of tokens already generated")
    frequency_penalty: float = _setting(0.0, "subtract from a token's score for every time it was generated")
    logit_bias: Mapping[int, float] | None = None
    processors: Sequence[Any] | None = None
    warpers: Sequence[Any] | None = None
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        integer("top_k", self.top_k)
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            factor(name, getattr(self, name))
        for name in ("presence_penalty", "frequency_penalty"):
            number(name, getattr(self, name))
        checks = [
            ("temperature", self.temperature >= 0, "0 or more"),
            ("temperature", self.temperature == 0 or self.temperature >= 1e-6, "that is 0, or 0.000001 or more"),
            ("top_k", self.top_k >= 0, "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "from 0 to 1"),
            ("repetition_penalty", self.repetition_penalty > 0, "above 0"),
        ]
        for name, good, wanted in checks:
            if not good:
                raise ConfigError(f"{name} is {getattr(self, name)}: give a number {wanted}")
        self._check_bias()
        for name, found in (("processors", self.processors), ("warpers", self.warpers)):
            if found is not None and not isinstance(found, list | tuple):
                raise ConfigError(f"{name} is {found!r}: give a list of logits processors")
            if found:
                from draftwood.core.processors import check_processors

                check_processors(found)
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise ConfigError(f"grammar is {shown(self.grammar)}: give a draftwood.Grammar, such as Grammar.regex('a+')")

    def _check_bias(self) -> None:
        if self.logit_bias is not None and not isinstance(self.logit_bias, Mapping):
            raise ConfigError(f"logit_bias is {shown(self.logit_bias)}: map token ids to numbers, as in {{42: -5.0}}")
        for token, value in (self.logit_bias or {}).items():
            integer("a token of logit_bias", token)
            if value == -math.inf:
                continue
            name = f"logit_bias of token {token}"
            if abs(number(name, value)) > LARGEST * (self.temperature or 1):
                raise ConfigError(
                    f"{name} is {value}, and temperature {self.temperature} makes it more than 32-bit floating point can "
                    "hold: give a smaller one, or -inf to forbid the token"
                )

    @property
    def greedy(self) -> bool:
        """True at temperature 0."""
        return self.temperature == 0

    @property
    def truncates(self) -> bool:
        """True when unlikely tokens become impossible."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def cuts(self) -> tuple[int, float, float]:
        """Top-k, top-p and min-p."""
        return self.top_k, self.top_p, self.min_p

    @property
    def only_scales(self) -> bool:
        """True when nothing but the temperature changes the scores."""
        return not (self.truncates or self.looks_back or self.logit_bias)

    @property
    def looks_back(self) -> bool:
        """True when the distribution depends on the prefix of a node, not only on its scores."""
        neutral = self.repetition_penalty == 1 and self.presence_penalty == 0 and self.frequency_penalty == 0
        return not neutral or bool(self.processors) or self.warps or self.grammar is not None

    @property
    def warps(self) -> bool:
        """True when :attr:`warpers` run after the truncation."""
        return bool(self.warpers) and not self.greedy
