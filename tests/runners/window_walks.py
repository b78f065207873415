"""Walks of models with sliding windows, for every runner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftwood.runners.protocols import Runner
from tests.runners.test_logit_identity import Walk
from tests.runners.zoo import WINDOW, plain_scores, windowed

CLOSE = 1e-4  # float32, scores of up to 10
WRONG = 1e-2  # a negative control must be at least this far off


def window_walk(runner: Callable[[Any], Runner], kind: str, lengths: list[int], **settings: Any) -> Walk:
    """A walk of a model of this kind; ``lengths`` are those of the first texts."""
    model = windowed(kind, **settings)
    return Walk(runner(model), lambda text: plain_scores(model, text), lengths)


def check_beyond_the_window(rows: Walk) -> None:
    """Trees of four rows, of which some leave and others come, are scored as their paths."""
    assert rows.runner.max_length == 256
    assert max(rows.round(), rows.round(unscored=2)) < CLOSE
    rows.keep([0, 1, 3])
    rows.add([30, 3])
    assert max(rows.round(nodes) for nodes in (12, 7, 1, 3, 7)) < CLOSE
    rows.keep([1])
    assert max(rows.round(nodes) for nodes in (12, 1, 5)) < CLOSE
    assert len(rows.texts[0]) > 3 * WINDOW
