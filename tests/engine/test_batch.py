"""A row's text is the one that it has alone, whatever joins and leaves the batch, and whatever settings others have."""

from __future__ import annotations

import copy
import functools
import gc
import random
import weakref
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from transformers import SequenceBiasLogitsProcessor

from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.engine.requests import Request
from draftwood.runners.blocks.masked_block import MaskedBlockRunner
from draftwood.runners.factory import make_runners
from draftwood.runners.seq2seq.runner import Seq2SeqRunner
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling.counter_rng import CounterRng
from draftwood.sampling.rows import Row
from draftwood.sampling.sampler import Sampler
from draftwood.sampling.settings import Sampling
from tests.helpers import decoder, hidden_pair, published_pair, rest_of, tiny_gpt, tiny_hidden, tiny_model
from tests.runners.seq2seq_zoo import tiny as tiny_source
from tests.runners.test_block_runners import masked_block
from tests.runners.test_masked_block import marian

VOCAB = 12
SAMPLINGS = [
    Sampling(temperature=0.0),
    Sampling(temperature=1.0),
    Sampling(temperature=0.7, top_p=0.9),
    Sampling(temperature=1.2, top_k=5, repetition_penalty=1.3),
    Sampling(temperature=0.0, presence_penalty=0.4),
    Sampling(temperature=0.9, logit_bias={3: 2.0, 4: -float("inf")}),
    Sampling(temperature=1.0, processors=[SequenceBiasLogitsProcessor({(5,): 1.5})], min_p=0.05),
]


def requests_of(seed, count=7, *, sources=False, long=False, vocab=VOCAB):
    """Requests with settings of their own; some want no draft. Long prompts take several chunks, and some begin alike."""
    rng = random.Random(seed)

    def tokens(most, least=1):
        return [rng.randrange(2, vocab - 1) for _ in range(rng.randrange(least, most))]

    beginning = tokens(14, 9) if long else []
    return [
        (
            Request(
                prompt=[*(beginning if long and rng.random() < 0.5 else ()), *tokens(25 if long else 9)],
                source=tokens(9) if sources else (), seed=rng.randrange(1000),
                limits=Limits(max_new_tokens=rng.randrange(3, 12)),
            ),
            rng.choice(SAMPLINGS),
            "ar" if rng.random() < 0.2 else None,
        )
        for _ in range(count)
    ]  # fmt: skip


def alone(engine, request, sampling, method):
    with engine.batch() as batch:
        row = batch.add(request, sampling, method=method)
        return rest_of(batch)[row]


def together(batch, given, seed, *, pauses=False):
    """The texts of rows that join and pause at random times, and the rows that were dropped early."""
    rng, coming, texts, dropped, paused, ended = random.Random(seed), list(given), {}, set(), set(), set()
    while coming or len(batch):
        while coming and (not len(batch) or rng.random() < 0.4):
            request, sampling, method = coming.pop(0)
            texts[batch.add(request, sampling, method=method)] = []
        if len(batch) and rng.random() < 0.06:
            row = rng.choice([row for row in texts if row not in dropped])
            dropped.add(row)
            batch.drop(row)
        going = [row for row in texts if row not in dropped | paused | ended]
        if pauses and going and rng.random() < 0.15:
            paused.add(row := rng.choice(going))
            batch.pause(row)
        elif paused and rng.random() < 0.5:
            batch.resume(paused.pop())
        for piece in batch.step():
            assert piece.row not in dropped | paused
            texts[piece.row] += piece.tokens
            ended |= {piece.row} if piece.finish_reason is not None else set()
            assert piece.tokens == piece.round.tokens[piece.round_row][: len(piece.tokens)]
    return texts, dropped


def compare(engine, given, seed, *, pauses=False, **options):
    """Write texts alone and in a batch with these options; returns the number of tokens that were compared."""
    whole = [alone(engine, *one) for one in given]
    with engine.batch(**options) as batch:
        texts, dropped = together(batch, list(given), seed, pauses=pauses)
    for row, text in texts.items():
        assert text == (whole[row][: len(text)] if row in dropped else whole[row]), (seed, row, given[row])
    return sum(map(len, texts.values()))


def check(engine, *, sources=False, pauses=True):
    return compare(engine, requests_of(0, sources=sources), 0, pauses=pauses)


@functools.cache
def causal(backend):
    models = tiny_model(backend, VOCAB, 1), tiny_model(backend, VOCAB, 2, layers=1)
    target, draft, _ = make_runners(*models, backend=backend)
    return target, draft


@functools.cache
def translating():
    names = {"vocab_size": VOCAB, "pad_token_id": 0, "decoder_start_token_id": 1}
    target, draft = (tiny_source("marian", seed=seed, dtype=torch.float32, spread=0.5, **names) for seed in (0, 2))
    return Seq2SeqRunner(target), Seq2SeqRunner(draft, drafts=True)


def method_id(case):
    return "-".join(part for part in case if part) if isinstance(case, tuple) else str(case)


ON_TORCH = [
    ("chain", "3", "recursive"), ("rsd-s", "2x3", "traversal"), ("iid", "2x2", "recursive"),
    ("dynamic", "3x3", "recursive"), ("ngram", "4", "recursive"), ("lookup", None, "coupled"), ("adaptive", None, "coupled"),
    ("rsd-c", "2-2", "coupled"),
]  # fmt: skip


CAUSAL = pytest.mark.parametrize(("backend", "method"), [
    *(("torch", method) for method in ON_TORCH),
    *product(("native",), [("rsd-s", "2x3", "traversal"), ("adaptive", None, "coupled")]),
], ids=method_id)  # fmt: skip
OF_HIDDEN_STATES = pytest.mark.parametrize(("kind", "backend"), [
    ("hidden", "torch"), ("hidden", "native"), ("eagle3", "torch"), ("eagle3", "native"),
    ("dspark", "torch"), ("dspark", "native"), ("dflash", "native"), ("mtp", "native"),
])  # fmt: skip


def of_hidden_states(kind, backend):
    """A target and its drafter of this kind."""
    model = tiny_model(backend, VOCAB, 1)
    return hidden_pair(model, backend) if kind == "hidden" else published_pair(model, kind, backend)


@CAUSAL
def test_causal_models(backend, method):
    assert check(decoder(*causal(backend), *method)) > 30


@OF_HIDDEN_STATES
def test_drafters_of_hidden_states(kind, backend):
    """After a pause their drafts are others, so that the text is the same with a coupled verifier."""
    assert check(decoder(*of_hidden_states(kind, backend), "rsd-s", "2x2", "recursive"), pauses=False) > 30
    assert check(decoder(*of_hidden_states(kind, backend), "rsd-c", "2-2", "coupled")) > 30


@pytest.mark.parametrize("method", [("rsd-s", "2x2", "recursive"), ("ngram", "3", "coupled")], ids=method_id)
def test_encoder_decoder_models(method):
    assert check(decoder(*translating(), *method), sources=True) > 30


def test_blocks_with_penalties_in_some_rows():
    """A masked block's scores depend on its length, which is the same with penalties and without."""
    pair = Seq2SeqRunner(marian().float()), MaskedBlockRunner(masked_block().float())
    assert check(decoder(*pair, "block", "2", "recursive"), sources=True) > 30


@pytest.mark.parametrize(("method", "shape"), [("rsd-c", "2-2"), ("rsd-s", "2x2"), ("iid", "2x2"), ("dynamic", None)])
def test_the_settings_of_other_rows_change_no_draw_of_a_drafter_that_proposes_some_tokens(method, shape):
    target = tiny_gpt(23, 1, dtype=torch.float64)
    drafter = tiny_hidden(target, proposes=11)
    drafter.draft_tokens.copy_(torch.arange(1, 23, 2))
    parts = make_runners(target, drafter, backend="torch")[:2]
    requests = [Request(prompt=[1, 2, 3], seed=seed, limits=Limits(max_new_tokens=24)) for seed in range(3)]
    settings = [Sampling(temperature=1.0), Sampling(temperature=1.0, top_k=5), Sampling(temperature=0.7, top_p=0.8)]

    def texts(rows):
        with decoder(*parts, method, shape, "recursive", nodes=None if shape else 6).batch() as batch:
            for row in rows:
                batch.add(requests[row], settings[row])
            found = rest_of(batch)
        return [found[row] for row in range(len(rows))]

    assert texts(range(3)) == [*texts([0]), *texts([1]), *texts([2])]


# ---- a batch ----


def some(length=6, **settings):
    return Request(prompt=[1, 2], limits=Limits(max_new_tokens=length), **settings)


def test_further_requests_wait_for_a_row_to_end():
    engine, given = decoder(*causal("torch"), "shared-noise", "2-2", "coupled"), requests_of(3)
    whole = [alone(engine, *one) for one in given]
    with engine.batch(rows=2) as batch:
        for request, sampling, method in given:
            batch.add(request, sampling, method=method)
        assert (len(batch), batch.waiting) == (7, 7)
        texts, order = {row: [] for row in range(7)}, []
        while len(batch):
            pieces = batch.step()
            assert len(pieces) == min(2, len({piece.row for piece in pieces}) + batch.waiting)
            for piece in pieces:
                texts[piece.row] += piece.tokens
                order += [piece.row] if piece.row not in order else []
        assert order == sorted(order), "first come, first served"
    assert [texts[row] for row in range(7)] == whole


@pytest.mark.parametrize(("method", "shape", "nodes", "cut"), [
    ("shared-noise", None, 8, [1, 2, 2]), ("dynamic", None, 8, [1, 2, 2]), ("ngram", None, None, [1, 2, 2]),
    ("chain", "4", None, [1, 2, 2]), ("rsd-c", "2-2", None, [0, 2, 2]), ("rsd-s", "2x3", None, [0, 2, 2]),
    ("shared-noise", "1-2", None, [1, 1, 1]),
])  # fmt: skip
def test_a_row_has_at_most_as_many_nodes_as_its_request_wants(method, shape, nodes, cut):
    """Trees of a fixed shape keep whole levels."""
    engine = decoder(*causal("torch"), method, shape, nodes=nodes)
    wanted, drafted = [None, 1, 2, 2], dict[int, list[int]]()
    with engine.batch() as batch:
        for most in wanted:
            batch.add(some(9, seed=4, nodes=most), Sampling())
        while len(batch):
            for piece in batch.step():
                drafted.setdefault(piece.row, []).append(piece.round.tree.drafted[piece.round_row])
    assert [max(drafted[row]) for row in range(1, 4)] == cut
    assert max(drafted[0]) > 2


def test_dropped_rows_leave_no_piece_and_the_memory_to_others():
    engine = decoder(*causal("torch"), "chain", "2", "recursive")
    with engine.batch(rows=2) as batch:
        rows = [batch.add(some(seed=seed), Sampling()) for seed in range(3)]
        assert [piece.row for piece in batch.step()] == rows[:2]
        for row in (rows[2], rows[0], rows[0]):  # waiting, writing, gone
            batch.drop(row)
        assert [piece.row for piece in batch.step()] == [rows[1]]
        batch.drop(rows[1])
        assert batch.step() == []
        assert len(batch) == 0
        for row in (-1, 3):
            with pytest.raises(ConfigError, match=f"row {row} is not in the batch"):
                batch.drop(row)
        with pytest.raises(ConfigError, match="row 0 is not in the batch: it has ended"):
            batch.stats(0)
    assert engine.generate([some(seed=1)], Sampling())[0].token_ids == alone(engine, some(seed=1), Sampling(), None)


def test_what_a_row_cannot_have_is_refused_by_name_and_the_others_go_on():
    engine, greedy = decoder(*causal("torch"), "shared-noise", "2-2", "greedy", greedy=True), Sampling(temperature=0.0)
    with engine.batch() as batch:
        batch.add(some(), greedy)
        for request, sampling, method, message in (
            (some(), Sampling(), None, "'greedy' is for temperature 0 only, but temperature is 1"),
            (some(), greedy, "rsd-s", r"request 1 wants method 'rsd-s', but all rows .* 'shared-noise'"),
            (some(seed=-1), greedy, None, "seed is -1"),
            (some(nodes=0), greedy, None, "nodes of request 1 is 0: give 1 or more"),
        ):
            with pytest.raises(ConfigError, match=message):
                batch.add(request, sampling, method=method)
        with pytest.raises(ConfigError, match="generating already"), engine.batch():
            pass
        assert [len(batch.step()), len(batch)] == [1, 1]


# ---- negative controls ----


def test_control_noise_by_the_order_of_rows_is_seen(monkeypatch):
    at = CounterRng.at

    def by_order(self, positions):
        return at(CounterRng([seed + row for row, seed in enumerate(self.seeds)], greedy=self.greedy), positions)

    monkeypatch.setattr(CounterRng, "at", by_order)
    with pytest.raises(AssertionError):
        check(decoder(*causal("torch"), "shared-noise", "2-2", "coupled"))


def test_control_settings_by_the_order_of_rows_are_seen(monkeypatch):
    def mixed_up(rows, *rest):
        swapped = [copy.copy(row) for row in rows]
        for row, other in zip(swapped, rows[::-1], strict=True):
            row.sampling = other.sampling
        return Sampler(swapped, *rest)

    monkeypatch.setattr("draftwood.engine.batch.Sampler", mixed_up)
    with pytest.raises(AssertionError):
        check(decoder(*causal("torch"), "chain", "2", "recursive"))


def test_control_a_drafter_that_mixes_rows_is_seen():
    target, draft = causal("torch")
    engine = decoder(target, TorchRunner(draft.model, drafts=True), "chain", "3", "recursive")
    cache = engine.pipeline.drafter.runner._cache

    def drop(rows):
        type(cache).drop(cache, rows)
        cache._change(lambda old: old.roll(1, dims=1))

    cache.drop = drop
    with pytest.raises(AssertionError):
        check(engine)


@pytest.mark.parametrize(
    "method", [("adaptive", None, "coupled"), ("rsd-s", "2x2", "traversal"), ("lookup", None, "coupled")]
)
def test_what_a_row_brings_is_free_when_its_text_has_ended(method):
    """A processor may hold a model, and a drafter outlives its texts."""
    engine = decoder(*causal("torch"), *method)
    processor = SequenceBiasLogitsProcessor({(5,): 1.5})
    gone = weakref.ref(processor)
    request = Request(prompt=[2, 3, 4], limits=Limits(max_new_tokens=6))
    assert len(engine.generate([request], Sampling(processors=[processor]))[0].token_ids) == 6
    del processor
    gc.collect()
    assert gone() is None


def test_what_parts_keep_for_a_row_is_their_own_even_if_they_are_equal():
    @dataclass
    class Part:  # neither hashable nor unequal to another one
        name: str = "part"

    row, first, second = Row(tokens=[1], sampling=Sampling()), Part(), Part()
    row.state(first, list).append(1)
    assert (row.state(first, list), row.state(second, list)) == ([1], [])
    assert row.has_state(second)
    assert not row.has_state(Part())
