"""Drafters of the target's hidden states, published ones too: exact under every way of growing trees, whatever they read."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from draftwood.draft.level import LevelDrafter
from draftwood.draft.policies import StochasticBeam
from draftwood.engine.decode import Decoder
from draftwood.sampling.settings import Sampling
from draftwood.verify.recursive import Recursive
from draftwood.verify.traversal import Traversal
from tests.helpers import decoder, hidden_pair, published_pair, ragged, tiny_gpt, tiny_model
from tests.ladder.test_rung3_tape import (
    BOTH,
    EXACT,
    WRONG,
    Wrapped,
    at_temperature,
    coupled_distance,
    distance,
    other_temperature,
)  # fmt: skip

DRAWN = pytest.mark.parametrize(("method", "shape", "vocab"), [
    ("chain", "2", 3), ("rsd-c", "2-1", 3), ("rsd-s", "2x2", 3), ("iid", "2x2", 2), ("dynamic", "2x2", 2),
])  # fmt: skip
LENGTH = 4  # the first round only reads the prompt, so three tokens follow it


KINDS = pytest.mark.parametrize("kind", ["hidden", "eagle3", "dflash", "dspark"])


def runners(model, kind: str, backend: str = "torch", **settings):
    if kind == "hidden":
        return hidden_pair(model, backend, **settings)
    return published_pair(model, kind, backend, **settings)


@cache
def pair(vocab: int, kind: str, proposes: int | None = None):
    return runners(tiny_gpt(vocab, 1), kind, proposes=proposes)


@KINDS
@BOTH
@DRAWN
def test_drawn_trees_give_the_targets_joint_distribution(method, shape, vocab, verifier, kind):
    engine = decoder(*pair(vocab, kind), method, shape, verifier, nodes=4 if method == "dynamic" else None)
    assert distance(engine, LENGTH) < EXACT
    assert engine.stats[0].drafted > 0


@KINDS
@BOTH
@pytest.mark.parametrize("eos", [(), (1,)])
def test_distribution_when_some_tokens_cannot_be_proposed(verifier, eos, kind):
    engine = decoder(*pair(3, kind, proposes=2), "rsd-s", "2x2", verifier, eos=eos)
    found = distance(engine, LENGTH, Sampling(temperature=0.7), at_temperature(0.7), eos=eos[0] if eos else None)
    assert found < EXACT


@KINDS
@pytest.mark.parametrize(("method", "shape"), [("shared-noise", "2-2"), ("shared-noise", "2x2"), ("adaptive", None)])
def test_coupled_text_is_plain_decodings_text_for_every_noise(method, shape, kind):
    assert coupled_distance(decoder(*pair(3, kind), method, shape, "coupled"), 3) < EXACT


@KINDS
@pytest.mark.parametrize("verifier", [Recursive, Traversal])
def test_control_another_distribution_than_the_one_that_was_drawn_from_is_seen(verifier, kind):
    target, draft = pair(3, kind)
    engine = Decoder(target, Wrapped(LevelDrafter(draft, StochasticBeam(2, 2)), other_temperature), verifier())
    assert distance(engine, LENGTH) > WRONG


METHODS = [
    ("chain", "3"), ("rsd-c", "2-2-1"), ("rsd-s", "3x3"), ("shared-noise", "2-2-1"), ("adaptive", None),
    ("ngram", "3"),
]  # fmt: skip


@KINDS
@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize(("method", "shape"), METHODS)
def test_greedy_texts_are_plain_decodings_texts_in_ragged_batches(method, shape, backend, kind):
    model = tiny_gpt(23, 1) if backend == "torch" else tiny_model(backend, 23, 1)
    target, draft = runners(model, kind, backend, proposes=15)
    plain = decoder(target, None, "ar", greedy=True)
    alone = [plain.generate([request], Sampling(temperature=0.0))[0].token_ids for request in ragged()]
    engine = decoder(target, draft, method, shape, greedy=True)
    assert [r.token_ids for r in engine.generate(ragged(), Sampling(temperature=0.0))] == alone


@KINDS
@pytest.mark.parametrize(("method", "shape"), [*METHODS[:3], ("adaptive", None)])
def test_a_rows_drawn_text_does_not_depend_on_its_neighbours(method, shape, kind):
    target, draft = runners(tiny_gpt(23, 1), kind, proposes=15)
    engine = decoder(target, draft, method, shape)
    together = [r.token_ids for r in engine.generate(ragged(), Sampling())]
    assert together == [engine.generate([request], Sampling())[0].token_ids for request in ragged()]


@BOTH
def test_low_precision_keeps_the_distribution_up_to_the_rounding_of_its_forwards(verifier, record_property):
    engine = decoder(*hidden_pair(tiny_gpt(4, 1, dtype=torch.bfloat16)), "rsd-s", "2x2", verifier)
    found = distance(engine, 3, batch=64)
    record_property("total_variation", found)
    assert found < 0.02
    parts = engine.pipeline
    control = Decoder(parts.target, Wrapped(parts.drafter, other_temperature), parts.verifier)
    assert distance(control, 3, batch=64) > 0.02
