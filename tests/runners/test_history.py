"""A cleared runner keeps its memory on request: the beginning of a text that it holds is not read again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftwood.runners import rows
from tests.helpers import rows_of
from tests.runners.test_logit_identity import Walk
from tests.runners.zoo import WINDOW, WINDOWED, cached, plain_scores, read_tokens, runner_of, tiny

CLOSE, WRONG = 1e-4, 1e-2  # float32, scores of up to 10
LONG = {"max_position_embeddings": 256}
BY_ENGINE = pytest.mark.parametrize("engine", ["torch", "native"])


class Chat(Walk):
    """A walk over one row that begins again, with a text that shares its beginning with the last one."""

    def __init__(self, engine: str, kind: str = "llama", **settings: Any) -> None:
        model = tiny(kind, dtype=torch.float32, **settings)
        super().__init__(runner_of(engine, model), lambda text: plain_scores(model, text), [9])
        self.read: list[int] = []

    def _logits(self, *nodes: torch.Tensor) -> torch.Tensor:
        def count(_: Any, args: Any, named: dict[str, torch.Tensor]) -> None:
            self.read.append(read_tokens(named))

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


@pytest.mark.parametrize(
    ("kind", "engine"),
    [("llama", "torch"), ("gpt2", "torch"), ("gemma2", "torch"), ("llama", "native")],
)
def test_the_scores_after_a_kept_beginning_are_those_of_the_model(engine: str, kind: str) -> None:
    walk = Chat(engine, kind)
    for common in (9, 100, 3, 12, 1):
        assert max(walk.round(), walk.round(unscored=2), walk.round(unscored=3)) < CLOSE
        walk.again(min(common, len(walk.texts[0])), 4)
    assert walk.round() < CLOSE


@BY_ENGINE
@pytest.mark.parametrize("kind", ["mistral", "gemma3_text"])
def test_a_text_that_has_left_the_window_is_cut_back_to_within_it(engine: str, kind: str) -> None:
    """A memory of the last window alone would lack the tokens that are visible again (huggingface/transformers#48280)."""
    walk = Chat(engine, kind, **{"sliding_window": WINDOW, **WINDOWED[kind]})
    for common in (9, WINDOW + 3, WINDOW - 3, WINDOW, 2):
        assert max(walk.round(), walk.round(nodes=9), walk.round(unscored=2), walk.round()) < CLOSE
        assert len(walk.texts[0]) > WINDOW
        walk.again(min(common, len(walk.texts[0])), 4)
    assert walk.round() < CLOSE


@BY_ENGINE
@pytest.mark.parametrize(("cut", "keep"), [(0, True), (3, True), (3, False)])
def test_only_the_new_tokens_are_read(cut: int, keep: bool, engine: str) -> None:
    walk = Chat(engine)
    walk.round()
    walk.round()
    common = len(walk.texts[0]) - cut
    walk.again(common, 5, keep=keep)
    assert walk.round() < CLOSE
    assert sum(walk.read) == (0 if keep else common) + 5 + 7, "the new tokens and the nodes"


@BY_ENGINE
def test_what_was_not_kept_is_read_again(engine: str) -> None:
    walk = Chat(engine)
    walk.round(check=False)
    walk.round(nodes=7, unscored=6, check=False)  # tokens are pending
    length, [held] = len(walk.texts[0]), cached(walk.runner)
    walk.again(length, 5)
    assert walk.round() < CLOSE
    assert sum(walk.read) == length - held + 5 + 7
    walk.again(0, 6)  # without a common beginning
    assert walk.round() < CLOSE
    assert sum(walk.read) == 6 + 7
    walk._score([walk._tree(1, 7)], 7, check=False)  # an unfinished round
    length = len(walk.texts[0])
    walk.again(length, 5)
    assert walk.round() < CLOSE
    assert sum(walk.read) == (0 if engine == "native" else length) + 5 + 7  # its text is apart from the nodes


@BY_ENGINE
def test_a_batch_is_not_kept_but_its_last_row_is(engine: str) -> None:
    walk = Chat(engine)
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


@BY_ENGINE
def test_a_row_that_is_left_alone_keeps_its_own_keys(engine: str) -> None:
    walk = Chat(engine)
    walk.add([7])
    assert walk.round() < CLOSE
    walk.keep([1])
    walk.again(5, 4)
    assert max(walk.round(), walk.round()) < CLOSE
    assert sum(walk.read) < 5 + 4 + 2 * 7


@BY_ENGINE
def test_a_row_of_which_nothing_was_read_ahead_joins_as_any(engine: str) -> None:
    walk = Chat(engine)
    walk.round()
    [row] = rows_of([[]], roots=[3])
    walk.runner.prefill(row, 0)
    walk.rows = [*walk.rows, row]
    walk.runner.set_rows(walk.rows)
    assert max(walk.round(), walk.round()) < CLOSE


@BY_ENGINE
def test_a_change_of_rows_that_is_interrupted_leaves_nothing_to_keep(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    walk = Chat(engine)
    walk.round()

    def cut(length: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(walk.runner._rows.memories[0] if engine == "native" else walk.runner._rows.cache, "cut", cut)
        with pytest.raises(KeyboardInterrupt):
            walk.again(5, 4)
    length = len(walk.texts[0])
    walk.again(length, 2)
    assert walk.round() < CLOSE
    assert sum(walk.read) == length + 2 + 7


def test_clearing_twice_keeps_the_memory() -> None:
    walk = Chat("torch")
    walk.round()
    walk.runner.clear(keep=True)
    walk.again(len(walk.texts[0]), 3)
    assert walk.round() < CLOSE
    assert sum(walk.read) == 3 + 7


@BY_ENGINE
def test_control_a_common_beginning_that_is_too_long_is_seen(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = rows.common_length
    monkeypatch.setattr(rows, "common_length", lambda one, other: inner(one, other) + 1)
    walk = Chat(engine)
    walk.round()
    walk.again(5, 6)
    assert walk.round() > WRONG
