"""Without paged attention, a model in bfloat16 has its keys and values in bfloat16, and scores as with those in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("openvino")
from draftwood.runners.openvino import graph as graphs
from draftwood.runners.openvino.graph import core
from draftwood.runners.openvino.kv_precision import typed
from draftwood.runners.openvino.memory import GrowingMemory
from draftwood.runners.openvino.network import OpenVinoNetwork
from draftwood.runners.openvino.runner import OpenVinoRunner
from tests.helpers import begin, rows_of
from tests.runners.zoo import SLIDING, SUPPORTED, tiny, windowed

HAS_BF16 = "BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
SHORT = {"float32": "f32", "bfloat16": "bf16"}
pytestmark = pytest.mark.skipif(not HAS_BF16, reason="the processor has no bfloat16")
WIDE = ["opt", "gemma2"]  # attention with another scale, and without the operation: these stay in float32


def runner_of(model) -> OpenVinoRunner:
    found = OpenVinoRunner(model, check=False, paged=False)
    begin(found, [[3, 1, 4, 1, 5], [9, 2, 6]])
    return found


def scored(runner: OpenVinoRunner, steps: int = 3) -> torch.Tensor:
    """Scores of a few rounds without a draft."""
    found = []
    for step in range(steps):
        rows = runner._rows.rows
        tokens = torch.tensor([[5 + step]] * len(rows))
        found.append(runner.extend(tokens, torch.zeros_like(tokens), torch.ones(*tokens.shape, 1, dtype=torch.bool)).logits)
        for row in rows:
            row.tokens.append(0)
        runner.commit([[0]] * len(rows))
    return torch.stack(found)


def kinds(network: OpenVinoNetwork) -> list[str]:
    nodes = network._compiled.compiled.get_runtime_model().get_ops()
    return [node.get_rt_info()["layerType"].astype(str) for node in nodes]


@pytest.mark.parametrize("kind", [*SUPPORTED, *SLIDING, "phi3", "cohere2"])
def test_scores_are_the_same_and_attention_stays_one_operation(kind, monkeypatch, tmp_path):
    def model():
        return (windowed(kind) if kind in ("phi3", "cohere2") else tiny(kind)).bfloat16()

    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "narrow"))
    narrow = runner_of(model())
    monkeypatch.setattr(graphs, "bfloat16_memory", lambda graph, *_: graph)
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "wide"))
    wide = runner_of(model())
    assert torch.equal(scored(narrow), scored(wide))
    assert kinds(narrow.network).count("ScaledDotProductAttention") == kinds(wide.network).count("ScaledDotProductAttention")
    expected = "float32" if kind in WIDE else "bfloat16"
    assert {part.state.element_type.to_string() for part in narrow.network.request.query_state()} == {SHORT[expected]}


def in_float32(state) -> np.ndarray:
    """The values of an ``openvino.Tensor`` in bfloat16 or float32."""
    if state.element_type.get_type_name() != "bf16":
        return state.data
    return (state.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def states(memory: GrowingMemory) -> list[np.ndarray]:
    return [in_float32(state).copy() for state in memory._states().values()]


def test_a_row_joins_with_the_bits_that_were_read_and_dead_slots_are_removed_without_rounding():
    runner = runner_of(tiny("llama").bfloat16())
    scored(runner, 1)
    [row] = rows_of([[2, 7, 1, 8]])
    runner.prefill(row, 4)
    before, read = states(runner._memory), states(runner._prefill._made[0].cache)
    runner.set_rows([*runner._rows.rows, row])
    joined = states(runner._memory)
    for old, new, now in zip(before, read, joined, strict=True):
        assert new.any()
        assert np.array_equal(now[:2], old)
        assert np.array_equal(now[2, :, :4], new[0])
    scored(runner, 1)
    with_dead, seen = states(runner._memory), [runner._memory._seen(row) for row in range(3)]
    runner._memory._clear(max(map(len, seen)))
    for old, now in zip(with_dead, states(runner._memory), strict=True):
        for row, slots in enumerate(seen):
            assert np.array_equal(now[row, :, : len(slots)], old[row][:, slots])


def test_a_tensor_of_a_type_that_numpy_lacks_keeps_its_bits():
    from openvino import Tensor, Type

    like = Tensor(Type.bf16, [1, 1, 1, 2])
    values = torch.tensor([[[[1.5, -3.0]]]]).bfloat16()
    given = typed(values.view(torch.int16).numpy(), like)
    assert given.element_type == like.element_type
    assert in_float32(given).tolist() == [[[[1.5, -3.0]]]]
