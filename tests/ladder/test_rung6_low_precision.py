"""Rung 6: with bfloat16 scores the output distribution is exactly that of those scores; what the rounding of forwards of
different shape adds is measured and small."""

from __future__ import annotations

import pytest
import torch

from draftwood.engine.decode import Decoder
from draftwood.exactness.tape import total_variation
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling.settings import Sampling
from tests.helpers import decoder, tiny_runner
from tests.ladder.test_rung3_tape import BOTH, Wrapped, distance, engine_distribution, other_temperature
from tests.tables import TableRunner

TREES = pytest.mark.parametrize(("method", "shape"), [
    ("chain", "2"), ("rsd-c", "2-1"), ("rsd-s", "2x2"), ("iid", "2x1"),
])  # fmt: skip


def table(seed, dtype):
    return TableRunner(torch.randn(4, 4, generator=torch.Generator().manual_seed(seed)).to(dtype))


def table_distribution(scores):
    """The distribution of two tokens after token 1."""
    distribution = scores.table.double().softmax(-1)
    return {(a, b): float(distribution[1, a] * distribution[a, b]) for a in range(4) for b in range(4)}


@BOTH
@TREES
def test_bfloat16_scores_give_exactly_their_own_distribution(method, shape, verifier):
    target, draft = table(1, torch.bfloat16), table(2, torch.bfloat16)
    distribution = engine_distribution(decoder(target, draft, method, shape, verifier), 2, Sampling(), prompt=(1,))
    assert total_variation(distribution, table_distribution(target)) < 1e-6  # distributions are float32
    unrounded = table_distribution(table(1, torch.float32))
    assert total_variation(distribution, unrounded) > 1e-4  # control: the scores before they were rounded


def bfloat16(runner):
    return TorchRunner(runner.model.to(torch.bfloat16), check=False)


@BOTH
@TREES
def test_a_bfloat16_model_keeps_its_distribution_up_to_the_rounding_of_its_forwards(
    method, shape, verifier, record_property
):
    target, draft = bfloat16(tiny_runner(4, 1)), bfloat16(tiny_runner(4, 2, layers=1))
    engine = decoder(target, draft, method, shape, verifier)
    control = Decoder(target, Wrapped(engine.pipeline.drafter, other_temperature), engine.pipeline.verifier)
    found, wrong = (distance(one, 2, None, lambda s, _: s.double().softmax(-1), batch=64) for one in (engine, control))
    record_property("total_variation", found)
    assert found < 4e-3  # half a unit in the last place of a score near 1 is 2e-3
    assert wrong > 4e-3
