"""What traces cost: ratios are those of the seconds."""

from __future__ import annotations

import pytest

from benchmarks.tracing.run import BARE, OFF, ON, between, within


def test_ratios_are_taken_inside_each_text():
    seconds = {BARE: [1.0, 2.0, 4.0], OFF: [1.0, 2.02, 4.0], ON: [1.1, 2.4, 4.4], "hooks": [0.0, 0.0, 0.0]}
    seconds["recorder"] = [0.1, 0.4, 0.4]
    assert between(seconds, "off") == pytest.approx((1.0, 1.0, 1.01))
    assert between(seconds, "on")[0] == pytest.approx(1.1)
    assert within(seconds, "on")[0] == pytest.approx(1.1)
    assert within(seconds, "off") == (1.0, 1.0, 1.0)
