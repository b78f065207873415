"""Rung 6: with bfloat16 scores the output distribution is exactly that of those scores; what the rounding of forwards of
different shape adds is measured and small."""

import pytest
import torch

from draftwood.exactness.tape import total_variation
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling.settings import Sampling
from tests.helpers import decoder, hidden_pair, tiny_gpt
from tests.ladder.test_rung3_tape import BOTH, distance, engine_distribution, other_temperature, tampered
from tests.tables import TableRunner

TREES = [("chain", "2"), ("rsd-c", "2-1"), ("rsd-s", "2x2"), ("iid", "2x1")]


def table(seed, dtype):
    return TableRunner(torch.randn(4, 4, generator=torch.Generator().manual_seed(seed)).to(dtype))


def table_distribution(scores):
    """The distribution of two tokens after token 1."""
    distribution = scores.table.double().softmax(-1)
    return {(a, b): float(distribution[1, a] * distribution[a, b]) for a in range(4) for b in range(4)}


@BOTH
@pytest.mark.parametrize(("method", "shape"), TREES)
def test_bfloat16_scores_give_exactly_their_own_distribution(method, shape, verifier):
    target, draft = table(1, torch.bfloat16), table(2, torch.bfloat16)
    distribution = engine_distribution(decoder(target, draft, method, shape, verifier), 2, Sampling(), prompt=(1,))
    assert total_variation(distribution, table_distribution(target)) < 1e-6  # distributions are float32
    unrounded = table_distribution(table(1, torch.float32))
    assert total_variation(distribution, unrounded) > 1e-4  # control: the scores before they were rounded


def bfloat16(kind):
    if kind == "hidden":
        return hidden_pair(tiny_gpt(4, 1, dtype=torch.bfloat16))
    models = (tiny_gpt(4, seed, layers=layers, dtype=torch.bfloat16) for seed, layers in ((1, 2), (2, 1)))
    return [TorchRunner(model, check=False) for model in models]


@BOTH
@pytest.mark.parametrize(("kind", "method", "shape", "length", "most"), [
    *(("model", *tree, 2, 4e-3) for tree in TREES),  # half a unit in the last place of a score near 1 is 2e-3
    ("hidden", "rsd-s", "2x2", 3, 0.02),
])  # fmt: skip
def test_a_bfloat16_model_keeps_its_distribution_up_to_the_rounding_of_its_forwards(
    kind, method, shape, length, most, verifier
):
    engine = decoder(*bfloat16(kind), method, shape, verifier)
    engines = engine, tampered(engine, other_temperature)
    found, wrong = (distance(one, length, None, lambda s, _: s.double().softmax(-1), batch=64) for one in engines)
    assert found < most < wrong
