"""The facts about every verifier. The classes are in :mod:`draftwood.verify`; this module imports nothing heavy."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, final

from draftwood.core.draws import ALL_DRAWS, DRAWS_WITH_LOG_PROBS, Draw
from draftwood.core.errors import ConfigError, PairingError

VerifierName: TypeAlias = Literal["auto", "recursive", "traversal", "coupled", "greedy", "tolerance"]
Reads: TypeAlias = Literal["probabilities", "argmax"]
"""A verifier reads all probabilities of the target, or only the target's choice. With the second, a seed gives the text of
plain decoding."""


@final
@dataclass(frozen=True, kw_only=True)
class VerifierSpec:
    """The facts about a verifier.

    Attributes:
        name: the name on the command line.
        summary: one line for help and tables.
        source: the paper.
        draws: the ways of choosing siblings for which the verifier is exact.
        reads: what the verifier reads of the target.
        lossless: the text follows the target's distribution, under any setting of the verifier.
        greedy_only: the verifier is for temperature 0 only.
    """

    name: VerifierName
    summary: str
    source: str
    draws: frozenset[Draw]
    reads: Reads
    lossless: bool = True
    greedy_only: bool = False


_SPECS: Final = (
    VerifierSpec(
        name="recursive",
        summary="accepts or rejects child after child, from the root to a leaf",
        source="Jeon et al. 2024, arXiv 2402.14160",
        draws=DRAWS_WITH_LOG_PROBS,
        reads="probabilities",
    ),
    VerifierSpec(
        name="traversal",
        summary="accepts or rejects whole paths, from the leaves to the root",
        source="arXiv 2505.12398; block verification, arXiv 2403.10444",
        draws=DRAWS_WITH_LOG_PROBS,
        reads="probabilities",
    ),
    VerifierSpec(
        name="coupled",
        summary="follows the target's own choice, drawn with shared Gumbel noise",
        source="Daliri et al. 2024",
        draws=ALL_DRAWS,
        reads="argmax",
    ),
    VerifierSpec(
        name="greedy",
        summary="follows the target's most likely token (temperature 0)",
        source="Xia et al. 2024, arXiv 2401.07851",
        draws=ALL_DRAWS,
        reads="argmax",
        greedy_only=True,
    ),
    VerifierSpec(
        name="tolerance",
        summary="keeps tokens that are nearly the target's best: changes the text (temperature 0)",
        source="Xia et al. 2023, arXiv 2203.16487",
        draws=ALL_DRAWS,
        reads="probabilities",
        lossless=False,
        greedy_only=True,
    ),
)
VERIFIERS: Final[dict[str, VerifierSpec]] = {spec.name: spec for spec in _SPECS}


def check_pairing(verifier: str, draws: Collection[Draw], drafter: str, draw: Draw) -> None:
    """Raise a PairingError unless ``draw``, how the drafter chooses siblings, is one for which the verifier is exact."""
    if draw not in draws:
        fitting = ", ".join(sorted(draws))
        raise PairingError(
            f"verifier {verifier!r} is not exact for drafter {drafter!r}, whose siblings are drawn as {draw.value!r}; it "
            f"takes {fitting}. Use --verifier auto"
        )


def check_temperature(verifier: str, temperature: float) -> None:
    """Raise a ConfigError if a verifier for temperature 0 is given another one."""
    if temperature != 0:
        raise ConfigError(
            f"verifier {verifier!r} is for temperature 0 only, but temperature is {temperature:g}: use --verifier auto, or "
            "temperature 0"
        )
