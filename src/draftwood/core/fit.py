"""Whether a method, its shape, its verifier and a temperature fit together, known without any model.

This module imports nothing heavy, so a command can refuse before PyTorch is imported.
"""

from __future__ import annotations

from dataclasses import replace

from draftwood.core.draft_kind import CAUSAL, DraftKind
from draftwood.core.errors import ConfigError, PairingError
from draftwood.core.methods import METHODS, MethodName
from draftwood.core.settings import BETA, TAU, Method
from draftwood.core.shapes import Branching, Shape
from draftwood.core.verifiers import VERIFIERS, check_pairing, check_temperature


def check_fit(method: Method, *, has_draft: bool, temperature: float) -> None:
    """Refuse a method that no models with, or without, a draft can run. The lengths of blocks are known to a draft only.

    Args:
        method: the caller's choice.
        has_draft: there is a draft model.
        temperature: of the sampling.

    Raises:
        ConfigError: a shape that does not fit the method, or settings for another temperature.
        PairingError: no draft model where one is needed, or a verifier that is not exact for the method.
    """
    greedy = temperature == 0
    chosen = resolve(method, CAUSAL if has_draft else None, greedy=greedy)
    shape_of(chosen)
    spec, verifier = METHODS[chosen.method], VERIFIERS[chosen.verifier]
    draw = spec.draw if spec.greedy_draw is None or not greedy else spec.greedy_draw
    check_pairing(verifier.name, verifier.draws, spec.name, draw)
    if verifier.greedy_only:
        check_temperature(verifier.name, temperature)


def shape_of(method: Method) -> Shape | None:
    """The shape of a resolved method; None for a tree that grows, or has a node budget.

    Raises:
        ConfigError: a shape that does not fit the method, or a fixed shape and a node budget.
    """
    if method.shape is None:
        return None
    shape = METHODS[method.method].parse(method.shape)
    if method.nodes is not None and isinstance(shape, Branching):
        raise ConfigError(f"nodes and the fixed shape {method.shape!r} exclude each other: give one of them")
    return shape


def check_draft_text(method: Method, draft_text: object) -> None:
    """Raise a ConfigError if a method, without ``auto``, takes no drafts from the given text."""
    if draft_text is not None and not METHODS[method.method].repeats:
        those = ", ".join(name for name, spec in METHODS.items() if spec.repeats)
        raise ConfigError(
            f"draft_text is a source of drafts for {those}, not for {method.method}: leave it out, or take one of them"
        )


def resolve(method: Method, draft: DraftKind | None, *, greedy: bool) -> Method:
    """The method with every ``auto`` replaced.

    Args:
        method: the caller's choice.
        draft: the kind of the draft model, or None.
        greedy: temperature 0.

    Raises:
        ConfigError: ``beta`` or ``tau`` above temperature 0.
        PairingError: a method that needs a draft model without one.
    """
    name: MethodName = method.method
    if name == "auto":
        # A node budget or a shape means a tree; a block draft takes a shape as a chain.
        name = "lookup" if draft is None else "block" if draft.scores_block else "adaptive"
        if draft is not None and (method.nodes is not None or (method.shape is not None and not draft.scores_block)):
            name = "shared-noise"
        if method.nodes is not None and draft is None:
            raise PairingError(
                "nodes is a budget for a draft model's trees, but there is no draft: give --draft, or leave it out"
            )
    spec = METHODS[name]
    if spec.needs != "nothing" and draft is None:
        others = " or ".join(sorted((spec.name for spec in METHODS.values() if spec.needs == "nothing"), reverse=True))
        raise PairingError(f"method {name!r} needs a draft model: give --draft, or use --method {others}")
    beta, tau, verifier = method.beta, method.tau, method.verifier
    if (beta, tau) != (None, None):
        if not greedy and verifier != "tolerance":  # the decoder refuses that one by name
            raise ConfigError(
                "beta and tau are for temperature 0, where there is a best token: leave them out, or set temperature 0"
            )
        verifier = "tolerance"
    if verifier == "auto":
        # Plain decoding is coupled too, so a seed gives the same text with and without a coupled draft.
        verifier = "greedy" if greedy else spec.verifier
    if verifier == "tolerance":
        beta, tau = BETA if beta is None else beta, TAU if tau is None else tau
    shape = method.shape or spec.shape
    return replace(method, method=name, verifier=verifier, shape=shape, beta=beta, tau=tau)
