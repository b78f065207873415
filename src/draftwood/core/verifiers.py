"""Every verifier once: its name, what it is exact for, and where it is from. The classes are in :mod:`draftwood.verify`.

Nothing heavy is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, final

from draftwood.core.draws import ALL_DRAWS, DRAWS_WITH_LOG_PROBS, Draw

VerifierName: TypeAlias = Literal["auto", "recursive", "traversal", "coupled", "greedy", "tolerance"]
Reads: TypeAlias = Literal["probabilities", "argmax"]
"""What a verifier reads of the target: every probability, or the target's own choice alone. With the second, a seed gives
the text of plain decoding."""


@final
@dataclass(frozen=True, kw_only=True)
class VerifierSpec:
    """What is known of a verifier without running it.

    Attributes:
        name: as written on the command line.
        summary: one line for help and tables.
        source: the paper.
        draws: the ways of choosing siblings for which it is exact.
        reads: what it reads of the target.
        lossless: the text follows the target's distribution, whatever the verifier's settings are.
        greedy_only: it is for temperature 0 only.
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
