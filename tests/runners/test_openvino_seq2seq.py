"""Encoder-decoder models and masked-block drafters on OpenVINO score as PyTorch's runners do; their texts are equal."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood import Limits, LoadOptions, Method, load_translator
from draftwood.core.errors import CacheError, ConfigError, ModelError
from draftwood.runners.blocks.masked_block_runner import MaskedBlockRunner
from draftwood.runners.factory import make_runners
from draftwood.runners.protocols import BlockRunner, Runner
from draftwood.runners.seq2seq.runner import Seq2SeqRunner
from tests.helpers import begin
from tests.runners.seq2seq_zoo import VOCAB, tiny
from tests.runners.test_block_runners import (
    BLOCK,
    MASK,
    SOURCES,
    START,
    Rounds,
    difference,
    masked_block,
    masked_scores,
)
from tests.runners.test_seq2seq import SourceWalk, walk_all

pytest.importorskip("openvino")
from draftwood.runners.openvino.graph import core
from draftwood.runners.seq2seq.openvino_decoder import OpenVinoDecoder

CLOSE = 1e-4  # float32
WRONG = 1e-2  # a negative control must be at least this far off
KINDS = ["marian", "bart", "m2m_100"]  # norms after and before each part; positions that count tokens
SENTENCES = [
    "Wo ist der Bahnhof?", "Das Haus ist alt.", "Ich habe gestern einen langen Brief an meine Schwester geschrieben.",
    "Die Kommission hat am 3. Mai 2004 einen Vorschlag vorgelegt.",
]  # fmt: skip


def small(kind: str, **settings: Any) -> Any:
    return tiny(kind, dtype=torch.float32, spread=1.0, **settings)


@pytest.fixture(scope="module")
def runners() -> dict[str, Seq2SeqRunner]:
    return {kind: Seq2SeqRunner(small(kind), engine="openvino") for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_is_scored_as_its_paths_in_every_round(runners, kind):
    assert isinstance(runners[kind], Runner)
    assert runners[kind].engine == "openvino"
    assert isinstance(runners[kind]._decoder, OpenVinoDecoder)
    assert walk_all(SourceWalk(runners[kind], [5, 1, 9, 0])) < CLOSE
    assert walk_all(SourceWalk(runners[kind], [0, 3, 2, 30], seed=1, sources=[9, 1, 17, 4])) < CLOSE
    assert runners[kind].forward_seconds > 0


@pytest.mark.parametrize("kind", KINDS)
def test_pytorch_says_the_same_over_many_rounds(kind):
    scores = []
    for runner in (Seq2SeqRunner(small(kind), engine="openvino"), Seq2SeqRunner(small(kind))):
        walk, seen = SourceWalk(runner, [4, 11, 0]), []
        inner = runner.extend

        def extend(*arguments, inner=inner, seen=seen):
            out = inner(*arguments)
            seen.append(out.logits)
            return out

        runner.extend = extend
        rng = random.Random(0)
        for _ in range(7):
            walk.round(nodes=12, unscored=rng.randrange(3), check=False)
        walk.keep([0, 2])
        for _ in range(3):
            walk.round(nodes=3, check=False)
        scores.append(seen)
    assert len(scores[0]) == len(scores[1]) >= 10
    assert all(ours.shape == theirs.shape and ours.dtype == theirs.dtype for ours, theirs in zip(*scores, strict=True))
    worst = max(float((ours - theirs).abs().max()) for ours, theirs in zip(*scores, strict=True))
    assert 0 < worst < CLOSE


def test_texts_longer_than_one_chunk_in_a_ragged_batch():
    walk = SourceWalk(Seq2SeqRunner(small("marian", max_position_embeddings=700), engine="openvino"), [3, 600, 515])
    assert max(walk.round(nodes=4), walk.round(nodes=4)) < CLOSE
    walk.keep([0, 2])
    assert walk.round(nodes=4) < CLOSE


def test_texts_and_sources_that_do_not_fit_are_refused_as_by_pytorch():
    runner = Seq2SeqRunner(small("marian", max_position_embeddings=16), engine="openvino")
    assert runner.max_length == runner.max_source == 16
    with pytest.raises(CacheError, match="source 0 has 17 tokens, but the encoder of marian takes 16"):
        begin(runner, [[2]], [[4] * 17])
    with pytest.raises(ConfigError, match="source 0 is empty"):
        begin(runner, [[2]], [[]])
    begin(runner, [[5] * 16], [[4, 3]])
    with pytest.raises(CacheError, match="the text has 17 tokens"):
        runner.extend(torch.tensor([[4]]), torch.tensor([[0]]), torch.ones(1, 1, 1, dtype=torch.bool))


def test_a_draft_may_be_asked_about_tokens_and_sources_that_it_does_not_know():
    model = small("marian", max_position_embeddings=16)
    ours, theirs = (Seq2SeqRunner(model, engine=engine, drafts=True) for engine in ("openvino", "torch"))
    arguments = torch.tensor([[VOCAB + 7]]), torch.tensor([[0]]), torch.ones(1, 1, 1, dtype=torch.bool)
    scores = []
    for runner in (ours, theirs):
        begin(runner, [[2, 5]], [[VOCAB + 3, *[4] * 30]])
        scores.append(runner.extend(*arguments).logits)
    assert torch.allclose(*scores, atol=CLOSE)


@pytest.mark.parametrize("kind", ["t5", "blenderbot-small"])
def test_models_of_another_kind_are_refused_by_name(kind):
    with pytest.raises(ModelError, match=rf"model type '{kind}' cannot .*Use --backend torch"):
        Seq2SeqRunner(small(kind), engine="openvino")


def test_a_model_in_training_mode_and_other_number_formats_are_refused():
    with pytest.raises(ModelError, match=r"call model.eval\(\)"):
        Seq2SeqRunner(small("marian").train(), engine="openvino")
    for make in (lambda: Seq2SeqRunner(tiny("marian"), engine="openvino"), lambda: blocks(masked_block())):
        with pytest.raises(ConfigError, match="dtype float64 is impossible with OpenVINO"):
            make()


@pytest.mark.skipif("BF16" not in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"), reason="no bfloat16 here")
def test_bfloat16():
    model = small("marian").bfloat16()
    walk = SourceWalk(Seq2SeqRunner(model, engine="openvino"), [3, 6])
    assert 0 < max(walk.round(), walk.round(unscored=1)) < 1.0  # scores of up to 30
    drafter = blocks(masked_block().bfloat16())
    scores = Rounds(drafter, None).runner.score_block(torch.tensor([START] * len(SOURCES)), BLOCK)
    wanted = torch.stack([masked_scores(masked_block(), source, [START], BLOCK) for source in SOURCES]).float()
    assert 0 < difference(scores, wanted) < 0.1 * float(wanted[wanted.isfinite()].abs().max())


def test_auto_goes_back_to_pytorch_where_openvino_cannot(monkeypatch):
    monkeypatch.setenv("DRAFTWOOD_BACKEND", "auto")
    made = make_runners(small("t5"), None)
    assert made.target.engine == "torch"
    assert made.fallback is not None
    assert made.fallback.startswith("model type 't5' cannot be converted for OpenVINO: its encoder or decoder differs")
    made = make_runners(small("bart"), small("t5"))
    assert {made.target.engine, made.draft.engine} == {"torch"}
    assert made.fallback is not None
    assert made.fallback.startswith("the draft: model type 't5'")
    made = make_runners(small("bart"), small("marian"))
    assert (made.target.engine, made.draft.engine, made.fallback) == ("openvino", "openvino", None)


# Negative controls: what these tests compare would show a mistake.


def test_control_a_source_that_stays_in_its_place_shows(runners):
    walk = SourceWalk(runners["marian"], [5, 2, 9], sources=[4, 4, 4])
    assert walk.round() < CLOSE
    decoder = walk.runner._decoder
    drop = decoder.drop
    decoder.drop = lambda _: drop([2])
    try:
        walk.keep([1, 2])
        assert walk.round() > WRONG
    finally:
        del decoder.drop


def test_control_rejected_nodes_that_stay_visible_show(runners, monkeypatch):
    walk = SourceWalk(runners["marian"], [5, 2])
    monkeypatch.setattr("draftwood.runners.openvino.memory.GrowingMemory.compact", everything_stays)
    walk.round()
    assert walk.round() > WRONG


def everything_stays(memory: Any, source: Any, target: Any) -> None:
    memory._make_room(memory._new)
    memory._slots += memory._new
    memory._new, memory._token_slots = 0, []


# The masked-block drafter.


def blocks(model: Any, **settings: Any) -> MaskedBlockRunner:
    return MaskedBlockRunner(model, engine="openvino", **settings)


@pytest.fixture(scope="module")
def drafter() -> MaskedBlockRunner:
    return blocks(masked_block().float())


def block_rounds(runner: Any) -> Rounds:
    return Rounds(runner, lambda *row: masked_scores(runner.model, *row))


def test_blocks_are_those_of_each_row_alone_in_every_round(drafter):
    rounds = block_rounds(drafter)
    assert isinstance(drafter, BlockRunner)
    for count in (BLOCK, 1, None, 3):
        assert rounds.round(count) < CLOSE
    rounds.round(scored=False)
    assert rounds.round(BLOCK) < CLOSE
    rounds.keep([0, 2, 3])  # a row has left
    assert max(rounds.round(None), rounds.round(2)) < CLOSE
    rounds.keep([1])
    assert max(rounds.round(BLOCK), rounds.round(None)) < CLOSE
    rounds.begin(SOURCES[::-1])
    assert max(rounds.round(BLOCK), rounds.round(None)) < CLOSE


def test_blocks_up_to_the_last_position(drafter):
    rounds, room = block_rounds(drafter), 64
    long = [rounds.some(room - BLOCK), rounds.some(room), rounds.some(3), rounds.some(1)]
    for text, new in zip(rounds.texts, long, strict=True):
        text[:] = [START, *new[:-1]]
    scores = drafter.score_block(torch.tensor([text[-1] for text in rounds.texts]), BLOCK)
    assert scores[:, :, [START, MASK]].isneginf().all()
    for row in (0, 2, 3):  # in the second one there is no room for a block, and nothing is drafted
        wanted = masked_scores(drafter.model, SOURCES[row], rounds.texts[row], BLOCK)
        assert torch.allclose(scores[row], wanted, atol=CLOSE)


def test_a_longer_block_of_the_same_drafter_has_a_memory_of_its_own(drafter):
    longer = drafter.longer(12)
    rounds, others = block_rounds(longer), block_rounds(drafter)
    others.begin(SOURCES[::-1])
    for _ in range(2):
        assert rounds.round(12) < CLOSE
        assert others.round(BLOCK) < CLOSE


def test_control_a_mask_that_hides_nothing_shows(drafter, monkeypatch):
    rounds = block_rounds(drafter)
    rounds.round(scored=False)
    made = "draftwood.runners.blocks.openvino_network.bias_of"
    monkeypatch.setattr(made, lambda seen, dtype: torch.zeros(len(seen), 1, 1, seen.shape[1], dtype=dtype))
    assert rounds.round(BLOCK) > WRONG


# Whole translations with the bundled pair.


@pytest.fixture(scope="module")
def pairs() -> list[Any]:
    both = [LoadOptions(dtype="float32", device="cpu", backend=name) for name in ("torch", "openvino")]
    return [load_translator(options=options) for options in both]


SHORT = Limits(max_new_tokens=24)
METHODS = [Method(method="ar"), Method(method="block"), Method(method="block", shape="5"), Method(method="chain"),
           Method(method="ngram"), Method(method="rsd-s")]  # fmt: skip


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.method} {method.shape}")
def test_greedy_texts_are_the_same(pairs, method):
    texts = []
    for translator in pairs:
        together = translator.translate(SENTENCES, method=method)
        alone = translator.translate(SENTENCES[2], method=method)
        assert alone.token_ids == together[2].token_ids
        texts.append([result.token_ids for result in together])
    assert texts[0] == texts[1]
    assert len({len(text) for text in texts[0]}) > 2


@pytest.mark.parametrize("method", ["shared-noise", "ar"])
def test_drawn_texts_of_one_seed_are_the_same(pairs, method):
    texts = []
    for translator in pairs:
        sampling = replace(translator.sampling, temperature=1.0)
        chosen = Method(method=method, verifier="coupled")
        drawn = translator.translate(SENTENCES, method=chosen, sampling=sampling, limits=SHORT, seed=[3, 4, 5, 6])
        texts.append([result.token_ids for result in drawn])
    assert texts[0] == texts[1]
    greedy = pairs[0].translate(SENTENCES, limits=SHORT)
    assert texts[0] != [result.token_ids for result in greedy]


def test_a_translator_says_what_runs_it(pairs):
    assert [translator.target.engine for translator in pairs] == ["torch", "openvino"]
    assert "float32 on cpu by torch>" in repr(pairs[0])
    assert "float32 on cpu by openvino>" in repr(pairs[1])
    assert pairs[1].draft.engine == "openvino"
    assert pairs[1].profile_key["engine"] == "openvino"
