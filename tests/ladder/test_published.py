"""Published drafters: exact under every way of growing trees, whatever they have read."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from draftwood.core.settings import Sampling
from draftwood.draft.level import LevelDrafter
from draftwood.draft.rsd_s import StochasticBeam
from draftwood.engine.decode import Decoder
from draftwood.exactness.tape import total_variation
from draftwood.verify.recursive import Recursive
from draftwood.verify.traversal import Traversal
from tests.helpers import decoder, published_pair, tiny_gpt
from tests.ladder.test_hidden import BOTH, DRAWN, LENGTH, METHODS, requests
from tests.ladder.test_rung3_tape import (
    EXACT,
    SHARED,
    WRONG,
    Wrapped,
    at_temperature,
    engine_distribution,
    other_temperature,
    reference_distribution,
)

KINDS = pytest.mark.parametrize("kind", ["eagle3", "dflash", "dspark"])


@cache
def pair(vocab: int, kind: str, proposes: int | None = None):
    return published_pair(tiny_gpt(vocab, 1), kind, proposes=proposes)


@KINDS
@BOTH
@DRAWN
def test_drawn_trees_give_the_targets_joint_distribution(method, shape, vocab, verifier, kind):
    target, draft = pair(vocab, kind)
    engine = decoder(target, draft, method, shape, verifier, nodes=4 if method == "dynamic" else None)
    distribution = engine_distribution(engine, LENGTH, Sampling())
    assert engine.stats[0].drafted > 0
    assert total_variation(distribution, reference_distribution(target.model, LENGTH, at_temperature(1.0))) < EXACT


@KINDS
@pytest.mark.parametrize("eos", [(), (1,)])
def test_distribution_when_some_tokens_cannot_be_proposed(kind, eos):
    target, draft = pair(3, kind, proposes=2)
    engine = decoder(target, draft, "rsd-s", "2x2", "traversal", eos=eos)
    distribution = engine_distribution(engine, LENGTH, Sampling(temperature=0.7))
    expected = reference_distribution(target.model, LENGTH, at_temperature(0.7), eos=eos[0] if eos else None)
    assert total_variation(distribution, expected) < EXACT


@KINDS
@pytest.mark.parametrize(("method", "shape"), [("shared-noise", "2-2"), ("shared-noise", "2x2"), ("adaptive", None)])
def test_coupled_text_is_plain_decodings_text_for_every_noise(method, shape, kind):
    target, draft = pair(3, kind)
    distribution = engine_distribution(decoder(target, draft, method, shape, "coupled"), 3, Sampling(), SHARED)
    plain = engine_distribution(decoder(target, None, "ar", None, "coupled"), 3, Sampling(), SHARED)
    assert len(plain) > 3
    assert total_variation(distribution, plain) < EXACT


@KINDS
@pytest.mark.parametrize("verifier", [Recursive, Traversal])
def test_control_another_distribution_than_the_one_that_was_drawn_from_is_seen(verifier, kind):
    target, draft = pair(3, kind)
    expected = reference_distribution(target.model, LENGTH, at_temperature(1.0))
    engine = Decoder(target, Wrapped(LevelDrafter(draft, StochasticBeam(2, 2)), other_temperature), verifier())
    assert total_variation(engine_distribution(engine, LENGTH, Sampling()), expected) > WRONG


@KINDS
@pytest.mark.parametrize("backend", ["torch", "openvino"])
@pytest.mark.parametrize(("method", "shape"), METHODS)
def test_greedy_texts_are_plain_decodings_texts_in_ragged_batches(method, shape, backend, kind):
    if backend == "openvino":
        pytest.importorskip("openvino")
    model = tiny_gpt(23, 1, dtype=torch.float64 if backend == "torch" else torch.float32)
    target, draft = published_pair(model, kind, backend, proposes=15)
    plain = decoder(target, None, "ar", greedy=True)
    alone = [plain.generate([request], Sampling(temperature=0.0))[0].token_ids for request in requests()]
    engine = decoder(target, draft, method, shape, greedy=True)
    assert [r.token_ids for r in engine.generate(requests(), Sampling(temperature=0.0))] == alone


@KINDS
@pytest.mark.parametrize(("method", "shape"), [*METHODS[:3], ("adaptive", None)])
def test_a_rows_drawn_text_does_not_depend_on_its_neighbours(method, shape, kind):
    target, draft = published_pair(tiny_gpt(23, 1), kind, proposes=15)
    engine = decoder(target, draft, method, shape)
    together = [r.token_ids for r in engine.generate(requests(), Sampling())]
    assert together == [engine.generate([request], Sampling())[0].token_ids for request in requests()]
