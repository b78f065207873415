"""Every constant of the adaptive tree: default, unit, meaning and origin."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, final


class Constant(NamedTuple):
    """Facts about a constant other than its default."""

    unit: str
    meaning: str
    set_by: str


def _constant(default: Any, unit: str, meaning: str, set_by: str) -> Any:
    return field(default=default, metadata={"constant": Constant(unit, meaning, set_by)})


_SIMULATOR = "simulator"
_SWEEPS = "sweeps on the bundled pair"
_DOCUMENTS = "documents written by the bundled pair"


@final
@dataclass(frozen=True, kw_only=True)
class AdaptiveSettings:
    """Constants of :class:`Controller`, :class:`CostModel`, :class:`AcceptanceModel` and :class:`PromptLookup`.

    ``docs/adaptive.md`` holds them as a table, which a test compares with this class.
    """

    nodes: int = _constant(24, "nodes", "largest tree, the root not counted", _SWEEPS)
    width: int = _constant(4, "nodes", "most nodes that a level expands", _SWEEPS)
    depth: int = _constant(8, "levels", "deepest tree", _SWEEPS)
    children: int = _constant(6, "nodes", "most children of a node", _SWEEPS)
    first_tree: float = _constant(
        0.3, "plain rounds", "cost of any tree before it is measured", "forwards of SmolLM2 on both backends"
    )
    first_node: float = _constant(
        0.05, "plain rounds", "cost of a node before it is measured", "forwards of SmolLM2 on both backends"
    )
    first_back: float = _constant(
        0.3, "plain rounds", "cost of returning to plain decoding before it is measured", "forwards of SmolLM2 on OpenVINO"
    )
    first_level: float = _constant(
        0.2, "plain rounds", "cost of a level before it is measured", "simulator: texts of 40 tokens"
    )
    first_weight: float = _constant(0.3, "observations", "weight of these first costs", "simulator: texts of 40 tokens")
    forget: float = _constant(0.97, "per round", "weight of the past in costs and speed", _SIMULATOR)
    forget_gains: float = _constant(0.9, "per level", "weight of the past in the gain of a level", _SIMULATOR)
    forget_calibration: float = _constant(
        0.99, "per round", "weight of the past in accepted over expected tokens", _SIMULATOR
    )
    calibration_prior: float = _constant(
        20.0, "tokens", "weight of a calibration of 1: a draft is not given up for a few unlucky rounds",
        "`tests/adaptive/test_controller.py`",
    )  # fmt: skip
    outlier: float = _constant(3.0, "means", "seconds above this many means count as this many", _SIMULATOR)
    prior_weight: float = _constant(3.0, "observations", "weight of a prior, and of given estimates", _SIMULATOR)
    probe_rounds: int = _constant(2, "rounds", "length of a probe, and plain rounds before the first draft", _SIMULATOR)
    probe_skip: int = _constant(1, "rounds", "plain rounds after a tree that are not timed: caches are cold", _SIMULATOR)
    probe_share: float = _constant(0.01, "share of seconds", "largest loss by probes of one kind", _SIMULATOR)
    probe_text: float = _constant(
        0.02, "share of a text's seconds", "largest expected loss of a probe", "simulator: texts of 40 tokens"
    )
    look_share: float = _constant(
        0.005, "share of a plain round", "largest cost of looking for a draft in vain, by resting in between",
        "`tests/adaptive/test_rest.py`",
    )  # fmt: skip
    rest_share: float = _constant(
        0.25, "share of rounds", "longest rest, as a share of the rounds without a tree before it",
        "`tests/adaptive/test_rest.py`",
    )  # fmt: skip
    rest_rounds: int = _constant(16, "rounds", "longest rest: a text that begins to repeat itself is noticed", "arithmetic")
    drift: float = _constant(
        0.005, "per refusal", "rise of a refused level's gain towards 1, so that it is tried again", _SIMULATOR
    )
    acceptance_start: tuple[float, float, float, float] = _constant(
        (1.0, -0.4, -3.0, 0.9), "logits", "first weights: gap, log rank, none, uncertainty", "fit on the bundled pair"
    )
    acceptance_prior: float = _constant(
        30.0, "squared gradients", "evidence behind the first weights; more makes the first steps smaller",
        "`tests/adaptive/test_acceptance.py`",
    )  # fmt: skip
    acceptance_rate: float = _constant(0.3, "logits", "AdaGrad's step size", "`tests/adaptive/test_acceptance.py`")
    lookup_forget: float = _constant(0.95, "per token", "weight of the past in lookup's hits", _DOCUMENTS)
    lookup_first: float = _constant(0.25, "probability", "first probability of a guessed token", _DOCUMENTS)
    lookup_text: float = _constant(
        2.0, "tokens", "largest weight of earlier texts in lookup's hits", "`python -m benchmarks never-slower`"
    )
    lookup_prior: float = _constant(
        6.0, "tokens", "weight of the estimate for a match shorter by one token", "`tests/adaptive/test_lookup.py`"
    )


def constants() -> dict[str, Constant]:
    """The facts about every constant, by name."""
    return {one.name: one.metadata["constant"] for one in fields(AdaptiveSettings)}
