"""Sliding windows in OpenVINO's graphs, whose slots hold tokens in any order and are cleared away now and then."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from draftwood.runners.windows import sliding_window
from tests.runners.test_logit_identity import Walk
from tests.runners.window_walks import CLOSE, WRONG, check_beyond_the_window, window_walk
from tests.runners.zoo import WINDOW, WINDOWED, tiny, windowed

pytest.importorskip("openvino")
from draftwood.core.errors import ModelError
from draftwood.runners.openvino import memory
from draftwood.runners.openvino import runner as openvino_runner
from draftwood.runners.openvino.graph import graph_of
from draftwood.runners.openvino.runner import OpenVinoRunner

KINDS = [kind for kind in WINDOWED if kind != "gpt_oss"]  # it has experts


def walk(kind: str, lengths: list[int], *, drafts: bool = False, **settings) -> Walk:
    return window_walk(lambda model: OpenVinoRunner(model, drafts=drafts), kind, lengths, **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_trees_are_scored_as_their_paths_beyond_the_window(kind):
    check_beyond_the_window(walk(kind, [5, 20, 40, 0]))


@pytest.mark.parametrize("kind", ["mistral", "gemma3_text"])
def test_clearing_dead_slots_away_changes_nothing(kind, monkeypatch):
    monkeypatch.setattr(memory, "_PATIENCE", 4.0)
    cleared, inner = [], memory.GrowingMemory._clear
    monkeypatch.setattr(memory.GrowingMemory, "_clear", lambda self, most: (cleared.append(most), inner(self, most)))
    rows = walk(kind, [2, 26, 0])
    assert max(rows.round(nodes=14) for _ in range(5)) < CLOSE
    rows.keep([0, 2])
    assert max(rows.round(nodes=14) for _ in range(5)) < CLOSE
    assert len(cleared) > 3


@pytest.mark.parametrize("kind", ["mistral", "gemma2"])
def test_padding_tokens_of_a_draft_change_nothing(kind):
    rows = walk(kind, [27], drafts=True)
    assert max(rows.round(nodes=nodes) for nodes in (6, 5, 2, 6, 1, 3)) < CLOSE


def test_a_prompt_longer_than_one_chunk_and_bare_roots(monkeypatch):
    monkeypatch.setattr(memory, "_ROOM", 2)  # it grows
    rows = walk("gemma2", [1100], max_position_embeddings=1200, window=20)
    assert max(rows.round(nodes=nodes) for nodes in (4, 1, 1, 5, 1)) < CLOSE


@pytest.mark.parametrize("kind", KINDS)
def test_only_models_with_layers_of_both_kinds_have_two_masks(kind):
    names = {name for port in graph_of(windowed(kind)).inputs for name in port.names}
    assert ("sliding" in names) == (kind not in ("mistral", "phi3"))
    assert "mask" in names


def test_models_without_windows_have_one_mask():
    assert "sliding" not in {name for port in graph_of(tiny("llama", dtype=torch.float32)).inputs for name in port.names}


@pytest.mark.parametrize("off", [-1, 1])
@pytest.mark.parametrize("kind", ["mistral", "gemma3_text"])
def test_control_a_window_that_is_wrong_by_one(kind, off, monkeypatch):
    def used(model):
        return sliding_window(model.config)._replace(size=WINDOW + off)

    monkeypatch.setattr(openvino_runner, "used_window", used)
    monkeypatch.setattr(openvino_runner, "is_compared", lambda *_: False)  # the right window was, with this graph
    with pytest.raises(ModelError, match="scores a text differently in OpenVinoRunner"):
        OpenVinoRunner(windowed(kind))
    monkeypatch.setattr(openvino_runner, "check_scores", lambda _: None)
    assert walk(kind, [20]).round() > WRONG


def test_control_positions_that_stay_where_they_were(monkeypatch):
    """Clearing moves slots, and their positions with them."""
    monkeypatch.setattr(memory, "_PATIENCE", 4.0)
    inner = memory.GrowingMemory._clear

    def clear(self, most):
        before = self._positions.copy()
        inner(self, most)
        self._positions[:, :most] = np.roll(before, 3, axis=1)[:, :most]

    monkeypatch.setattr(memory.GrowingMemory, "_clear", clear)
    rows = walk("mistral", [26])
    assert max(rows.round(nodes=14) for _ in range(6)) > WRONG
