"""Rows that come and go between rounds have the scores that they have alone. (`tests/engine/test_batch.py` tries texts.)"""

from itertools import product

import pytest
import torch

from draftwood.runners.seq2seq.bart_decoder import BartDecoder
from draftwood.runners.seq2seq.patched_decoder import PatchedDecoder
from draftwood.runners.torch_runner import TorchRunner
from tests.helpers import at_roots
from tests.native.test_bits import check_no_number, model_of, spoilt
from tests.runners.seq2seq_zoo import tiny as tiny_source
from tests.runners.test_logit_identity import Walk, walk
from tests.runners.test_logit_identity import tolerance as causal_tolerance
from tests.runners.test_seq2seq import SourceWalk, tolerance, with_decoder
from tests.runners.zoo import BY_ENGINE

WRONG = 1e-2


def come_and_go(rows):
    """The greatest difference over rounds in which rows come, wait and leave."""
    found = [rows.round(), rows.round(unscored=2)]
    rows.add([7, 0])
    found += [rows.round(unscored=1), rows.round()]
    rows.keep([1, 3, 4])
    rows.add([3])
    rows.add([12])  # before anything of the last one was read
    found += [rows.round(), rows.round(unscored=2)]
    rows.keep([4])
    found.append(rows.round())
    rows.keep([])
    rows.add([4, 9])  # behind nothing at all
    return max(*found, rows.round(), rows.round())


# ---- scores ----


@pytest.mark.parametrize(
    ("kind", "engine", "drafts"),
    [*((kind, "torch", False) for kind in ("llama", "gpt2", "opt", "gemma3_text")),
     *product(("llama",), ("native",), (False, True))],
)  # fmt: skip
def test_scores_of_causal_models(kind, engine, drafts):
    rows = walk(kind, [5, 1, 9], engine, drafts=drafts)
    assert come_and_go(rows) < causal_tolerance(kind, engine)


@pytest.mark.parametrize(("kind", "chosen"), [
    ("marian", BartDecoder), ("m2m_100", BartDecoder), ("marian", PatchedDecoder), ("t5", PatchedDecoder),
])  # fmt: skip
def test_scores_of_encoder_decoder_models(kind, chosen):
    runner = with_decoder(tiny_source(kind), chosen)
    assert come_and_go(SourceWalk(runner, [5, 1, 9], sources=[6, 3, 17])) < tolerance(kind)


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_a_token_that_is_no_number_ends_only_what_sees_it(kind):
    """As in the native engine."""
    check_no_number(spoilt(TorchRunner(model_of(kind, torch.float32), hidden_layers=(0, 1, 2))), 1e-4)


@BY_ENGINE
def test_a_new_batch_begins_wherever_the_last_one_ended(engine):
    """In the middle of a round, as after a stream that was closed early."""
    rows = walk("llama", [5, 1], engine)
    rows.round()
    at_roots(rows.runner, [3, 4])
    assert come_and_go(Walk(rows.runner, rows.scores_of, [5, 1, 9], seed=3)) < causal_tolerance("llama", engine)


# ---- negative controls ----


def test_control_a_cache_that_mixes_rows():
    rows = walk("llama", [5, 1])
    rows.round()
    cache = rows.runner._cache

    def add(new):
        type(cache).add(cache, new)
        cache._change(lambda old: old.roll(new, dims=1))

    cache.add = add
    rows.add([3])
    assert max(rows.round(), rows.round()) > WRONG
