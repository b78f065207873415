"""The constants of the adaptive tree: unit, meaning, and in brackets what set it. A plain round is the unit of costs."""

from __future__ import annotations

from typing import Final

NODES: Final = 24  # nodes: largest tree, the root not counted (sweeps on the bundled pair)
WIDTH: Final = 4  # nodes: most nodes that a level expands (sweeps on the bundled pair)
DEPTH: Final = 8  # levels: deepest tree (sweeps on the bundled pair)
CHILDREN: Final = 6  # nodes: most children of a node (sweeps on the bundled pair)
FIRST_TREE: Final = 0.3  # plain rounds: cost of any tree before it is measured (forwards of SmolLM2)
FIRST_NODE: Final = 0.05  # plain rounds: cost of a node before it is measured (forwards of SmolLM2)
FIRST_BACK: Final = 0.3  # plain rounds: cost of returning to plain decoding before it is measured (forwards of SmolLM2)
FIRST_LEVEL: Final = 0.2  # plain rounds: cost of a level before it is measured (simulator: texts of 40 tokens)
FIRST_WEIGHT: Final = 0.3  # observations: weight of these first costs (simulator: texts of 40 tokens)
FORGET: Final = 0.97  # per round: weight of the past in costs and speed (simulator)
FORGET_GAINS: Final = 0.9  # per level: weight of the past in the gain of a level (simulator)
FORGET_CALIBRATION: Final = (
    0.99  # per round: weight of the past in accepted over expected tokens, and in lookup's hits (simulator)
)
CALIBRATION_PRIOR: Final = 20.0  # tokens: weight of a calibration of 1, for unlucky first rounds (test_controller.py)
OUTLIER: Final = 3.0  # means: seconds above this many means count as this many (simulator)
PRIOR_WEIGHT: Final = 3.0  # observations: weight of a prior, and of given estimates (simulator)
PROBE_ROUNDS: Final = 2  # rounds: length of a probe, and plain rounds before the first draft (simulator)
PROBE_SKIP: Final = 1  # rounds: plain rounds after a tree that are not timed: caches are cold (simulator)
PROBE_SHARE: Final = 0.01  # share of seconds: largest loss by probes of one kind (simulator)
PROBE_LOSS: Final = 0.02  # share of the seconds so far: largest expected loss of a probe (simulator: texts of 40 tokens)
LOOK_SHARE: Final = 0.005  # share of a plain round: largest cost of looking for a draft in vain (test_rest.py)
REST_SHARE: Final = 0.25  # share of rounds: longest rest, of those without a tree before it (test_rest.py)
REST_ROUNDS: Final = 16  # rounds: longest rest: a text that begins to repeat itself is noticed (arithmetic)
DRIFT: Final = 0.005  # per refusal: rise of a refused level's gain towards 1, so that it is tried again (simulator)
ACCEPTANCE_START: Final = (1.0, -0.4, -3.0, 0.9)  # first logits: gap, rank, none, uncertainty (fit on the bundled pair)
ACCEPTANCE_PRIOR: Final = 30.0  # squared gradients: evidence behind the first weights (test_acceptance.py)
ACCEPTANCE_RATE: Final = 0.3  # logits: AdaGrad's step size (test_acceptance.py)
LOOKUP_FORGET: Final = (
    0.95  # per token: weight of the past in the hits of the present texts (documents written by the bundled pair)
)
LOOKUP_FIRST: Final = 0.25  # probability: of a guessed token before any text (documents written by the bundled pair)
LOOKUP_PRIOR: Final = 6.0  # tokens: weight of what is known before a text in its estimates (test_lookup.py)
