"""The constants of the adaptive tree. Units, meanings and origins are the table of ``docs/adaptive.md``; a test compares."""

from __future__ import annotations

from typing import Final

NODES: Final = 24
WIDTH: Final = 4
DEPTH: Final = 8
CHILDREN: Final = 6
FIRST_TREE: Final = 0.3
FIRST_NODE: Final = 0.05
FIRST_BACK: Final = 0.3
FIRST_LEVEL: Final = 0.2
FIRST_WEIGHT: Final = 0.3
FORGET: Final = 0.97
FORGET_GAINS: Final = 0.9
FORGET_CALIBRATION: Final = 0.99
CALIBRATION_PRIOR: Final = 20.0
OUTLIER: Final = 3.0
PRIOR_WEIGHT: Final = 3.0
PROBE_ROUNDS: Final = 2
PROBE_SKIP: Final = 1
PROBE_SHARE: Final = 0.01
PROBE_LOSS: Final = 0.02
LOOK_SHARE: Final = 0.005
REST_SHARE: Final = 0.25
REST_ROUNDS: Final = 16
DRIFT: Final = 0.005
ACCEPTANCE_START: Final = (1.0, -0.4, -3.0, 0.9)
ACCEPTANCE_PRIOR: Final = 30.0
ACCEPTANCE_RATE: Final = 0.3
LOOKUP_FORGET: Final = 0.95
LOOKUP_FIRST: Final = 0.25
LOOKUP_TEXT: Final = 2.0
LOOKUP_PRIOR: Final = 6.0
