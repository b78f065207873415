"""Runners of whole blocks: their scores are those of the model's plain forward on each row alone, round after round."""

import random
from dataclasses import replace

import pytest
import torch

from draftwood.core.draft_kind import MASKED_BLOCK
from draftwood.core.errors import CacheError, ConfigError
from draftwood.core.settings import Method
from draftwood.engine.methods import build
from draftwood.runners.blocks.masked_block import MaskedBlockPasses, MaskedBlockRunner
from draftwood.runners.protocols import BlockRunner
from draftwood.runners.rows import Sources
from tests.differences import difference
from tests.helpers import begin, rows_of
from tests.runners.test_masked_block import MASK, drafter_of, marian, plain_scores
from tests.tables import BlockTableRunner

VOCAB, BLOCK, START, EOS = 40, 5, 0, 1
SOURCES = [[5, 6, 7, 8, 1], [9, 3, 1], [4, 4, 30, 31, 32, 33, 1], [12, 1]]
EXACT, WRONG = 1e-9, 1e-3


def masked_block():
    return drafter_of(marian(), seed=3).double()


@torch.no_grad()
def masked_scores(model, source, text, count):
    """One row alone, read from the start."""
    scores = plain_scores(model, source, text, count)
    scores[:, [START, MASK]] = -torch.inf
    return scores


class Rounds:
    """Random drafts and random accepted tokens over a block runner, beside the texts that they ought to stand for."""

    def __init__(self, runner, scores_of, seed=0):
        self.runner, self.scores_of, self.rng = runner, scores_of, random.Random(seed)
        self.begin(SOURCES)

    def begin(self, sources):
        self.rows = begin(self.runner, [[] for _ in sources], sources, [START] * len(sources))

    @property
    def texts(self):
        return [row.tokens for row in self.rows]

    def some(self, count):
        return [self.rng.randrange(3, VOCAB) for _ in range(count)]

    def round(self, whole=False, *, scored=True):
        """Score the block at once or node by node, compare every row, accept a ragged number of tokens."""
        new = [self.some(self.rng.randrange(BLOCK)) for _ in self.texts]
        roots = torch.tensor([text[-1] for text in self.texts])
        worst, nodes = 0.0, [[0] * scored for _ in self.texts]
        if scored and whole:
            worst = self.compare(self.runner.score_block(), range(self.runner.block))
        elif scored:
            worst, nodes = self.by_node(roots, new)
        for text, tokens in zip(self.texts, new, strict=True):
            text.extend([*tokens, *self.some(1)])
        self.runner.commit(nodes)
        return worst

    def by_node(self, roots, new):
        """Two levels of two nodes below the root, the second of each level in the text; the rest stays pending."""
        rows, eye = len(roots), torch.ones(len(roots), 1, 1, dtype=torch.bool)
        scores = [self.runner.extend(roots[:, None], torch.zeros(rows, 1, dtype=torch.long), eye).logits]
        for depth in (1, 2):
            tokens = torch.tensor([[9, n[depth - 1] if len(n) >= depth else 8] for n in new])
            ancestors = torch.ones(rows, 2, 2 * depth + 1, dtype=torch.bool)  # not looked at
            scores.append(self.runner.extend(tokens, torch.full((rows, 2), depth), ancestors).logits)
        worst = self.compare(torch.cat(scores, dim=1), [0, 1, 1, 2, 2])
        return worst, [[0, *(2, 4)[: len(n)]] for n in new]

    def compare(self, scores, places):
        wanted = [self.scores_of(row.source, row.tokens, self.runner.block)[list(places)] for row in self.rows]
        return difference(scores, torch.stack(wanted))

    def add(self, sources):
        """New rows."""
        self.rows = [*self.rows, *rows_of([[] for _ in sources], sources, [START] * len(sources))]
        self.runner.set_rows(self.rows)

    def keep(self, rows):
        """All other rows leave."""
        self.rows = [self.rows[r] for r in rows]
        self.runner.set_rows(self.rows)


def masked_rounds(block=BLOCK):
    model = masked_block()
    return Rounds(MaskedBlockRunner(model).longer(block), lambda *row: masked_scores(model, *row))


def test_scores_are_those_of_each_row_alone_in_every_round():
    rounds = masked_rounds()
    assert isinstance(rounds.runner, BlockRunner)
    for whole in (True, False, True):
        assert rounds.round(whole=whole) < EXACT
    rounds.round(scored=False)
    assert rounds.round(whole=True) < EXACT
    rounds.keep([0, 2, 3])  # a row has left
    assert max(rounds.round(), rounds.round(whole=True)) < EXACT
    rounds.keep([1])
    assert max(rounds.round(whole=True), rounds.round()) < EXACT
    assert len({len(t) for t in rounds.texts}) == 1  # a single row needs no mask
    rounds.begin(SOURCES[::-1])
    assert max(rounds.round(whole=True), rounds.round()) < EXACT
    for block in (1, 3):
        assert masked_rounds(block).round(whole=True) < EXACT


def test_it_never_proposes_what_no_text_holds():
    rounds = masked_rounds()
    runner = rounds.runner
    assert (runner.block, runner.vocab_size, runner.kind) == (BLOCK, VOCAB, MASKED_BLOCK)
    rounds.round(whole=True)
    scores = runner.score_block()
    never = scores.isinf().all(dim=0).all(dim=0)
    assert never.nonzero().flatten().tolist() == [START, MASK]
    assert runner.forward_seconds > 0


def test_a_longer_block_than_that_of_the_training_and_the_end_of_the_positions():
    rounds, room = masked_rounds(block=12), 64
    assert rounds.round(whole=True) < EXACT
    assert rounds.runner.max_length == room - 12
    long = [rounds.some(room - 12), rounds.some(room), rounds.some(3), rounds.some(1)]
    for text, new in zip(rounds.texts, long, strict=True):
        text[:] = [START, *new[:-1]]
    scores = rounds.runner.score_block()
    assert scores[:, :, [START, MASK]].isneginf().all()
    for row in (0, 2, 3):  # in the second one there is no room for a block, and nothing is drafted
        wanted = masked_scores(rounds.runner.model, SOURCES[row], rounds.texts[row], 12)
        assert difference(scores[row], wanted) < EXACT
    for wrong in (0, room):
        with pytest.raises(ConfigError, match=f"takes 1 to {room - 1}"):
            rounds.runner.longer(wrong)


def test_a_longer_block_of_the_same_drafter_has_a_memory_of_its_own():
    others, rounds = masked_rounds(), masked_rounds()
    plain = others.runner
    rounds.runner = plain.longer(12)
    rounds.begin(SOURCES)
    others.begin(SOURCES[::-1])
    assert (plain.block, plain.max_length) == (BLOCK, 64 - BLOCK)
    assert (rounds.runner.block, rounds.runner.max_length) == (12, 64 - 12)
    for _ in range(2):
        assert max(rounds.round(whole=True), others.round(whole=True)) < EXACT


def test_method_block_takes_a_longer_block_where_the_drafter_can():
    method = Method(method="block", shape="12")
    drafter, _ = build(method, MaskedBlockRunner(masked_block()), greedy=True)
    assert (drafter.runner.block, drafter.runner.max_length) == (12, 52)
    with pytest.raises(ConfigError, match="the block has 64 masked positions, but the model takes 1 to 63"):
        build(Method(method="block", shape="64"), MaskedBlockRunner(masked_block()), greedy=True)
    with pytest.raises(ConfigError, match=f"12 tokens deep, but the draft fills blocks of {BLOCK}"):
        build(method, BlockTableRunner(torch.zeros(3, BLOCK, 3)), greedy=True)


def test_sources_that_are_missing_or_too_long_are_refused():
    runner = MaskedBlockRunner(masked_block())
    for sources in ([], [[5, 1]], [[5, 1], []]):
        with pytest.raises(ConfigError, match=r"source [01] is empty: give at least one token"):
            begin(runner, [[], []], sources)
    with pytest.raises(CacheError, match="source 0 has 33 tokens, but the encoder of masked_block takes 32"):
        begin(runner, [[]], [[5] * 33])


def test_what_depends_on_the_source_alone_is_computed_once(monkeypatch):
    rounds, read = masked_rounds(), []
    plain = MaskedBlockPasses.read
    monkeypatch.setattr(
        MaskedBlockPasses, "read", lambda self, tokens, *rest: (read.append(tokens), plain(self, tokens, *rest))[1]
    )
    rounds.begin(SOURCES)
    assert max(rounds.round(whole=True), rounds.round()) < EXACT
    rounds.add([[7, 1]])
    assert rounds.round(whole=True) < EXACT
    assert [len(tokens) for tokens in read] == [len(SOURCES), 1]


def test_beyond_the_block_nothing_is_possible():
    runner = BlockTableRunner(torch.randn(3, 2, 3))
    begin(runner, [[]], roots=[2])
    eye = torch.ones(1, 1, 1, dtype=torch.bool)
    first = runner.extend(torch.tensor([[2]]), torch.tensor([[0]]), eye).logits
    assert torch.equal(first[0, 0], runner.table[2, 0])
    sees = torch.ones(1, 3, 4, dtype=torch.bool)
    deeper = runner.extend(torch.tensor([[0, 1, 1]]), torch.tensor([[1, 2, 7]]), sees).logits
    assert torch.equal(deeper[0, 0], runner.table[2, 1])
    assert (deeper[0, 1:] == -torch.inf).all()


# ---- negative controls ----


def test_control_a_drop_of_the_wrong_row_of_the_sources(monkeypatch):
    rounds = masked_rounds()
    assert rounds.round(whole=True) < EXACT
    inner = Sources.picked
    monkeypatch.setattr(Sources, "picked", lambda self, rows: inner(self, [row - 1 for row in rows]))
    rounds.keep([1, 2, 3])
    assert rounds.round(whole=True) > WRONG


def test_control_answers_of_other_tokens_of_the_source(monkeypatch):
    rounds, plain = masked_rounds(), MaskedBlockPasses.read

    def read(self, *given):
        found = plain(self, *given)
        found.memory[:, -1] = found.memory[:, -1].flip(-2)  # values in another order than keys
        return found

    monkeypatch.setattr(MaskedBlockPasses, "read", read)
    rounds.begin(SOURCES)
    assert rounds.round(whole=True) > WRONG


def test_control_a_mask_that_hides_nothing(monkeypatch):
    rounds = masked_rounds()
    rounds.round(scored=False)
    monkeypatch.setattr("draftwood.runners.blocks.masked_block.padding_bias", lambda seen, dtype: None)
    assert rounds.round(whole=True) > WRONG


def test_control_a_text_that_lacks_a_token():
    rounds = masked_rounds()
    rounds.round(whole=True)
    rounds.runner._rows = [replace(row, tokens=row.tokens[1:]) for row in rounds.rows]
    assert rounds.round(whole=True) > WRONG
