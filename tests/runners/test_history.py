"""A cleared runner keeps its memory on request: the beginning of a text that it holds is not read again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from draftwood.runners import rows
from draftwood.runners.openvino import memory
from draftwood.runners.torch_runner import TorchRunner
from tests.helpers import rows_of
from tests.runners.test_logit_identity import Walk
from tests.runners.zoo import WINDOW, WINDOWED, plain_scores, tiny

CLOSE, WRONG = 1e-4, 1e-2  # float32, scores of up to 10
LONG = {"max_position_embeddings": 256}


def openvino_runner(model: Any) -> Any:
    pytest.importorskip("openvino")
    from draftwood.runners.openvino.runner import OpenVinoRunner

    return OpenVinoRunner(model, paged=False)  # it keeps the number of new tokens, where another one may add padding


BACKENDS = [pytest.param(TorchRunner, id="torch"), pytest.param(openvino_runner, id="openvino")]


class Chat(Walk):
    """A walk over one row that begins again, with a text that shares its beginning with the last one."""

    def __init__(self, make: Callable[[Any], Any], kind: str = "llama", **settings: Any) -> None:
        model = tiny(kind, dtype=torch.float32, **settings)
        super().__init__(make(model), lambda text: plain_scores(model, text), [9])
        self.read: list[int] = []

    def _logits(self, *nodes: torch.Tensor) -> torch.Tensor:
        def count(_: Any, args: Any, named: dict[str, torch.Tensor]) -> None:
            self.read.append(named["input_ids"].shape[1])

        hook = self.runner.network.register_forward_pre_hook(count, with_kwargs=True)
        scores = super()._logits(*nodes)
        hook.remove()
        return scores

    def again(self, common: int, new: int, *, keep: bool = True) -> None:
        """Begin with ``common`` tokens of the last text and ``new`` other ones."""
        [text], [root] = self.texts, [row.tokens[-1] for row in self.rows]
        differs = [(text[common] + 1) % self.runner.vocab_size] if common < len(text) else []
        self.rows = rows_of([text[:common] + differs + self._tokens(new - len(differs))], roots=[root])
        self.runner.clear(keep=keep)
        self.runner.set_rows(self.rows)
        self.read.clear()


@pytest.mark.parametrize("make", BACKENDS)
@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma2"])
def test_the_scores_after_a_kept_beginning_are_those_of_the_model(make: Any, kind: str) -> None:
    walk = Chat(make, kind)
    for common in (9, 100, 3, 12, 1):
        assert max(walk.round(), walk.round(unscored=2), walk.round(unscored=3)) < CLOSE
        walk.again(min(common, len(walk.texts[0])), 4)
    assert walk.round() < CLOSE


@pytest.mark.parametrize("make", BACKENDS)
@pytest.mark.parametrize("kind", ["mistral", "gemma3_text"])
def test_a_text_that_has_left_the_window_is_cut_back_to_within_it(make: Any, kind: str) -> None:
    """A memory of the last window alone would lack the tokens that are visible again (huggingface/transformers#48280)."""
    walk = Chat(make, kind, **{"sliding_window": WINDOW, **WINDOWED[kind]})
    for common in (9, WINDOW + 3, WINDOW - 3, WINDOW, 2):
        assert max(walk.round(), walk.round(nodes=9), walk.round(unscored=2), walk.round()) < CLOSE
        assert len(walk.texts[0]) > WINDOW
        walk.again(min(common, len(walk.texts[0])), 4)
    assert walk.round() < CLOSE


@pytest.mark.parametrize("make", BACKENDS)
def test_only_the_new_tokens_are_read(make: Any) -> None:
    walk = Chat(make)
    walk.round()
    walk.round()
    length = len(walk.texts[0])
    walk.again(length, 5)
    walk.round(check=False)
    assert sum(walk.read) == 5 + 7, "the new tokens and the nodes"
    walk.again(length - 3, 5)
    walk.round(check=False)
    assert sum(walk.read) == 5 + 7
    walk.again(length - 3, 5, keep=False)
    walk.round(check=False)
    assert sum(walk.read) == length - 3 + 5 + 7


@pytest.mark.parametrize("make", BACKENDS)
def test_tokens_that_were_pending_are_read_later(make: Any) -> None:
    walk = Chat(make)
    walk.round(check=False)
    walk.round(nodes=7, unscored=6, check=False)
    length, cached = len(walk.texts[0]), walk.runner._rows._cached[0]
    walk.again(length, 5)
    walk.round(check=False)
    assert sum(walk.read) == length - cached + 5 + 7


@pytest.mark.parametrize("make", BACKENDS)
def test_a_text_without_a_common_beginning_starts_afresh(make: Any) -> None:
    walk = Chat(make)
    walk.round()
    walk.again(0, 6)
    assert walk.round() < CLOSE
    assert sum(walk.read) == 6 + 7


@pytest.mark.parametrize("make", BACKENDS)
def test_an_unfinished_round_is_not_kept(make: Any) -> None:
    walk = Chat(make)
    walk.round()
    walk._score([walk._tree(1, 7)], 7, check=False)
    length = len(walk.texts[0])
    walk.again(length, 5)
    assert walk.round() < CLOSE
    assert sum(walk.read) == length + 5 + 7


@pytest.mark.parametrize("make", BACKENDS)
def test_a_batch_is_not_kept_but_its_last_row_is(make: Any) -> None:
    walk = Chat(make)
    walk.round()
    walk.add([4])
    assert walk.round() < CLOSE
    walk.runner.clear(keep=True)
    walk.runner.set_rows(walk.rows)
    assert walk.round() < CLOSE
    assert sum(walk.read[-2:]) >= max(map(len, walk.texts)) - 7
    walk.keep([1])
    assert walk.round() < CLOSE
    walk.again(len(walk.texts[0]), 5)
    assert walk.round() < CLOSE
    assert sum(walk.read) == 5 + 7


def test_clearing_twice_keeps_the_memory() -> None:
    walk = Chat(TorchRunner)
    walk.round()
    walk.runner.clear(keep=True)
    walk.again(len(walk.texts[0]), 3)
    assert walk.round() < CLOSE
    assert sum(walk.read) == 3 + 7


def test_a_long_text_that_is_cut_leaves_few_dead_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    monkeypatch.setattr(memory, "_PATIENCE", 4.0)
    walk = Chat(openvino_runner, **LONG)
    walk.again(9, 90)
    assert walk.round() < CLOSE
    walk.again(12, 3)
    assert walk.runner._memory._slots == 12
    assert walk.round() < CLOSE


@pytest.mark.parametrize("make", BACKENDS)
def test_control_a_common_beginning_that_is_too_long_is_seen(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = rows.common_length
    monkeypatch.setattr(rows, "common_length", lambda one, other: inner(one, other) + 1)
    walk = Chat(make)
    walk.round()
    walk.again(5, 6)
    assert walk.round() > WRONG
