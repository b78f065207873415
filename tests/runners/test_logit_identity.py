"""Rung 4: the scores of a tree are those of one plain forward per root-to-node path, round after round."""

from __future__ import annotations

import random

import pytest
import torch

from draftwood.runners.protocols import Runner
from draftwood.runners.torch_runner import TorchRunner
from tests.helpers import ancestors_of, begin, rows_of
from tests.runners.zoo import SLIDING, SUPPORTED, VOCAB, plain_scores, tiny
from tests.tables import TableRunner


class Walk:
    """Random trees and random accepted paths over a runner, beside the texts that they ought to stand for."""

    def __init__(self, runner: Runner, scores_of, lengths: list[int], seed: int = 0) -> None:
        self.runner, self.scores_of, self.rng = runner, scores_of, random.Random(seed)
        texts = [self._tokens(n) for n in lengths]
        self.rows = begin(runner, texts, roots=self._tokens(len(lengths)))

    @property
    def texts(self) -> list[list[int]]:
        """Without their roots."""
        return [row.tokens[:-1] for row in self.rows]

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(self.runner.vocab_size) for _ in range(count)]

    def round(self, nodes: int = 7, *, unscored: int = 0, check: bool = True, accept: bool = True) -> float:
        """Score a random tree, compare every node, accept a random path; returns the greatest difference.

        The last ``unscored`` nodes stay unseen by the runner: if accepted they become pending, as in a drafter.
        """
        trees = [self._tree(row.tokens[-1], nodes) for row in self.rows]
        worst = self._score(trees, nodes - unscored, check)
        kept = []
        for row, (tokens, parents) in enumerate(trees):
            path = self._path(parents, self.rng.randrange(nodes) if accept else 0)
            kept.append([n for n in path if n < nodes - unscored])
            self.rows[row].tokens += [*(tokens[n] for n in path[1:]), *self._tokens(1)]
        self.runner.commit(kept)
        return worst

    def unasked(self) -> None:
        """A round without the runner, as of a drafter that is given no room to draft."""
        for row in self.rows:
            row.tokens.append(7)
        self.runner.commit([[] for _ in self.rows])

    def _tree(self, root: int, nodes: int) -> tuple[list[int], list[int]]:
        return [root, *self._tokens(nodes - 1)], [0, *(self.rng.randrange(i) for i in range(1, nodes))]

    @staticmethod
    def _path(parents: list[int], node: int) -> list[int]:
        path = [node]
        while path[-1]:
            path.append(parents[path[-1]])
        return path[::-1]

    def _score(self, trees: list[tuple[list[int], list[int]]], nodes: int, check: bool) -> float:
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
                path = [row_tokens[n] for n in self._path(parents, node)]
                worst = max(worst, float((scores[row, node] - self._wanted(row, path)).abs().max()))
        return worst

    def _logits(self, tokens: torch.Tensor, depths: torch.Tensor, ancestors: torch.Tensor) -> torch.Tensor:
        return self.runner.extend(tokens, depths, ancestors).logits

    def _wanted(self, row: int, path: list[int]) -> torch.Tensor:
        return self.scores_of(self.texts[row] + path)

    def keep(self, rows: list[int]) -> None:
        """All other rows leave."""
        self.rows = [self.rows[r] for r in rows]
        self.runner.set_rows(self.rows)

    def add(self, lengths: list[int]) -> None:
        """New rows with random texts."""
        texts = [self._tokens(n) for n in lengths]
        self.rows = [*self.rows, *rows_of(texts, roots=self._tokens(len(lengths)))]
        self.runner.set_rows(self.rows)


def walk(kind: str, lengths: list[int], *, seed: int = 0, **settings) -> Walk:
    model = tiny(kind, **settings)
    return Walk(TorchRunner(model), lambda text: plain_scores(model, text), lengths, seed)


@pytest.mark.parametrize("kind", SUPPORTED + SLIDING)
def test_a_tree_is_scored_as_its_paths_in_every_round(kind):
    rows = walk(kind, [5, 1, 9, 0])
    tolerance = 1e-4 if kind in SLIDING else 1e-9  # their attention weights are float32 whatever the model is
    assert max(rows.round(), rows.round(unscored=2)) < tolerance
    rows.keep([0, 1, 3])  # a row has left
    assert max(rows.round(), rows.round(unscored=3)) < tolerance
    rows.keep([1])
    assert max(rows.round(), rows.round()) < tolerance


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_float32_scores_agree_to_rounding(kind):
    rows = walk(kind, [4, 7], dtype=torch.float32)
    assert max(rows.round(), rows.round(unscored=1), rows.round()) < 1e-4


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_both_attention_implementations(implementation):
    model = tiny("llama")
    model.set_attn_implementation(implementation)
    rows = Walk(TorchRunner(model), lambda text: plain_scores(model, text), [3, 6])
    assert max(rows.round(), rows.round()) < (1e-4 if implementation == "eager" else 1e-9)  # eager's softmax is float32


@pytest.mark.parametrize("kind", ["llama", "gpt2", "opt"])
def test_prompts_longer_than_one_chunk_in_a_ragged_batch(kind):
    rows = walk(kind, [3, 1100, 515], max_position_embeddings=1200)
    assert max(rows.round(nodes=4), rows.round(nodes=4)) < 1e-9
    rows.keep([0, 2])
    assert rows.round(nodes=4) < 1e-9


def test_memory_that_grows_past_its_first_size():
    rows = walk("qwen3", [240, 2], max_position_embeddings=600)
    for _ in range(6):
        rows.round(nodes=40, check=False)
    assert max(map(len, rows.texts)) > 256
    assert rows.round(nodes=5) < 1e-9


@pytest.mark.parametrize("kind", ["llama", "gpt2", "opt"])
def test_the_last_tokens_of_the_context_are_exact(kind):
    rows = walk(kind, [28, 30], max_position_embeddings=32)
    tokens, depths = torch.tensor([[1, 2, 3]] * 2), torch.tensor([[0, 1, 2]] * 2)
    ancestors = torch.ones(2, 3, 3, dtype=torch.bool).tril()
    scores = rows.runner.extend(tokens, depths, ancestors).logits  # row 1 has no position 32: that node is never used
    for row, nodes in ((0, 3), (1, 2)):
        for node in range(nodes):
            wanted = rows.scores_of(rows.texts[row] + tokens[row, : node + 1].tolist())
            assert torch.allclose(scores[row, node], wanted, atol=1e-9)


def test_a_forward_without_logits_to_keep():
    model = tiny("llama")
    inner = model.forward

    def forward(input_ids, attention_mask=None, position_ids=None, past_key_values=None, use_cache=None):
        return inner(input_ids, attention_mask, position_ids, past_key_values, use_cache=use_cache)

    model.forward = forward
    rows = Walk(TorchRunner(model), lambda text: plain_scores(model, text), [3, 150])
    assert max(rows.round(), rows.round()) < 1e-9


@pytest.mark.parametrize("order", [0, 1, 2])
def test_the_table_runner_too(order):
    table = torch.randn([5] * (order + 1), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    runner = TableRunner(table)
    rows = Walk(runner, runner.scores, [4, 0, 1])
    assert max(rows.round(), rows.round(unscored=2)) == 0
    rows.keep([1, 2])
    assert rows.round() == 0


def test_vocabulary_is_that_of_the_head():
    assert TorchRunner(tiny("gpt2"), check=False).vocab_size == VOCAB


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


def test_a_round_in_which_a_runner_is_not_asked():
    rows = walk("llama", [5, 2])
    rows.round()
    for _ in range(2):
        rows.unasked()
    assert rows.round() < 1e-9
