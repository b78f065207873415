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
from tests.ladder.test_rung3_tape import (
    Wrapped,
    at_temperature,
    engine_distribution,
    other_temperature,
    reference_distribution,
)
from tests.tables import TableRunner

BOTH = pytest.mark.parametrize("verifier", ["recursive", "traversal"])
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
    assert (
        total_variation(distribution, table_distribution(table(1, torch.float32))) > 1e-4
    )  # control: the scores before they were rounded


def bfloat16(runner):
    return TorchRunner(runner.model.to(torch.bfloat16), check=False)


@BOTH
@TREES
def test_a_bfloat16_model_keeps_its_distribution_up_to_the_rounding_of_its_forwards(
    method, shape, verifier, record_property
):
    target, draft = bfloat16(tiny_runner(4, 1)), bfloat16(tiny_runner(4, 2, layers=1))
    distribution = engine_distribution(decoder(target, draft, method, shape, verifier), 2, Sampling(), batch=64)
    own = reference_distribution(target.model, 2, lambda scores, _: at_temperature(1.0)(scores.double(), _))
    distance = total_variation(distribution, own)
    record_property("total_variation", distance)
    assert distance < 4e-3  # half a unit in the last place of a score near 1 is 2e-3
    engine = decoder(target, draft, method, shape, verifier)
    control = Decoder(target, Wrapped(engine.pipeline.drafter, other_temperature), engine.pipeline.verifier)
    assert total_variation(engine_distribution(control, 2, Sampling(), batch=64), own) > 4e-3
