"""Cutting, glancing, and replaying Draft & Verify on known outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from draftwood.core.errors import ConfigError
from draftwood.train.blocks import Batch, BlockBatches, Scores, cut, cut_at_random, evaluate, glance, replay
from draftwood.train.config import SpecDrafterConfig
from draftwood.train.pairs import IGNORED, TokenPairs, batch_of, padded

START, EOS, VOCAB = 0, 1, 30


def pairs(*outputs: list[int]) -> TokenPairs:
    return TokenPairs(sources=[[9, EOS] for _ in outputs], targets=list(outputs))


def batch(*outputs: list[int]) -> Batch:
    return batch_of(pairs(*outputs), range(len(outputs)), 0)


def settings(**changes: Any) -> SpecDrafterConfig:
    return SpecDrafterConfig(**{"data": Path(), "out": Path(), "target": Path(), "batch": 100, **changes})


def test_a_cut_keeps_a_prefix_and_masks_the_next_block() -> None:
    rows = cut(batch([5, 6, 7, 8, EOS], [4, EOS], [3, 2, EOS]), torch.tensor([2, 0, 1]), 3, START)
    assert rows["prefix"].tolist() == [[START, 5, 6], [START, START, START], [START, 3, START]]
    assert rows["prefix_mask"].tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0]]
    assert rows["labels"].tolist() == [[7, 8, EOS], [4, EOS, IGNORED], [2, EOS, IGNORED]]
    assert torch.equal(rows["input_ids"], batch([5], [4], [3])["input_ids"])


def test_nothing_of_a_block_is_in_its_prefix() -> None:
    outputs = [[*range(3, 3 + n), EOS] for n in range(1, 20)]
    for seed in range(5):
        rows = cut_at_random(batch(*outputs), np.random.default_rng(seed), 25, START)
        parts = (rows[name] for name in ("prefix", "prefix_mask", "labels"))
        for output, prefix, kept, labels in zip(outputs, *parts, strict=True):
            known, block = prefix[: int(kept.sum())].tolist(), labels[labels != IGNORED].tolist()
            assert [*known[1:], *block] == output  # the block is 25 long: prefix and block make the sentence
            assert known[0] == START
            assert block


def test_cuts_are_random_and_a_sentence_begins_more_often_than_it_ends() -> None:
    rows = cut_at_random(batch(*[[3, 4, 5, 6, 7, EOS]] * 3000), np.random.default_rng(0), 4, START)
    kept = rows["prefix_mask"].sum(1) - 1
    counts = torch.bincount(kept, minlength=6)
    assert int(kept.min()) == 0
    assert int(kept.max()) == 5
    share = (1 / 6) ** 0.5  # P(u^2 < 1 / cuts)
    assert counts[0] / 3000 == pytest.approx(share, abs=0.04)
    assert (counts[:-1] > counts[1:]).all()


def test_items_depend_on_their_number_and_the_seed_only() -> None:
    def kept(seed: int, *items: int) -> list[Tensor]:
        dataset = BlockBatches(pairs(*[[3, 4, 5, 6, 7, EOS]] * 40), settings(steps=40, block=4, seed=seed), 0, START)
        return [dataset[i]["prefix_mask"].sum(1) for i in items]

    first, seventh, again = kept(0, 0, 7, 0)
    assert torch.equal(first, again)
    assert torch.equal(seventh, *kept(0, 7))
    assert not torch.equal(seventh, *kept(1, 7))


def test_blocks_have_one_length_or_any_between_two() -> None:
    def lengths(**changes: Any) -> set[int]:
        dataset = BlockBatches(pairs(*[[3, 4, 5, EOS]] * 40), settings(steps=60, **changes), 0, START)
        return {dataset[i]["labels"].shape[1] for i in range(60)}

    assert lengths(block=6) == {6}
    assert lengths(block=6, block_from=4) == {4, 5, 6}
    for changes in ({"block": 0}, {"block": 4, "block_from": 5}, {"block_from": 0}):
        with pytest.raises(ConfigError, match="give 1 or more, and --block-from at most --block"):
            lengths(**changes)


def one_hot(tokens: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(tokens.clamp(min=0), VOCAB).float()


def test_a_glance_reveals_a_share_of_the_wrong_positions_only() -> None:
    labels = padded([[4, 5, 6, 7, 8, EOS], [4, 5, 6, EOS], [3, EOS]], IGNORED)
    guessed = torch.tensor([[9, 9, 6, 9, 9, 9], [4, 5, 6, EOS, 9, 9], [9, EOS, 9, 9, 9, 9]])
    wrong = (guessed != labels) & (labels != IGNORED)
    seen = torch.zeros_like(labels)
    for seed in range(200):
        shown = glance(guessed, labels, 0.5, torch.Generator().manual_seed(seed))
        assert shown.sum(1).tolist() == [2, 0, 0]  # half of 5, 0 and 1, rounded down
        assert not (shown & ~wrong).any()
        seen += shown
    assert (seen[0][wrong[0]] > 200 * 2 / 5 / 2).all()  # each of the five about 80 times
    assert not glance(guessed, labels, 0.0, torch.Generator()).any()


def one_right(rows: Batch) -> Tensor:
    """Only the first token of a block is right."""
    return one_hot(rows["labels"].where(torch.arange(rows["labels"].shape[1]) < 1, 20))


@pytest.mark.parametrize(("scores", "k", "passes"), [
    (lambda rows: one_hot(rows["labels"]), 25, 2),  # everything in one pass each
    (lambda rows: one_hot(torch.full_like(rows["labels"], 20)), 25, 8),  # one token per pass, the target's own
    (lambda rows: one_hot(rows["labels"]), 2, 3),  # 2 + 1, 2 + the end; the short one in one pass
    (one_right, 25, 4),  # 1 + 1 three times; 1 + the end
])  # fmt: skip
def test_replay_counts_what_draft_and_verify_would_accept(scores: Scores, k: int, passes: int) -> None:
    assert replay(scores, batch([5, 6, 7, 8, 9, EOS], [4, EOS]), k, START) == (8, passes)


def test_worth_of_a_drafter_that_knows_and_of_one_that_guesses() -> None:
    outputs = pairs(*[[3, 4, 5, 6, EOS]] * 4, [7, EOS])
    known = evaluate(lambda rows: 50 * one_hot(rows["labels"]), outputs, 25, 0, START, torch.device("cpu"))
    assert known == {"loss": 0.0, "tokens_per_pass": 4.4}
    blind = evaluate(lambda rows: torch.zeros(*rows["labels"].shape, VOCAB), outputs, 25, 0, START, torch.device("cpu"))
    assert blind["loss"] == pytest.approx(np.log(VOCAB), abs=1e-3)
    assert blind["tokens_per_pass"] == 1.0
