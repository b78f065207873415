"""Rows that come and go between rounds: their scores and texts are those that they have alone."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import pytest
import torch

from draftwood.core.counter_rng import CounterRng
from draftwood.core.limits import Limits
from draftwood.core.rounds import Round
from draftwood.core.settings import Method
from draftwood.engine.methods import build
from draftwood.engine.requests import Request
from draftwood.runners.rows import padded_rows, remaining_rows
from draftwood.runners.seq2seq.bart_decoder import BartDecoder
from draftwood.runners.seq2seq.patched_decoder import PatchedDecoder
from draftwood.runners.seq2seq.runner import Seq2SeqRunner
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling.rows import Row
from draftwood.sampling.sampler import Sampler
from draftwood.sampling.settings import Sampling
from draftwood.verify.sparse import verify
from tests.helpers import decoder, tiny_gpt
from tests.runners.seq2seq_zoo import tiny as tiny_source
from tests.runners.test_block_runners import (
    BLOCK,
    SOURCES,
    masked_block,
    masked_rounds,
    masked_scores,
)
from tests.runners.test_block_runners import Rounds as BlockRounds
from tests.runners.test_logit_identity import Walk, walk
from tests.runners.test_seq2seq import SourceWalk, tolerance, with_decoder
from tests.runners.zoo import plain_scores, tiny
from tests.tables import TableRunner

CLOSE, WRONG = 1e-4, 1e-2


def come_and_go(rows: Any) -> float:
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


@pytest.mark.parametrize("kind", ["llama", "gpt2", "opt", "gemma3_text"])
def test_scores_of_causal_models(kind):
    assert come_and_go(walk(kind, [5, 1, 9])) < (1e-4 if kind == "gemma3_text" else 1e-9)


def test_scores_of_tables():
    table = torch.randn([5] * 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    runner = TableRunner(table)
    assert come_and_go(Walk(runner, runner.scores, [5, 1, 9])) == 0


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("drafts", [False, True])
def test_scores_of_openvino(kind, drafts, monkeypatch):
    pytest.importorskip("openvino")
    from draftwood.runners.openvino import memory
    from draftwood.runners.openvino.runner import OpenVinoRunner

    model = tiny(kind, dtype=torch.float32)
    rows = Walk(OpenVinoRunner(model, drafts=drafts), lambda text: plain_scores(model, text), [5, 1, 9])
    assert come_and_go(rows) < CLOSE
    monkeypatch.setattr(memory, "_PATIENCE", 1.0)  # dead slots are cleared away again and again
    assert come_and_go(Walk(rows.runner, rows.scores_of, [5, 1, 9], seed=1)) < CLOSE


@pytest.mark.parametrize(("kind", "chosen"), [
    ("marian", BartDecoder), ("m2m_100", BartDecoder), ("marian", PatchedDecoder), ("t5", PatchedDecoder),
])  # fmt: skip
def test_scores_of_encoder_decoder_models(kind, chosen):
    assert come_and_go(SourceWalk(with_decoder(tiny_source(kind), chosen), [5, 1, 9])) < tolerance(kind)


def test_sources_of_new_rows_may_be_longer_or_shorter():
    rows = SourceWalk(Seq2SeqRunner(tiny_source("marian")), [5, 1], sources=[6, 6])
    for lengths in ([11], [2, 6]):
        rows.round()
        rows.add([2] * len(lengths), lengths)
        assert max(rows.round(), rows.round()) < 1e-9


def test_scores_of_encoder_decoder_models_on_openvino():
    pytest.importorskip("openvino")
    model = tiny_source("marian", dtype=torch.float32, spread=1.0)
    rows = SourceWalk(Seq2SeqRunner(model, engine="openvino"), [5, 1, 9], sources=[6, 3, 17])
    assert come_and_go(rows) < CLOSE


def blocks_that_come_and_go(rounds: BlockRounds) -> float:
    found = [rounds.round(BLOCK), rounds.round(2)]
    rounds.add([SOURCES[1], SOURCES[2] + SOURCES[0]])
    found += [rounds.round(BLOCK), rounds.round(None)]
    rounds.keep([1, 3, 5])
    rounds.add([SOURCES[3]])
    rounds.add([SOURCES[0]])
    found += [rounds.round(None), rounds.round(BLOCK)]
    rounds.keep([4])
    return max(*found, rounds.round(BLOCK), rounds.round(1))


def test_scores_of_blocks():
    assert blocks_that_come_and_go(masked_rounds()) < 1e-9


def test_scores_of_blocks_on_openvino():
    pytest.importorskip("openvino")
    from draftwood.runners.blocks.masked_block_runner import MaskedBlockRunner

    model = masked_block().float()
    runner = MaskedBlockRunner(model, engine="openvino")
    assert blocks_that_come_and_go(BlockRounds(runner, lambda *row: masked_scores(model, *row))) < CLOSE


# ---- texts ----


def texts_of(
    target: Any,
    draft: Any,
    method: Method,
    sampling: Sampling,
    requests: Sequence[Request],
    coming: Mapping[int, Sequence[int]],
) -> list[list[int]]:
    """New tokens of each request, of which ``coming`` says in which round it joins."""
    drafter, verifier = build(method, draft, greedy=sampling.greedy)
    runners = [target] if drafter.runner is None else [target, drafter.runner]
    for runner in runners:
        runner.clear()
    made = [Row(tokens=list(one.prompt), sampling=sampling, number=i, source=one.source) for i, one in enumerate(requests)]
    rows: list[Row] = []
    for number in count():
        if new := list(coming.get(number, ())):
            for runner in runners:
                runner.add([made[i].tokens[:-1] for i in new], [made[i].source for i in new])
            rows += [made[i] for i in new]
        if not rows and number > max(coming):
            return [
                row.tokens[row.prompt_length :][: one.limits.max_new_tokens] for row, one in zip(made, requests, strict=True)
            ]
        if not rows:
            continue
        sampler = Sampler(rows, target.vocab_size)
        noise = CounterRng([requests[row.number].seed for row in rows], greedy=sampling.greedy)
        rng = noise.at([len(row.tokens) - 1 for row in rows])
        with torch.inference_mode():
            tree = drafter.draft(torch.tensor([row.tokens[-1] for row in rows]), sampler, rng, [8] * len(rows))
            scores = target.extend(tree.tokens, tree.depths, tree.ancestors)
            found = sampler.target(scores.logits, tree.prefixes, certain=True)
            this_round = Round(tree=tree, scores=scores, target_log_probs=found, verdict=verify(verifier, tree, found, rng))
        for row, tokens in zip(rows, this_round.tokens, strict=True):
            row.tokens += tokens
        target.commit([[0, *path] for path in this_round.paths], [[] for _ in rows])
        drafter.commit(this_round)
        done = [
            r
            for r, row in enumerate(rows)
            if len(row.tokens) - row.prompt_length >= requests[row.number].limits.max_new_tokens
        ]
        for runner in runners:
            runner.drop(done)
        rows = [row for r, row in enumerate(rows) if r not in done]
    raise AssertionError


def requests_of(sources: bool) -> list[Request]:
    rng = random.Random(5)
    return [
        Request(
            prompt=[rng.randrange(2, 11) for _ in range(rng.randrange(1, 9))], seed=seed,
            source=[rng.randrange(2, 11) for _ in range(rng.randrange(2, 9))] if sources else (),
            limits=Limits(max_new_tokens=rng.randrange(6, 24)),
        )
        for seed in range(6)
    ]  # fmt: skip


COMING = {0: [0, 1], 2: [2], 3: [3, 4], 9: [5]}
TOGETHER = {0: [0, 1, 2, 3, 4, 5]}
SHARED = [("chain", "3"), ("shared-noise", "2-2"), ("ngram", "3"), ("rsd-s", "2x2"), ("adaptive", None)]


def check_texts(target: Any, draft: Any, name: str, shape: str | None, sampling: Sampling) -> None:
    """Coming and going, all at once, and alone by plain decoding."""
    requests = requests_of(target.reads_source)
    method = Method(method=name, shape=shape, verifier="auto" if sampling.greedy else "coupled")
    plain = decoder(target, None, "ar", greedy=sampling.greedy)
    alone = [plain.generate([request], sampling)[0].token_ids for request in requests]
    for coming in (COMING, TOGETHER):
        assert texts_of(target, draft, method, sampling, requests, coming) == alone


def causal_pair(backend: str) -> tuple[Any, Any]:
    dtype = torch.float64 if backend == "torch" else torch.float32
    models = tiny_gpt(12, 1, dtype=dtype), tiny_gpt(12, 2, layers=1, dtype=dtype)
    if backend == "torch":
        return TorchRunner(models[0]), TorchRunner(models[1], drafts=True)
    pytest.importorskip("openvino")
    from draftwood.runners.factory import make_runners

    target, draft, _ = make_runners(*models, backend="openvino")
    return target, draft


@pytest.mark.parametrize("backend", ["torch", "openvino"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_of_causal_models(backend, temperature):
    target, draft = causal_pair(backend)
    for name, shape in SHARED:
        if name in ("rsd-s", "chain") and temperature:
            continue  # those trees are drawn: which token is accepted depends on the draft's own noise
        check_texts(target, draft, name, shape, Sampling(temperature=temperature))


@pytest.mark.parametrize("engine", ["torch", "openvino"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_of_encoder_decoder_models(engine, temperature):
    if engine == "openvino":
        pytest.importorskip("openvino")
    dtype = torch.float64 if engine == "torch" else torch.float32
    settings = {"dtype": dtype, "spread": 0.5, "vocab_size": 12, "pad_token_id": 0, "decoder_start_token_id": 1}
    target = Seq2SeqRunner(tiny_source("marian", **settings), engine=engine)
    draft = Seq2SeqRunner(tiny_source("marian", seed=2, **settings), engine=engine, drafts=True)
    for name, shape in (("shared-noise", "2-2"), ("ngram", "3")):
        check_texts(target, draft, name, shape, Sampling(temperature=temperature))


def test_a_new_batch_begins_wherever_the_last_one_ended():
    """In the middle of a round, as after a stream that was closed early."""
    rows = walk("llama", [5, 1])
    rows.round()
    eye = torch.ones(2, 1, 1, dtype=torch.bool)
    rows.runner.extend(torch.tensor([[3], [4]]), torch.zeros(2, 1, dtype=torch.long), eye)
    assert come_and_go(Walk(rows.runner, rows.scores_of, [5, 1, 9], seed=3)) < 1e-9


def test_lists_and_tensors_of_rows():
    assert remaining_rows(4, [2, 0]) == [1, 3]
    found = padded_rows(torch.ones(1, 2), torch.full((2, 3), 2.0), 1)
    assert found.tolist() == [[1, 1, 0], [2, 2, 2], [2, 2, 2]]


# ---- negative controls ----


def test_control_a_cache_that_mixes_rows():
    rows = walk("llama", [5, 1])
    rows.round()
    cache = rows.runner._cache

    def add(new: int) -> None:
        type(cache).add(cache, new)
        cache.keys, cache.values = cache.keys.roll(new, dims=1), cache.values.roll(new, dims=1)

    cache.add = add
    rows.add([3])
    assert max(rows.round(), rows.round()) > WRONG


def test_control_new_rows_that_see_the_text_of_others():
    pytest.importorskip("openvino")
    from draftwood.runners.openvino.runner import OpenVinoRunner

    model = tiny("llama", dtype=torch.float32)
    rows = Walk(OpenVinoRunner(model, paged=False), lambda text: plain_scores(model, text), [5, 1])
    rows.round()
    rows.add([3])
    rows.runner._memory._bias[2] = 0.0
    assert rows.round() > WRONG


def test_control_sources_in_the_wrong_order():
    rows = SourceWalk(Seq2SeqRunner(tiny_source("marian")), [5, 1], sources=[4, 4])
    rows.round()
    rows.add([3], [4])
    decoder_ = rows.runner._decoder
    decoder_._keep(decoder_._source.picked([2, 0, 1]))
    assert rows.round() > WRONG


def test_control_texts_of_a_runner_that_mixes_rows(monkeypatch):
    target, draft = causal_pair("torch")
    monkeypatch.setattr(target._cache, "drop", lambda rows: type(target._cache).drop(target._cache, [0] * len(rows)))
    with pytest.raises((AssertionError, RuntimeError)):
        check_texts(target, draft, "shared-noise", "2-2", Sampling())
