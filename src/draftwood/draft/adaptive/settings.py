"""The constants of the adaptive tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, kw_only=True)
class AdaptiveSettings:
    """Constants of :class:`Controller`, :class:`CostModel`, :class:`AcceptanceModel` and :class:`PromptLookup`.

    Units, meanings and origins are the table of ``docs/adaptive.md``; a test compares its names and defaults with these.
    """

    nodes: int = 24
    width: int = 4
    depth: int = 8
    children: int = 6
    first_tree: float = 0.3
    first_node: float = 0.05
    first_back: float = 0.3
    first_level: float = 0.2
    first_weight: float = 0.3
    forget: float = 0.97
    forget_gains: float = 0.9
    forget_calibration: float = 0.99
    calibration_prior: float = 20.0
    outlier: float = 3.0
    prior_weight: float = 3.0
    probe_rounds: int = 2
    probe_skip: int = 1
    probe_share: float = 0.01
    probe_text: float = 0.02
    look_share: float = 0.005
    rest_share: float = 0.25
    rest_rounds: int = 16
    drift: float = 0.005
    acceptance_start: tuple[float, float, float, float] = (1.0, -0.4, -3.0, 0.9)
    acceptance_prior: float = 30.0
    acceptance_rate: float = 0.3
    lookup_forget: float = 0.95
    lookup_first: float = 0.25
    lookup_text: float = 2.0
    lookup_prior: float = 6.0
