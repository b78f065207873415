"""How tokens are drawn from scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from draftwood.core.checks import LARGEST, factor, integer, number, setting, short_repr
from draftwood.core.errors import ConfigError
from draftwood.core.unknown import known_fields
from draftwood.grammar.grammar import Grammar

if TYPE_CHECKING:
    from draftwood.sampling.truncation import Truncation

ONLY_PYTHON = ("processors", "warpers")
"""Settings of a :class:`Sampling` that hold Python objects."""
NO_PLAIN_OPTION = ("logit_bias", "grammar", *ONLY_PYTHON)
"""Settings without a derived command-line option."""
OF_MODELS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Settings that a model's generation config may hold."""
TOP_K = 50
"""``top_k`` of a generation config that says ``do_sample`` and nothing else, as ``generate`` of ``transformers`` has it."""


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

    temperature: float = setting(1.0, "0 for the most likely text, 1 for the model's own distribution")
    top_k: int = setting(0, "keep the k most likely tokens; 0 keeps all")
    top_p: float = setting(1.0, "keep the most likely tokens that together reach this probability; 1 keeps all")
    min_p: float = setting(0.0, "drop tokens less likely than this share of the most likely one")
    repetition_penalty: float = setting(1.0, "divide the scores of tokens already in prompt or text; 1 is off")
    presence_penalty: float = setting(0.0, "subtract from the scores of tokens already generated")
    frequency_penalty: float = setting(0.0, "subtract from a token's score for every time it was generated")
    logit_bias: Mapping[int, float] | None = None
    processors: Sequence[Any] | None = None
    warpers: Sequence[Any] | None = None
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        integer("top_k", self.top_k)
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            object.__setattr__(self, name, factor(name, getattr(self, name)))  # PyTorch takes no fractions
        for name in ("presence_penalty", "frequency_penalty"):
            object.__setattr__(self, name, number(name, getattr(self, name)))
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
                from draftwood.sampling.processors import check_processors

                check_processors(found)
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise ConfigError(
                f"grammar is {short_repr(self.grammar)}: give a draftwood.Grammar, such as Grammar.regex('a+')"
            )

    def _check_bias(self) -> None:
        if self.logit_bias is not None and not isinstance(self.logit_bias, Mapping):
            raise ConfigError(f"logit_bias is {short_repr(self.logit_bias)}: map token ids to numbers, as in {{42: -5.0}}")
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
    def cuts(self) -> Truncation:
        """Top-k, top-p and min-p."""
        from draftwood.sampling.truncation import Truncation  # imports PyTorch

        return Truncation(self.top_k, self.top_p, self.min_p)

    @property
    def only_scales(self) -> bool:
        """True when nothing but the temperature changes the scores before they are truncated."""
        return not (self.looks_back or self.logit_bias)

    @property
    def looks_back(self) -> bool:
        """True when the distribution depends on the prefix of a node, not only on its scores."""
        neutral = self.repetition_penalty == 1 and self.presence_penalty == 0 and self.frequency_penalty == 0
        return not neutral or bool(self.processors) or self.warps or self.grammar is not None

    @property
    def warps(self) -> bool:
        """True when :attr:`warpers` run after the truncation."""
        return bool(self.warpers) and not self.greedy
