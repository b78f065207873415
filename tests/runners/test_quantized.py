"""Weights of eight and four bits: another model, whose trees are scored as the same model scores one token at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from draftwood.core.errors import ConfigError
from tests.helpers import begin
from tests.runners.test_logit_identity import Walk
from tests.runners.zoo import plain_scores, tiny

pytest.importorskip("openvino")
from draftwood.runners.openvino import network
from draftwood.runners.openvino.graph import core
from draftwood.runners.openvino.quantize import quantized
from draftwood.runners.openvino.runner import OpenVinoRunner
from draftwood.runners.openvino.store import stored_graph

HAS_BF16 = "BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
CLOSE = 1e-4  # float32, scores of up to 10
QUANTIZED = ["int8", "int4"]
ROWS, WIDTH = 16, 128


def small(kind: str = "llama", **settings):
    return tiny(kind, dtype=torch.float32, **{"hidden_size": 64, "intermediate_size": 96, **settings})


def one_by_one(runner: OpenVinoRunner):
    """Scores of the last token of a text that is read in forwards of one token."""

    def scores(text: list[int]) -> torch.Tensor:
        [row] = begin(runner, [[]])
        for token in text:
            found = runner.extend(torch.tensor([[token]]), torch.tensor([[0]]), torch.ones(1, 1, 1, dtype=torch.bool))
            row.tokens.append(0)
            runner.commit([[0]])
        return found.logits[0, 0]

    return scores


def next_scores(runner: OpenVinoRunner, text: list[int]) -> torch.Tensor:
    begin(runner, [text[:-1]])
    seen = torch.ones(1, 1, 1, dtype=torch.bool)
    return runner.extend(torch.tensor([text[-1:]]), torch.tensor([[0]]), seen).logits[0, 0]


@pytest.mark.parametrize("weights", QUANTIZED)
@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen3"])
def test_a_tree_is_scored_as_the_quantized_model_scores_one_token_at_a_time(kind, weights):
    pytest.importorskip("nncf")
    model = small(kind)
    wanted = one_by_one(OpenVinoRunner(model, weights=weights))
    rows = Walk(OpenVinoRunner(model, weights=weights), wanted, [5, 1, 9])
    assert max(rows.round(), rows.round(unscored=2)) < CLOSE
    rows.keep([0, 2])
    assert rows.round() < CLOSE


@pytest.mark.skipif(not HAS_BF16, reason="the processor has no bfloat16")
@pytest.mark.parametrize("weights", ["same", *QUANTIZED])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen3"])
def test_in_bfloat16_a_trees_scores_are_near_though_inputs_are_rounded_too(kind, weights):
    """Unchanged weights: up to 0.03 of the largest score, as forwards round differently. Steps of eight bits double it."""
    pytest.importorskip("nncf")
    model = small(kind).bfloat16()
    scores = one_by_one(OpenVinoRunner(model, weights=weights))
    largest = float(scores([1, 2, 3, 4]).abs().max())
    rows = Walk(OpenVinoRunner(model, weights=weights), scores, [5, 1, 9])
    assert max(rows.round(), rows.round(unscored=2)) < 0.1 * largest
    control = Walk(OpenVinoRunner(model, weights=weights), lambda text: scores(text[:-1]), [5, 1, 9])
    assert control.round() > largest


def test_fewer_bits_make_a_smaller_model_that_is_further_away(monkeypatch, tmp_path):
    pytest.importorskip("nncf")
    model, text, far, bits = small(), [3, 1, 4, 1, 5], {}, {}
    exact = plain_scores(model, text)
    for weights in QUANTIZED:
        monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / weights))
        runner = OpenVinoRunner(model, weights=weights)
        assert runner.engine == f"openvino {weights}"
        far[weights] = float((next_scores(runner, text) - exact).abs().max() / exact.abs().max())
        [file] = (tmp_path / weights).rglob("model.bin")
        bits[weights] = 8 * file.stat().st_size / sum(weight.numel() for weight in model.parameters())
    assert 1e-3 < far["int8"] < 0.2
    assert far["int8"] < far["int4"] < 0.8
    assert bits["int4"] < bits["int8"] < 12  # the embedding and the output head keep eight bits


@pytest.mark.parametrize("width", [32, 40])
def test_groups_of_four_bits_fit_widths_that_64_does_not_divide(width):
    pytest.importorskip("nncf")
    model = small("llama", hidden_size=width, intermediate_size=3 * width)
    runner = OpenVinoRunner(model, weights="int4")  # it compares a tree with its paths
    assert torch.isfinite(next_scores(runner, [1, 2, 3])).all()


@pytest.mark.parametrize("weights", QUANTIZED)
def test_without_their_package_they_are_refused_by_name(monkeypatch, weights):
    monkeypatch.setitem(__import__("sys").modules, "nncf", None)
    with pytest.raises(ConfigError, match=r'pip install "draftwood\[int8\]"'):
        OpenVinoRunner(small(vocab_size=91), weights=weights)  # not stored by another test


def test_in_float32_no_input_of_a_quantized_product_is_rounded(monkeypatch):
    pytest.importorskip("nncf")
    model, text = small(), [3, 1, 4, 1, 5]
    found = next_scores(OpenVinoRunner(model, weights="int8"), text)
    monkeypatch.setitem(network._ACTIVATION_GROUPS, torch.float32, 0)
    assert torch.equal(found, next_scores(OpenVinoRunner(model, weights="int8"), text))


@pytest.mark.parametrize("dtype", [torch.float32, *([torch.bfloat16] if HAS_BF16 else [])])
def test_the_engine_is_asked_to_round_inputs_in_bfloat16_only(dtype):
    """What it makes of that is its own choice: some processors have products that take bfloat16 as it is."""
    pytest.importorskip("nncf")
    compiled = network.CompiledGraph(stored_graph(small().to(dtype), "int8"), small().to(dtype)).compiled
    assert (int(compiled.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE")) > 0) is (dtype == torch.bfloat16)


@pytest.mark.parametrize("weights", QUANTIZED)
def test_rounded_inputs_of_a_product_do_not_depend_on_the_rows_with_them(weights):
    """A token's sums are the same whatever tree it is in, up to the order of additions. One other step of rounding would
    change them a thousand times as much."""
    pytest.importorskip("nncf")
    import openvino as ov
    from openvino import opset13 as ops

    rng = np.random.default_rng(0)
    x = ops.parameter([-1, -1, WIDTH], ov.Type.f32, name="x")
    first = ops.constant(rng.standard_normal((2 * WIDTH, WIDTH), dtype=np.float32))
    last = ops.constant(rng.standard_normal((WIDTH, 2 * WIDTH), dtype=np.float32))  # NNCF gives the last layer eight bits
    graph = ov.Model([ops.matmul(ops.relu(ops.matmul(x, first, False, True)), last, False, True)], [x], "products")
    compiled = core().compile_model(
        quantized(graph, weights), "CPU", {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 32}
    )

    def product(rows: np.ndarray) -> np.ndarray:
        return compiled([np.ascontiguousarray(rows)])[0].copy()

    values = rng.standard_normal((1, ROWS, WIDTH), dtype=np.float32)
    together = product(values)
    close = 4e-6 * float(np.abs(together).max())
    for parts in ([values[:, i : i + 1] for i in range(ROWS)], [values[:, :5], values[:, 5:]]):
        assert np.abs(together - np.concatenate([product(part) for part in parts], axis=1)).max() < close
