"""A runner keeps texts that have ended: the beginning of a text that it holds is copied, not read again."""

import gc

import pytest
import torch

from draftwood.runners.protocols import Prefix
from draftwood.sampling.rows import Row
from tests.helpers import rows_of
from tests.runners.test_logit_identity import Walk
from tests.runners.zoo import BY_ENGINE, WINDOW, WINDOWED, cached, plain_scores, read_tokens, runner_of, tiny

CLOSE, WRONG = 1e-4, 1e-2  # float32, scores of up to 10


class Chat(Walk):
    """A walk over one row that begins again, with a text that shares its beginning with the last one."""

    def __init__(self, engine, kind="llama", **settings):
        model = tiny(kind, dtype=torch.float32, **settings)
        super().__init__(runner_of(engine, model), lambda text: plain_scores(model, text), [9])
        self.read = []

    def _logits(self, *nodes):
        def count(_, args, named):
            self.read.append(read_tokens(named))

        hook = self.runner.network.register_forward_pre_hook(count, with_kwargs=True)
        scores = super()._logits(*nodes)
        hook.remove()
        return scores

    def again(self, common, new, *, keep=True, too_long=0):
        """Begin with ``common`` tokens of the last text and ``new`` other ones."""
        [text], [root], text_row = self.texts, [row.tokens[-1] for row in self.rows], Row(tokens=[])
        differs = [(text[common] + 1) % self.runner.vocab_size] if common < len(text) else []
        if keep:
            self.runner.keep(self.rows[0], text_row)
            assert self.runner.held(text_row) == self.runner.held(self.rows[0])
        self.rows = rows_of([text[:common] + differs + self._tokens(new - len(differs))], roots=[root])
        self.runner.clear()
        self.runner.prefill(self.rows[0], 0, prefix=Prefix(text_row, common + too_long))
        self.runner.set_rows(self.rows)
        self.read.clear()


@pytest.mark.parametrize(
    ("kind", "engine"), [*((kind, "torch") for kind in ("llama", "gpt2", "gemma2")), ("llama", "native")]
)
def test_the_scores_after_a_kept_beginning_are_those_of_the_model(engine, kind):
    walk = Chat(engine, kind)
    for common in (9, 100, 3, 12, 1):
        assert max(walk.round(), walk.round(unscored=2), walk.round(unscored=3)) < CLOSE
        walk.again(min(common, len(walk.texts[0])), 4)
    assert walk.round() < CLOSE


@BY_ENGINE
@pytest.mark.parametrize("kind", ["mistral", "gemma3_text"])
def test_a_text_that_has_left_the_window_is_cut_back_to_within_it(engine, kind):
    """A memory of the last window alone would lack the tokens that are visible again (huggingface/transformers#48280)."""
    walk = Chat(engine, kind, **{"sliding_window": WINDOW, **WINDOWED[kind]})
    for common in (9, WINDOW + 3, WINDOW - 3, WINDOW, 2):
        assert max(walk.round(), walk.round(nodes=9), walk.round(unscored=2), walk.round()) < CLOSE
        assert len(walk.texts[0]) > WINDOW
        walk.again(min(common, len(walk.texts[0])), 4)
    assert walk.round() < CLOSE


@BY_ENGINE
@pytest.mark.parametrize(("cut", "keep"), [(0, True), (3, True), (3, False)])
def test_only_the_new_tokens_are_read(cut, keep, engine):
    walk = Chat(engine)
    walk.round()
    walk.round()
    common = len(walk.texts[0]) - cut
    walk.again(common, 5, keep=keep)
    assert walk.round() < CLOSE
    assert sum(walk.read) == (0 if keep else common) + 5 + 7, "the new tokens and the nodes"


@BY_ENGINE
def test_what_was_not_kept_is_read_again(engine):
    walk = Chat(engine)
    walk.round(check=False)
    walk.round(nodes=7, unscored=6, check=False)  # tokens are pending
    length, [held] = len(walk.texts[0]), cached(walk.runner)
    walk.again(length, 5)
    assert walk.round() < CLOSE
    assert sum(walk.read) == length - held + 5 + 7


@BY_ENGINE
def test_memory_is_that_of_present_rows_and_of_texts_that_live(engine):
    walk, texts = Chat(engine), [Row(tokens=[]) for _ in range(3)]
    assert walk.runner.memory_bytes == 0
    walk.round()
    row = walk.runner.memory_bytes
    for text in texts:
        walk.runner.keep(walk.rows[0], text)
    shared = engine == "native"  # its only page, until one of them writes
    assert walk.runner.memory_bytes == row > 0 if shared else walk.runner.memory_bytes > 2 * row > 0
    assert walk.round() < CLOSE
    assert not shared or walk.runner.memory_bytes == 2 * row
    walk.runner.clear()
    kept = walk.runner.memory_bytes
    assert not shared or kept == row
    del text, texts[1:]
    gc.collect()
    assert walk.runner.memory_bytes == (kept if shared else kept / 3) > 0
    texts.clear()
    assert walk.runner.memory_bytes == 0


@BY_ENGINE
def test_a_row_of_which_nothing_was_read_ahead_joins_as_any(engine):
    walk = Chat(engine)
    walk.round()
    [row] = rows_of([[]], roots=[3])
    walk.runner.prefill(row, 0)
    walk.rows = [*walk.rows, row]
    walk.runner.set_rows(walk.rows)
    assert max(walk.round(), walk.round()) < CLOSE


@BY_ENGINE
def test_control_a_common_beginning_that_is_too_long_is_seen(engine):
    walk = Chat(engine)
    walk.round()
    walk.again(5, 6, too_long=1)
    assert walk.round() > WRONG
