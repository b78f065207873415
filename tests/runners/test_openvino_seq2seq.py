"""Encoder-decoder models and masked-block drafters on OpenVINO score as PyTorch's runners do; their texts are equal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from draftwood import Limits, LoadOptions, Method, load_translator
from draftwood.core.errors import ConfigError, ModelError
from draftwood.runners.blocks.masked_block_runner import MaskedBlockRunner
from draftwood.runners.factory import make_runners
from draftwood.runners.seq2seq.runner import Seq2SeqRunner
from tests.runners.seq2seq_zoo import VOCAB, tiny
from tests.runners.test_block_runners import (
    BLOCK,
    SOURCES,
    START,
    Rounds,
    difference,
    masked_block,
    masked_scores,
)
from tests.runners.test_seq2seq import SourceWalk
from tests.runners.zoo import tiny as tiny_causal

pytest.importorskip("openvino")
from draftwood.runners.openvino import memory
from draftwood.runners.openvino.graph import core
from draftwood.runners.openvino.memory import GrowingMemory

CLOSE = 1e-4  # float32
WRONG = 1e-2  # a negative control must be at least this far off
SENTENCES = [
    "Wo ist der Bahnhof?", "Das Haus ist alt.", "Ich habe gestern einen langen Brief an meine Schwester geschrieben.",
    "Die Kommission hat am 3. Mai 2004 einen Vorschlag vorgelegt.",
]  # fmt: skip


def small(kind: str, **settings: Any) -> Any:
    return tiny(kind, dtype=torch.float32, spread=1.0, **settings)


@pytest.mark.parametrize("kind", ["t5", "blenderbot-small"])
def test_models_of_another_kind_are_refused_by_name(kind):
    with pytest.raises(ModelError, match=rf"model type '{kind}' cannot .*Use --backend torch"):
        Seq2SeqRunner(small(kind), engine="openvino")


def test_a_model_in_training_mode_and_other_number_formats_are_refused():
    with pytest.raises(ModelError, match=r"call model.eval\(\)"):
        Seq2SeqRunner(small("marian").train(), engine="openvino")
    for kind, model in ((Seq2SeqRunner, tiny("marian")), (MaskedBlockRunner, masked_block())):
        with pytest.raises(ConfigError, match="dtype float64 is impossible with --backend openvino"):
            kind(model, engine="openvino")


@pytest.mark.skipif("BF16" not in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"), reason="no bfloat16 here")
def test_bfloat16():
    model = small("marian").bfloat16()
    walk = SourceWalk(Seq2SeqRunner(model, engine="openvino"), [3, 6])
    assert 0 < max(walk.round(), walk.round(unscored=1)) < 1.0  # scores of up to 30
    drafter = MaskedBlockRunner(masked_block().bfloat16(), engine="openvino")
    scores = Rounds(drafter, None).runner.score_block(torch.tensor([START] * len(SOURCES)), BLOCK)
    wanted = torch.stack([masked_scores(masked_block(), source, [START], BLOCK) for source in SOURCES]).float()
    assert 0 < difference(scores, wanted) < 0.1 * float(wanted[wanted.isfinite()].abs().max())


def test_auto_goes_back_to_pytorch_where_openvino_cannot(monkeypatch):
    monkeypatch.setenv("DRAFTWOOD_BACKEND", "auto")
    differs = "model type 't5' cannot be converted for OpenVINO: its encoder or decoder differs"
    causal = "the draft: OpenVINO runs encoder-decoder models only"
    cases = (
        ((small("t5"), None), differs),
        ((small("bart"), small("t5")), f"the draft: {differs}"),
        ((small("bart"), tiny_causal("gpt2", dtype=torch.float32, vocab_size=VOCAB)), causal),
    )
    for models, said in cases:
        made = make_runners(*models)
        assert {runner.engine for runner in (made.target, made.draft) if runner} == {"torch"}
        assert str(made.fallback).startswith(f"OpenVINO does not run the models ({said}")
    made = make_runners(small("bart"), small("marian"))
    assert (made.target.engine, made.draft.engine, made.fallback) == ("openvino", "openvino", None)


def test_control_rejected_nodes_that_stay_visible_show(monkeypatch):
    def everything_stays(slots: Any, source: Any, target: Any) -> None:
        slots._make_room(slots._new)
        slots._slots += slots._new
        slots._new, slots._token_slots = 0, []

    walk = SourceWalk(Seq2SeqRunner(small("marian"), engine="openvino"), [5, 2])
    monkeypatch.setattr("draftwood.runners.openvino.memory.GrowingMemory.compact", everything_stays)
    walk.round()
    assert walk.round() > WRONG


# The memory that only grows.


def walk_of(lengths: list[int], **settings: Any) -> SourceWalk:
    return SourceWalk(Seq2SeqRunner(small("marian", **settings), engine="openvino", check=False), lengths)


@pytest.fixture
def cleared(monkeypatch) -> list[int]:
    """Slots in use at every time that a memory was cleared."""
    found: list[int] = []
    inner = GrowingMemory._clear
    monkeypatch.setattr(GrowingMemory, "_clear", lambda self, most: (found.append(most), inner(self, most)))
    return found


def test_clearing_dead_slots_away_changes_nothing(cleared, monkeypatch):
    monkeypatch.setattr(memory, "_PATIENCE", 4.0)
    rows = walk_of([2, 26, 0])
    assert max(rows.round(nodes=14) for _ in range(5)) < CLOSE
    rows.keep([0, 2])
    assert max(rows.round(nodes=14) for _ in range(5)) < CLOSE
    assert len(cleared) > 3
    assert rows.runner._decoder.cache._slots < 100 < 10 * 14


def test_slots_are_cleared_seldom_but_never_left_to_pile_up(cleared):
    rows = walk_of([50], max_position_embeddings=400)
    for _ in range(40):
        rows.round(nodes=16, check=False)
    assert 1 < len(cleared) < 6
    slots = rows.runner._decoder.cache
    assert (slots._slots - max(slots._live)) ** 2 <= 100 * max(slots._live)
    assert rows.round() < CLOSE


def test_control_clearing_away_the_wrong_slots_is_seen(monkeypatch):
    monkeypatch.setattr(memory, "_PATIENCE", 4.0)
    inner = GrowingMemory._clear

    def wrong(slots: GrowingMemory, most: int) -> None:
        line = slots._bias[:, : slots._slots]
        line[:] = np.roll(line, 3, axis=1)
        inner(slots, most)

    monkeypatch.setattr(GrowingMemory, "_clear", wrong)
    rows = walk_of([26])
    assert max(rows.round(nodes=14) for _ in range(6)) > WRONG


@pytest.fixture
def widths(monkeypatch) -> list[tuple[int, int]]:
    """Of every forward, the tokens that were wanted and those that were read."""
    found: list[tuple[int, int]] = []
    inner = GrowingMemory.inputs

    def inputs(slots, batch):
        out = inner(slots, batch)
        found.append((batch.tokens.shape[1], out.tokens.shape[1]))
        return out

    monkeypatch.setattr(GrowingMemory, "inputs", inputs)
    return found


def test_a_forward_a_little_smaller_than_the_last_one_is_made_as_large(widths):
    """With tokens of no use, which change nothing, in the same round or later ones."""
    rows = walk_of([7])
    assert max(rows.round(nodes=nodes) for nodes in (6, 5, 2, 6, 1, 3)) < CLOSE
    assert sum(wanted < read for wanted, read in widths) > 3
    assert max(read - wanted for wanted, read in widths) <= 6


def test_forwards_of_many_rows_or_a_large_model_are_left_as_they_are(widths):
    many = walk_of([7] * 8)
    assert max(many.round(nodes=nodes) for nodes in (6, 5, 2)) < CLOSE
    assert all(wanted == read for wanted, read in widths)
    assert memory.spare_tokens(small("marian"), 2) == 6
    assert memory.spare_tokens(torch.nn.Linear(10_000, 1_000), 2) == 0


def test_control_tokens_of_no_use_that_are_seen(monkeypatch):
    inner = GrowingMemory.compact

    def compact(slots, source, target):
        slots._token_slots = [place - (slots._new - len(slots._token_slots)) for place in slots._token_slots]
        inner(slots, source, target)

    monkeypatch.setattr(GrowingMemory, "compact", compact)
    rows = walk_of([7])
    assert max(rows.round(nodes=nodes) for nodes in (6, 5, 2, 6, 1, 3)) > WRONG


@pytest.mark.parametrize("nodes", [7, 1])
def test_control_dead_slots_that_are_seen(nodes):
    rows = walk_of([5] if nodes == 1 else [5, 2])
    rows.round(nodes=8)
    rows.runner._decoder.cache._bias.fill(0.0)
    assert rows.round(nodes=nodes) > WRONG


@pytest.mark.parametrize("lengths", [[5], [4, 4], [7, 2]])
def test_bare_roots_see_the_text_and_no_more(lengths, monkeypatch):
    """A root alone needs no mask of its own; what rounds with trees have left behind stays hidden from it."""
    monkeypatch.setattr(memory, "_ROOM", 2)  # it grows
    rows = walk_of(lengths)
    with torch.inference_mode():  # small inputs are copied here too
        assert max(rows.round(nodes=nodes, accept=False) for nodes in (1, 6, 1)) < CLOSE
    assert max(rows.round(nodes=nodes, accept=False) for nodes in (1, 4, 1, 1, 1)) < CLOSE


def test_control_small_inputs_that_are_not_copied(monkeypatch):
    rows = walk_of([5])
    assert max(rows.round(nodes=nodes) for nodes in (1, 1, 3, 1, 3, 3, 1)) < CLOSE  # each size has memory of its own
    monkeypatch.setattr(type(rows.runner._decoder._decoder), "fill", lambda self, **tensors: None)
    assert rows.round(nodes=1) > WRONG


def test_control_a_drop_of_the_wrong_row_of_the_state():
    rows = walk_of([5, 2, 9])
    rows.round()
    rows.keep([1, 2])
    rows.runner._decoder.cache._rows = [0, 1]
    assert rows.round() > WRONG


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
