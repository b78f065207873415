"""One measurement on either side: what is counted, and that transformers is asked the same question."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
import torch

from draftwood.api import Pair
from draftwood.bench.measure import Meters, Text, measure, our_maker
from draftwood.bench.peers import peer_maker
from draftwood.bench.settings import DRAFTING, Setting, plan
from draftwood.decode import Decoder, Request
from draftwood.methods import build
from draftwood.output import Limits
from draftwood.sampling import Sampling
from tests.bench.tiny import tiny_llama

CPU = torch.device("cpu")


def sample_of(setting: Setting, pair: Pair, temperature: float, new: int = 12):
    make = peer_maker if setting.is_peer else our_maker
    with Meters().on(pair) as meters:
        return measure(make(setting, pair, temperature, new), [1, 2, 3], 11, meters, CPU)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_setting_of_the_quick_preset_runs(pair: Pair, temperature: float) -> None:
    for setting in plan("quick", None, has_draft=True):
        sample = sample_of(setting, pair, temperature)
        assert len(sample.tokens) == 12, setting.name
        assert sample.forwards <= 12
        assert (sample.draft_forwards > 0) == (setting.method in DRAFTING)
        assert sample.target_seconds + sample.draft_seconds + sample.verify_seconds <= sample.seconds


def test_forwards_are_those_of_the_statistics(pair: Pair) -> None:
    setting = Setting(method="rsd-s", shape="2x3", nodes=6)
    drafter, verifier = build(setting.to_method(), pair.draft, greedy=False)
    request = Request(prompt=[1, 2, 3], seed=11, limits=Limits(max_new_tokens=12))
    result = Decoder(pair.target, drafter, verifier).generate([request], Sampling())[0]
    sample = sample_of(setting, pair, 1.0)
    assert sample.tokens == result.token_ids
    assert sample.forwards == result.stats.rounds
    assert sample.drafted == result.stats.drafted


def test_generate_reads_every_token_once_with_its_cache(pair: Pair) -> None:
    pair.target.model.config.use_cache = False  # as a model saved after training says
    try:
        sample = sample_of(Setting(method="generate"), pair, 0.0)
    finally:
        pair.target.model.config.use_cache = True
    assert sample.forwards == 12
    assert sample.target_tokens == 3 + 12 - 1
    assert sample.drafted == 0


@pytest.mark.parametrize("length", [1, 2, 4])
def test_the_assistant_drafts_as_many_tokens_as_asked(pair: Pair, length: int) -> None:
    before = pair.draft.model.generation_config
    sample = sample_of(Setting(method="assisted", shape=str(length), nodes=length), pair, 1.0, new=40)
    full = length * sample.forwards
    assert full - length * (length + 1) <= sample.draft_forwards <= full  # the last rounds have less room
    assert sample.drafted == sample.draft_forwards
    assert pair.draft.model.generation_config is before


def test_the_same_chain_takes_the_same_forwards_on_both_sides(pair: Pair) -> None:
    ours = sample_of(Setting(method="chain", shape="3", nodes=3), pair, 0.0, new=40)
    theirs = sample_of(Setting(method="assisted", shape="3", nodes=3), pair, 0.0, new=40)
    assert ours.tokens == theirs.tokens
    assert (ours.forwards, ours.draft_forwards) == (theirs.forwards, theirs.draft_forwards)


def test_generate_samples_from_the_whole_law_whatever_the_model_recommends() -> None:
    flat = tiny_llama(0.02)
    flat.generation_config.top_k = 1
    flat.generation_config.repetition_penalty = 9.0
    pair = Pair(flat, None, tokenizer=type("T", (), {"eos_token_id": None})())
    sample = sample_of(Setting(method="generate"), pair, 1.0, new=120)
    with torch.inference_mode():
        scores = flat(torch.tensor([[1, 2, 3, *sample.tokens]])).logits[0, 2:-1]
    ranks = (scores > scores.gather(1, torch.tensor(sample.tokens)[:, None])).sum(1)
    assert float((ranks >= 50).float().mean()) > 0.25  # nearly uniform over 96 tokens: 48 % are expected below the first 50


def test_the_clock_runs_around_the_whole_call(pair: Pair) -> None:
    def slow(prompt: Sequence[int], seed: int) -> Text:
        time.sleep(0.02)
        return Text(tokens=[seed])

    sample = measure(slow, [1], 4, Meters(), CPU)
    assert sample.seconds >= 0.02
    assert (sample.tokens, sample.forwards) == ([4], 0)


def test_meters_leave_nothing_behind(pair: Pair) -> None:
    with Meters().on(pair):
        assert pair.target.model._forward_hooks
    assert not pair.target.model._forward_hooks
    assert not pair.target.model._forward_pre_hooks
