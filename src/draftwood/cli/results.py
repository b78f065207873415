"""A run and a method in a few words."""

from __future__ import annotations

from draftwood.core.methods import METHODS
from draftwood.core.rounds import Stats
from draftwood.core.settings import Method
from draftwood.engine.decode import Decoder


def summary(stats: Stats, decoder: Decoder) -> str:
    """A run's speed, block efficiency and method in one line."""
    method = decoder.pipeline.drafter.name
    if method != "ar":
        method += f" + {decoder.pipeline.verifier.name}"
    exact = "" if decoder.pipeline.verifier.lossless else " (changes the text)"
    engine = getattr(decoder.pipeline.target, "engine", "torch")
    return (
        f"{stats.new_tokens} tokens in {stats.total_seconds:.2f} s: {stats.tokens_per_second:.1f} tokens/s, "
        f"block efficiency {stats.block_efficiency:.2f}, method {method}{exact} by {engine}"
    )


def name_of(method: Method) -> str:
    """A short name of a method with its settings."""
    spec = METHODS.get(method.method)
    grows = spec is not None and spec.grows and spec.takes_nodes and method.nodes is None
    parts = [method.method, method.shape or ("as it pays" if grows else "")]
    parts += [f"{method.nodes} nodes" if method.nodes else "", "" if method.verifier == "auto" else f"+ {method.verifier}"]
    return " ".join(part for part in parts if part)
