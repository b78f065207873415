"""``--compare`` is fair: both are warm, they take turns, and the spread of the runs is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from draftwood.cli.comparison import MOST, SECONDS, by_turns


def written(seconds: float, tokens: int = 10) -> Any:
    stats = SimpleNamespace(total_seconds=seconds, tokens_per_second=tokens / seconds, new_tokens=tokens)
    return SimpleNamespace(stats=stats, token_ids=[1, 2], text="a text")


class Turns:
    """Writes texts that take the given seconds, one after the other, and notes who wrote."""

    def __init__(self, ours: list[float], theirs: list[float]) -> None:
        self.order = ""
        self._left = {"m": list(ours), "p": list(theirs)}

    def by(self, who: str) -> Any:
        self.order += who
        left = self._left[who]
        return written(left.pop(0) if len(left) > 1 else left[0])

    def compared(self) -> Any:
        return by_turns(self.by("m"), lambda: self.by("m"), lambda: self.by("p"))


VERIFIER: Any = SimpleNamespace(name="coupled", lossless=True, reads="noise")


def test_both_are_warm_and_take_turns() -> None:
    turns = Turns([4.0, 0.2, 0.1], [5.0, 0.4])
    found = turns.compared()
    assert turns.order == "mp" + "pmmppmmppm"[: 2 * MOST]
    assert found.ratios == [2.0, *[4.0] * (MOST - 1)]  # the first two texts, of 4 and 5 seconds, only warmed up
    assert "By turns: 100.0 tokens/s, plain decoding 25.0. Speed-up 4.00 (2.00 to 4.00 in 5 runs of each; " in (
        found.sentences(VERIFIER, "torch.float32")
    )
    speeds = {"method_tokens_per_second": 100.0, "tokens_per_second": 25.0, "speed_up": 4.0, "speed_up_range": [2.0, 4.0]}
    assert found.to_json() == {"runs": 5, "identical": True, **speeds}


@pytest.mark.parametrize(
    ("seconds", "runs", "order"), [(0.45 * SECONDS, 1, "mppm"), (0.2 * SECONDS, 2, "mppmmp"), (SECONDS, 1, "mp")]
)
def test_long_texts_are_repeated_seldom(seconds: float, runs: int, order: str) -> None:
    turns = Turns([seconds], [seconds])
    assert len(turns.compared().ratios) == runs
    assert turns.order == order


def test_one_run_has_no_spread() -> None:
    text = Turns([SECONDS], [2 * SECONDS]).compared().sentences(VERIFIER, "torch.float32")
    assert "Speed-up 2.00 (one run of each; 'draftwood bench' takes more texts)." in text
