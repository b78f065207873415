"""One measurement on either side: what is counted, and that transformers gets the same input."""

import pytest
import torch
from transformers import LlamaForCausalLM

from benchmarks import document
from benchmarks.measure import Meters, measure, our_maker
from benchmarks.peers import peer_maker
from benchmarks.settings import DRAFTING, OURS, PEERS, Setting, plan
from draftwood.api import Pair
from draftwood.runners.factory import make_runners
from tests.benchmarks.tiny import Letters, tiny_llama
from tests.helpers import tiny_hidden, tiny_model, tiny_published

CPU = torch.device("cpu")


def sample_of(setting, pair, temperature, new=12):
    make = peer_maker if setting.is_peer else our_maker
    with Meters().on(pair) as meters:
        return measure(make(setting, pair, temperature, new), [[1, 2, 3]], [11], meters, CPU)


@pytest.mark.usefixtures("always_drafts")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_setting_of_every_method_runs(pair, temperature):
    for setting in {setting.method: setting for setting in plan(OURS + PEERS, has_draft=True)}.values():
        sample = sample_of(setting, pair, temperature)
        assert [len(row) for row in sample.tokens] == [12], setting.name
        assert sample.forwards <= 12
        assert (sample.draft_forwards > 0) == (setting.method in DRAFTING)
        assert sample.target_seconds + sample.draft_seconds + sample.verify_seconds <= sample.seconds


@pytest.mark.parametrize(
    ("kind", "backend"), [("hidden", "torch"), ("hidden", "native"), ("eagle3", "torch"), ("eagle3", "native")]
)
def test_passes_of_drafters_of_hidden_states_are_seen(kind, backend):
    model = tiny_model(backend, 23, 1)
    drafter = tiny_hidden(model) if kind == "hidden" else tiny_published(model, kind)
    pair = Pair(model, drafter, Letters(), runners=make_runners(model, drafter, backend=backend))
    sample = sample_of(Setting(method="rsd-s", shape="2x2", nodes=4), pair, 0.0)
    drafting = sample.forwards - 2  # the first round only reads the prompt, and the last one may have no room
    assert drafting <= sample.draft_forwards <= 2 * sample.forwards
    assert 0 < sample.draft_seconds < sample.seconds
    if (kind, backend) == ("hidden", "native"):
        assert sample.draft_tokens == sample.draft_forwards  # one root a round; PyTorch's pass also names what it reads
    assert sample_of(Setting(method="generate"), pair, 0.0).tokens == sample.tokens
    assert document._models(pair, [])["draft"]["parameters"] > 0


def test_reading_a_long_prompt_in_parts_is_no_further_round():
    config = tiny_llama(0.4).config
    config.max_position_embeddings = 2200
    pair = Pair(LlamaForCausalLM(config).eval(), None, Letters())
    with Meters().on(pair) as meters:
        sample = measure(our_maker(Setting(method="ar"), pair, 0.0, 4), [[1] * 2100], [0], meters, CPU)
        assert meters.target.count == 4 + 2  # 1,024 and 1,024 tokens, then the rest with the first node
    assert (sample.forwards, sample.drafted) == (4, 0)


def test_an_ended_row_of_generate_keeps_no_padding(pair):
    wanted = sample_of(Setting(method="generate"), pair, 0.0).tokens[0]
    ending = Pair(pair.target.model, None, pair.tokenizer)
    ending.eos = [wanted[2]]
    make = peer_maker(Setting(method="generate"), ending, 0.0, 12)
    first, second = make([[1, 2, 3], [9, 9]], [0, 0]).tokens
    assert first == wanted[: wanted.index(wanted[2]) + 1]
    assert len(second) > len(first)  # so the first row was read on for longer than it is


def test_generate_reads_every_token_once_with_its_cache(pair):
    pair.target.model.config.use_cache = False  # as a model saved after training says
    try:
        sample = sample_of(Setting(method="generate"), pair, 0.0)
    finally:
        pair.target.model.config.use_cache = True
    assert sample.forwards == 12
    assert sample.target_tokens == 3 + 12 - 1
    assert sample.drafted == 0


def test_the_same_chain_takes_the_same_forwards_on_both_sides_which_the_hooks_see(pair):
    ours = sample_of(Setting(method="chain", shape="3", nodes=3), pair, 0.0, new=40)
    theirs = sample_of(Setting(method="assisted", shape="3", nodes=3), pair, 0.0, new=40)
    assert ours.tokens == theirs.tokens
    assert (ours.forwards, ours.draft_forwards) == (theirs.forwards, theirs.draft_forwards)
    with Meters().on(pair) as meters:
        make = our_maker(Setting(method="rsd-s", shape="2x3", nodes=6), pair, 1.0, 12)
        sample = measure(make, [[1, 2, 3]], [11], meters, CPU)
        assert sample.forwards == sample.row_forwards == meters.target.count < 12
        assert sample.drafted == meters.target.tokens - 3 - (meters.target.count - 1) > 0


def test_generate_samples_from_the_whole_distribution_whatever_the_model_recommends():
    flat = tiny_llama(0.02)
    flat.generation_config.top_k = 1
    flat.generation_config.repetition_penalty = 9.0
    pair = Pair(flat, None, Letters())
    sample = sample_of(Setting(method="generate"), pair, 1.0, new=120)
    with torch.inference_mode():
        scores = flat(torch.tensor([[1, 2, 3, *sample.tokens[0]]])).logits[0, 2:-1]
    ranks = (scores > scores.gather(1, torch.tensor(sample.tokens[0])[:, None])).sum(1)
    assert float((ranks >= 50).float().mean()) > 0.25  # nearly uniform over 96 tokens: 48 % are expected below the first 50
