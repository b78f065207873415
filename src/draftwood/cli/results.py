"""A run and a method in a few words."""

from __future__ import annotations

from draftwood.core.methods import METHODS
from draftwood.core.rounds import Stats
from draftwood.core.settings import Method
from draftwood.draft.adaptive.budget import UNPROFITABLE
from draftwood.engine.decode import Decoder
from draftwood.hardware.cores import CoreMeter, usable_cores

_TAKEN = 0.25  # of a core, from which on a text has less than all of them
_MOST = 0.9  # of the rounds without a draft, from which on that is worth a note


def summary(stats: Stats, decoder: Decoder) -> str:
    """A run's speed, block efficiency and method in one line."""
    method = decoder.pipeline.drafter.name
    if method != "ar":
        method += f" + {decoder.pipeline.verifier.name}"
    exact = "" if decoder.pipeline.verifier.lossless else " (changes the text)"
    engine = getattr(decoder.pipeline.target, "engine", "torch")
    shared = None if (draft := decoder.pipeline.drafter.runner) is None else draft.kind.shared
    other = "" if shared is None else f", a draft of another tokenizer, by {shared:.0%} of its tokens"
    return (
        f"{stats.new_tokens} tokens in {stats.total_seconds:.2f} s: {stats.tokens_per_second:.1f} tokens/s, "
        f"block efficiency {stats.block_efficiency:.2f}, method {method}{exact} by {engine}{other}"
    )


def slowed(stats: Stats, meter: CoreMeter) -> str:
    """What made a text slow: cores that other processes took, and why the draft model was not used; empty if neither.

    Args:
        stats: those of the text.
        meter: it began with the text.
    """
    taken, none = meter.taken(), stats.undrafted.total()
    busy = f"other processes took {taken:.1f} of {usable_cores()} cores" if taken >= _TAKEN else ""
    if not stats.undrafted[UNPROFITABLE] or none < _MOST * stats.rounds:
        return busy
    what = f"{none} of {stats.rounds} rounds had no draft" if stats.drafted else "nothing was drafted"
    return "; ".join(part for part in (busy, f"{what}, as {UNPROFITABLE}") if part)


def name_of(method: Method) -> str:
    """A short name of a method with its settings."""
    spec = METHODS.get(method.method)
    grows = spec is not None and spec.grows and spec.takes_nodes and method.nodes is None
    parts = [method.method, method.shape or ("as it pays" if grows else "")]
    parts += [f"{method.nodes} nodes" if method.nodes else "", "" if method.verifier == "auto" else f"+ {method.verifier}"]
    return " ".join(part for part in parts if part)
