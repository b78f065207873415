"""Encoder-decoder models and masked-block drafters on OpenVINO score as PyTorch's runners do; their texts are equal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood import Limits, LoadOptions, Method, load_translator
from draftwood.core.errors import ConfigError, ModelError
from draftwood.runners.blocks.masked_block_runner import MaskedBlockRunner
from draftwood.runners.factory import make_runners
from draftwood.runners.seq2seq.runner import Seq2SeqRunner
from tests.runners.seq2seq_zoo import tiny
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

pytest.importorskip("openvino")
from draftwood.runners.openvino.graph import core

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
    for models, said in (((small("t5"), None), differs), ((small("bart"), small("t5")), f"the draft: {differs}")):
        made = make_runners(*models)
        assert {runner.engine for runner in (made.target, made.draft) if runner} == {"torch"}
        assert str(made.fallback).startswith(f"OpenVINO does not run the models ({said}")
    made = make_runners(small("bart"), small("marian"))
    assert (made.target.engine, made.draft.engine, made.fallback) == ("openvino", "openvino", None)


def test_control_rejected_nodes_that_stay_visible_show(monkeypatch):
    def everything_stays(memory: Any, source: Any, target: Any) -> None:
        memory._make_room(memory._new)
        memory._slots += memory._new
        memory._new, memory._token_slots = 0, []

    walk = SourceWalk(Seq2SeqRunner(small("marian"), engine="openvino"), [5, 2])
    monkeypatch.setattr("draftwood.runners.openvino.memory.GrowingMemory.compact", everything_stays)
    walk.round()
    assert walk.round() > WRONG


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
