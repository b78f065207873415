"""Rung 4: the scores of a tree are those of one plain forward per root-to-node path, round after round, as rows come and
go. (``tests/engine/test_batch.py`` tries texts.)"""

import random
from itertools import product

import pytest
import torch

from draftwood.core.errors import CacheError
from draftwood.runners.protocols import TargetRunner
from draftwood.runners.torch_runner import TorchRunner
from tests.differences import difference
from tests.helpers import ancestors_of, at_roots, begin, rows_of
from tests.native.test_bits import check_no_number, model_of, path, spoilt
from tests.runners.zoo import BY_ENGINE, SLIDING, SUPPORTED, VOCAB, plain_scores, runner_of, tiny


class Walk:
    """Random trees and random accepted paths over a runner, beside the texts that they ought to stand for."""

    def __init__(self, runner, scores_of, lengths, seed=0):
        self.runner, self.scores_of, self.rng = runner, scores_of, random.Random(seed)
        texts = [self._tokens(n) for n in lengths]
        self.rows = begin(runner, texts, roots=self._tokens(len(lengths)))

    @property
    def texts(self):
        """Without their roots."""
        return [row.tokens[:-1] for row in self.rows]

    def _tokens(self, count):
        return [self.rng.randrange(self.runner.vocab_size) for _ in range(count)]

    def round(self, nodes=7, *, unscored=0, check=True, accept=True):
        """Score a random tree, compare every node, accept a random path; returns the greatest difference.

        The last ``unscored`` nodes stay unseen by the runner: if accepted they become pending, as in a drafter.
        """
        trees = [self._tree(row.tokens[-1], nodes) for row in self.rows]
        worst = self._score(trees, nodes - unscored, check)
        kept = []
        for row, (tokens, parents) in enumerate(trees):
            accepted = path(self.rng.randrange(nodes) if accept else 0, parents)
            kept.append([n for n in accepted if n < nodes - unscored])
            self.rows[row].tokens += [*(tokens[n] for n in accepted[1:]), *self._tokens(1)]
        self.runner.commit(kept)
        return worst

    def unasked(self):
        """A round without the runner, as of a drafter that is given no room to draft."""
        for row in self.rows:
            row.tokens.append(7)
        self.runner.commit([[] for _ in self.rows])

    def _tree(self, root, nodes):
        return [root, *self._tokens(nodes - 1)], [0, *(self.rng.randrange(i) for i in range(1, nodes))]

    def _score(self, trees, nodes, check):
        tokens = torch.tensor([t[:nodes] for t, _ in trees])
        ancestors = ancestors_of(torch.tensor([p[:nodes] for _, p in trees]), nodes)
        depths = ancestors.sum(-1) - 1
        first = self.rng.randrange(1, nodes + 1)  # in two calls, as a drafter asks level by level
        parts = [self._logits(tokens[:, :first], depths[:, :first], ancestors[:, :first, :first])]
        if first < nodes:
            parts.append(self._logits(tokens[:, first:], depths[:, first:], ancestors[:, first:]))
        scores, worst = torch.cat(parts, dim=1), 0.0
        for row, (row_tokens, parents) in enumerate(trees if check else []):
            for node in range(nodes):
                wanted = self._wanted(row, [row_tokens[n] for n in path(node, parents)])
                worst = max(worst, difference(scores[row, node], wanted))
        return worst

    def _wanted(self, row, path):
        return self.scores_of(self.texts[row] + path)

    def _logits(self, tokens, depths, ancestors):
        return self.runner.extend(tokens, depths, ancestors).logits

    def keep(self, rows):
        """All other rows leave."""
        self.rows = [self.rows[r] for r in rows]
        self.runner.set_rows(self.rows)

    def add(self, lengths):
        """New rows with random texts."""
        texts = [self._tokens(n) for n in lengths]
        self.rows = [*self.rows, *rows_of(texts, roots=self._tokens(len(lengths)))]
        self.runner.set_rows(self.rows)

    def come_and_go(self):
        """The greatest difference over rounds in which rows come to the first three, wait and leave."""
        found = [self.round(), self.round(unscored=2)]
        self.add([7, 0])
        found += [self.round(unscored=3), self.round()]
        self.keep([1, 3, 4])
        self.add([3])
        self.add([12])  # before anything of the last one was read
        found += [self.round(), self.round(unscored=2)]
        self.keep([4])
        found += [self.round(), self.round()]
        self.keep([])
        self.add([4, 9])  # behind nothing at all
        return max(*found, self.round(), self.round())


def walk(kind, lengths, engine="torch", *, seed=0, drafts=False, **settings):
    model = tiny(kind, **{"dtype": torch.float64 if engine == "torch" else torch.float32, **settings})
    return Walk(runner_of(engine, model, drafts=drafts), lambda text: plain_scores(model, text), lengths, seed)


def tolerance(kind, engine):
    return 1e-9 if engine == "torch" and kind not in SLIDING else 1e-4  # attention that slides has float32 weights


@pytest.mark.parametrize(
    ("kind", "engine", "drafts"),
    [*product(SUPPORTED + SLIDING, ["torch", "native"], [False]), ("llama", "native", True)],
)
def test_a_tree_is_scored_as_its_paths_in_every_round(kind, engine, drafts):
    rows = walk(kind, [5, 1, 9], engine, drafts=drafts)
    assert isinstance(rows.runner, TargetRunner)
    assert rows.come_and_go() < tolerance(kind, engine)


@pytest.mark.parametrize(("kind", "settings", "close"), [
    ("llama", {"dtype": torch.float32}, 1e-4), ("gpt2", {"dtype": torch.float32}, 1e-4),
    ("llama", {"attn_implementation": "sdpa"}, 1e-9),
    ("llama", {"attn_implementation": "eager"}, 1e-4),  # its softmax is float32
])  # fmt: skip
def test_other_number_formats_and_implementations(kind, settings, close):
    rows = walk(kind, [4, 7], **settings)
    assert max(rows.round(), rows.round(unscored=1), rows.round()) < close


@BY_ENGINE
@pytest.mark.parametrize("kind", ["llama", "gpt2", "opt"])
def test_prompts_longer_than_one_chunk_in_a_ragged_batch(kind, engine):
    """They need more memory than there is at first, and one row is all padding in the first chunk."""
    rows = walk(kind, [3, 1100, 515], engine, max_position_embeddings=1200)
    assert max(rows.round(nodes=4), rows.round(nodes=4)) < tolerance(kind, engine)
    rows.keep([0, 2])
    assert rows.round(nodes=4) < tolerance(kind, engine)


@BY_ENGINE
def test_many_rounds_in_which_memory_grows_past_its_first_size(engine):
    rows = walk("qwen3", [240, 61, 1], engine, max_position_embeddings=600)
    for unscored in (0, 2, 1, 2, 0, 1):
        rows.round(nodes=40, unscored=unscored, check=False)
    assert max(map(len, rows.texts)) > 256
    assert max(rows.round(nodes=5), rows.round(nodes=14)) < tolerance("qwen3", engine)


def check_the_last_tokens(read, model):
    """Trees of three tokens in a chain, some of whose nodes lie beyond the 32 positions that are scored exactly."""
    texts = [[(7 * i) % 90 + 1 for i in range(length)] for length in (28, 30, 5)]
    begin(read, texts)
    tokens, depths = torch.tensor([[1, 2, 3]] * 3), torch.tensor([[0, 1, 2]] * 3)
    scores = read.extend(tokens, depths, torch.ones(3, 3, 3, dtype=torch.bool).tril()).logits
    for row, nodes in enumerate((3, 2, 3)):  # the third node of the second row would be at position 32
        for node in range(nodes):
            wanted = plain_scores(model, texts[row] + tokens[row, : node + 1].tolist())
            assert torch.allclose(scores[row, node], wanted, atol=1e-9 if wanted.dtype == torch.float64 else 1e-4)
    begin(read, [[5] * 32])
    reason = r"\(its (configuration says \w+=32|rotary embedding changes after 32 tokens)\): shorten the prompt"
    with pytest.raises(CacheError, match=f"33 tokens, but {model.config.model_type} takes 32 {reason}"):
        read.extend(tokens[:1], depths[:1], torch.ones(1, 3, 3, dtype=torch.bool).tril())


@pytest.mark.parametrize(("kind", "engine"), [("llama", "torch"), ("gpt2", "torch"), ("opt", "torch"), ("llama", "native")])
def test_the_last_tokens_of_the_context_are_exact_and_no_more_are_taken(kind, engine):
    rows = walk(kind, [], engine, max_position_embeddings=32)
    check_the_last_tokens(rows.runner, rows.runner.model)


@BY_ENGINE
def test_a_forward_without_logits_to_keep(engine):
    model = tiny("llama", dtype=torch.float64 if engine == "torch" else torch.float32)
    inner = model.forward

    def forward(input_ids, attention_mask=None, position_ids=None, past_key_values=None, use_cache=None):
        return inner(input_ids, attention_mask, position_ids, past_key_values, use_cache=use_cache)

    model.forward = forward
    rows = Walk(runner_of(engine, model), lambda text: plain_scores(model, text), [3, 150])
    assert max(rows.round(), rows.round()) < tolerance("llama", engine)


@BY_ENGINE
def test_rounds_in_which_a_runner_is_not_asked_and_rows_that_leave_meanwhile(engine):
    rows = walk("llama", [5, 2, 7], engine)
    rows.unasked()
    rows.keep([1, 2])  # before anything was read
    worst = rows.round()
    for _ in range(2):
        rows.unasked()
    rows.keep([1])
    rows.keep([0])
    assert max(worst, rows.round(), rows.round()) < tolerance("llama", engine)


@BY_ENGINE
def test_a_new_batch_begins_wherever_the_last_one_ended(engine):
    """In the middle of a round, as after a stream that was closed early."""
    rows = walk("llama", [5, 1], engine)
    rows.round()
    at_roots(rows.runner, [3, 4])
    assert Walk(rows.runner, rows.scores_of, [5, 1, 9], seed=3).come_and_go() < tolerance("llama", engine)


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_a_token_that_is_no_number_ends_only_what_sees_it(kind):
    """As in the native engine."""
    check_no_number(spoilt(TorchRunner(model_of(kind, torch.float32), hidden_layers=(0, 1, 2))), 1e-4)


@BY_ENGINE
def test_a_draft_may_be_asked_about_tokens_that_it_does_not_know(engine):
    runner = walk("llama", [], engine, drafts=True).runner
    begin(runner, [[1, 2]])
    wanted = plain_scores(runner.model, [1, 2, VOCAB - 1])
    assert torch.allclose(at_roots(runner, [VOCAB + 5]).logits[0, 0], wanted, atol=tolerance("llama", engine))


@BY_ENGINE
def test_earlier_scores_stay_as_they_were(engine):
    rows = walk("llama", [5], engine)
    first = at_roots(rows.runner, [7]).logits
    before = first.clone()
    rows.runner.extend(torch.tensor([[7]]), torch.tensor([[0]]), torch.ones(1, 1, 2, dtype=torch.bool))
    assert torch.equal(first, before)


def test_control_a_runner_that_does_not_move_the_accepted_path():
    model = tiny("llama")
    runner = TorchRunner(model)
    runner._cache.compact = lambda *_: None
    rows = Walk(runner, lambda text: plain_scores(model, text), [5, 1, 9])
    assert rows.round() < 1e-9  # nothing has been accepted yet
    assert max(rows.round() for _ in range(3)) > 1e-2


def test_control_a_drop_of_the_wrong_row_of_the_memory():
    rows = walk("gpt2", [5, 2, 9])
    rows.round()
    drop = rows.runner._cache.drop
    rows.runner._cache.drop = lambda _: drop([2])
    rows.keep([1, 2])
    assert rows.round() > 1e-2


def test_control_a_cache_that_mixes_rows():
    rows = walk("llama", [5, 1])
    rows.round()
    cache = rows.runner._cache

    def add(new):
        type(cache).add(cache, new)
        cache._change(lambda old: old.roll(new, dims=1))

    cache.add = add
    rows.add([3])
    assert max(rows.round(), rows.round()) > 1e-2
