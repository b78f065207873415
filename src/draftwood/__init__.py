"""Draftwood: faster generation with Hugging Face language models, with exactly the same text distribution.

>>> import draftwood
>>> pair = draftwood.load()                                  # the bundled pair
>>> pair.generate("Once upon a time", seed=1).text           # doctest: +SKIP
"""

from __future__ import annotations

TYPE_CHECKING = False  # what the command imports before it can catch Ctrl-C, it imports here: next to nothing
if TYPE_CHECKING:
    from typing import Any

    from draftwood.api import Pair, load
    from draftwood.core.errors import CacheError, ConfigError, DraftwoodError, ModelError, NumericsError, PairingError
    from draftwood.core.limits import Limits
    from draftwood.core.methods import METHODS
    from draftwood.core.rounds import Piece, Round, Stats, Verdict
    from draftwood.core.settings import LoadOptions, Method
    from draftwood.core.token_logprobs import LogprobSettings, TokenLogprob
    from draftwood.core.token_texts import TokenTexts
    from draftwood.core.tree import DraftTree
    from draftwood.core.verifiers import VERIFIERS
    from draftwood.engine.decode import Decoder
    from draftwood.engine.requests import Request, Result
    from draftwood.grammar.grammar import Grammar
    from draftwood.sampling.processors import Stateless
    from draftwood.sampling.settings import Sampling
    from draftwood.trace.records import Trace
    from draftwood.trace.settings import TraceSettings
    from draftwood.translation import Translator, load_translator

__version__ = "0.1.0"
_MODULES = {
    "api": ("load", "Pair"),
    "translation": ("load_translator", "Translator"),
    "core.settings": ("LoadOptions", "Method"),
    "engine.decode": ("Decoder",),
    "engine.requests": ("Request", "Result"),
    "core.methods": ("METHODS",),
    "core.verifiers": ("VERIFIERS",),
    "grammar.grammar": ("Grammar",),
    "core.limits": ("Limits",),
    "sampling.settings": ("Sampling",),
    "core.token_logprobs": ("LogprobSettings", "TokenLogprob"),
    "core.token_texts": ("TokenTexts",),
    "sampling.processors": ("Stateless",),
    "core.tree": ("DraftTree",),
    "core.rounds": ("Piece", "Round", "Verdict", "Stats"),
    "trace.records": ("Trace",),
    "trace.settings": ("TraceSettings",),
    "core.errors": ("DraftwoodError", "ConfigError", "PairingError", "ModelError", "CacheError", "NumericsError"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "METHODS", "VERIFIERS", "CacheError", "ConfigError", "Decoder", "DraftTree", "DraftwoodError", "Grammar", "Limits",
    "LoadOptions", "LogprobSettings", "Method", "ModelError", "NumericsError", "Pair", "PairingError", "Piece", "Request",
    "Result", "Round", "Sampling", "Stateless", "Stats", "TokenLogprob", "TokenTexts", "Trace", "TraceSettings",
    "Translator", "Verdict", "__version__", "hf", "load", "load_translator",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    from importlib import import_module

    import draftwood.hardware.cores  # noqa: F401  # it measures what other processes take from here on

    if name == "hf":
        return import_module("draftwood.hf")
    if name not in _HOME:
        raise AttributeError(f"module 'draftwood' has no attribute {name!r}")
    return getattr(import_module(f"draftwood.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
