"""The OpenVINO runner scores every tree as the model itself does, round after round, and its distribution is the model's."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from draftwood.core.errors import ConfigError, ModelError
from draftwood.exactness.tape import total_variation
from draftwood.runners import support
from draftwood.runners.openvino import memory
from draftwood.sampling.settings import Sampling
from tests.helpers import begin, decoder, tiny_gpt
from tests.ladder.test_rung3_tape import Misplaced, at_temperature, engine_distribution, reference_distribution
from tests.runners.test_logit_identity import Walk
from tests.runners.test_logit_identity import walk as walk_of
from tests.runners.zoo import SLIDING, WINDOW, WINDOWED, plain_scores, tiny

pytest.importorskip("openvino")
from draftwood.runners.openvino.graph import core, graph_of
from draftwood.runners.openvino.runner import OpenVinoRunner

CLOSE = 1e-4  # float32, scores of up to 10
WRONG = 1e-2  # a negative control must be at least this far off
HAS_BF16 = "BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def small(kind: str, **settings):
    return tiny(kind, dtype=torch.float32, **settings)


walk = partial(walk_of, engine="openvino")  # a graph that holds its keys and values, as for drafts and sliding attention


def test_an_interrupt_after_models_are_gone():
    """OpenVINO changes the stack that signal handlers run on."""
    code = (
        "import gc, os, signal, time, torch\n"
        "from tests.runners.zoo import tiny\n"
        "from draftwood.runners.openvino.runner import OpenVinoRunner\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "runners = [OpenVinoRunner(tiny('gpt2', seed=seed, dtype=torch.float32)) for seed in (0, 1)]\n"
        "while runners:\n"
        "    del runners[0]\n"
        "    gc.collect()\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    raise SystemExit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[2]).returncode == 7


# ---- dead slots ----


def windowed_walk(kind: str, lengths: list[int], **settings) -> Walk:
    return walk(kind, lengths, **{"sliding_window": WINDOW, **WINDOWED[kind], **settings})


@pytest.fixture
def cleared(monkeypatch) -> list[int]:
    """Slots in use at every time that a memory was cleared."""
    found: list[int] = []
    inner = memory.GrowingMemory._clear
    monkeypatch.setattr(memory.GrowingMemory, "_clear", lambda self, most: (found.append(most), inner(self, most)))
    return found


@pytest.fixture
def impatient(monkeypatch) -> None:
    """Dead slots are cleared away soon."""
    monkeypatch.setattr(memory, "_PATIENCE", 4.0)


@pytest.mark.parametrize(
    ("make", "kind"), [*((walk, kind) for kind in ("llama", "gpt2", *SLIDING)),
                       (windowed_walk, "mistral"), (windowed_walk, "gemma3_text")]
)  # fmt: skip
def test_clearing_dead_slots_away_changes_nothing(make, kind, cleared, impatient):
    rows = make(kind, [2, 26, 0], max_position_embeddings=96)
    assert max(rows.round(nodes=14) for _ in range(5)) < CLOSE
    rows.keep([0, 2])
    assert max(rows.round(nodes=14) for _ in range(5)) < CLOSE
    assert len(cleared) > 3
    assert rows.runner._memory._slots < 100 < 10 * 14


def test_slots_are_cleared_seldom_but_never_left_to_pile_up(cleared):
    rows = walk("llama", [50])
    for _ in range(40):
        rows.round(nodes=16, check=False)
    assert 1 < len(cleared) < 6
    live = max(rows.runner._memory._live)
    assert (rows.runner._memory._slots - live) ** 2 <= 100 * live
    assert rows.round() < CLOSE


@pytest.mark.parametrize(("make", "moved"), [(walk, "_bias"), (windowed_walk, "_positions")])
def test_control_clearing_away_the_wrong_slots_is_seen(make, moved, impatient, monkeypatch):
    """Clearing moves slots, and with them their masks and positions."""
    inner = memory.GrowingMemory._clear

    def wrong(memory, most):
        line = getattr(memory, moved)[:, : memory._slots]
        line[:] = np.roll(line, 3, axis=1)
        inner(memory, most)

    monkeypatch.setattr(memory.GrowingMemory, "_clear", wrong)
    rows = make("mistral", [26])
    assert max(rows.round(nodes=14) for _ in range(6)) > WRONG


@pytest.fixture
def widths(monkeypatch) -> list[tuple[int, int]]:
    """Of every forward, the tokens that were wanted and those that were read."""
    found: list[tuple[int, int]] = []
    inner = memory.GrowingMemory.inputs

    def inputs(memory, batch):
        out = inner(memory, batch)
        found.append((batch.tokens.shape[1], out.tokens.shape[1]))
        return out

    monkeypatch.setattr(memory.GrowingMemory, "inputs", inputs)
    return found


@pytest.mark.parametrize(
    ("make", "kind", "length"), [*((walk, kind, 7) for kind in ("llama", "gpt2", "gemma3_text")),
                                 (windowed_walk, "mistral", 27), (windowed_walk, "gemma2", 27)]
)  # fmt: skip
def test_a_forward_a_little_smaller_than_the_last_one_is_made_as_large(make, kind, length, widths):
    """With tokens of no use, which change nothing, in the same round or later ones."""
    rows = make(kind, [length], drafts=True)
    assert max(rows.round(nodes=nodes) for nodes in (6, 5, 2, 6, 1, 3)) < CLOSE
    assert sum(wanted < read for wanted, read in widths) > (3 if make is windowed_walk else 4)
    assert max(read - wanted for wanted, read in widths) <= 6


@pytest.mark.parametrize(("rows", "drafts"), [(1, False), (8, True)])
def test_forwards_of_a_target_and_of_many_rows_are_left_as_they_are(rows, drafts, widths):
    """A controller learns what each size takes, and chooses."""
    many = walk("llama", [7] * rows, drafts=drafts)
    assert max(many.round(nodes=nodes) for nodes in (6, 5, 2)) < CLOSE
    assert all(wanted == read for wanted, read in widths)
    assert memory.spare_tokens(small("llama"), 2) == 6
    assert memory.spare_tokens(torch.nn.Linear(10_000, 1_000), 2) == 0  # a large model


def test_control_tokens_of_no_use_that_are_seen(monkeypatch):
    inner = memory.GrowingMemory.compact

    def compact(memory, source, target):
        memory._token_slots = [place - (memory._new - len(memory._token_slots)) for place in memory._token_slots]
        inner(memory, source, target)

    monkeypatch.setattr(memory.GrowingMemory, "compact", compact)
    rows = walk("llama", [7], drafts=True)
    assert max(rows.round(nodes=nodes) for nodes in (6, 5, 2, 6, 1, 3)) > WRONG


@pytest.mark.parametrize("nodes", [7, 1])
def test_control_dead_slots_that_are_seen(nodes):
    rows = walk("llama", [5] if nodes == 1 else [5, 2])
    rows.round(nodes=8)
    rows.runner._memory._bias.fill(0.0)
    assert rows.round(nodes=nodes) > WRONG


@pytest.mark.parametrize(("kind", "lengths"), [("llama", [5]), ("llama", [4, 4]), ("llama", [7, 2]), ("gemma2", [1100])])
def test_bare_roots_see_the_text_and_no_more(kind, lengths, monkeypatch):
    """A root alone needs no mask of its own; what rounds with trees have left behind stays hidden from it."""
    monkeypatch.setattr(memory, "_ROOM", 2)  # it grows
    settings = {"max_position_embeddings": 1200, "sliding_window": 20} if kind == "gemma2" else {}
    rows = walk(kind, lengths, **settings)
    with torch.inference_mode():  # small inputs are copied here too
        assert max(rows.round(nodes=nodes, accept=False) for nodes in (1, 6, 1)) < CLOSE
    assert max(rows.round(nodes=nodes, accept=False) for nodes in (1, 4, 1, 1, 1)) < CLOSE


def test_control_small_inputs_that_are_not_copied(monkeypatch):
    rows = walk("llama", [5])
    assert max(rows.round(nodes=nodes) for nodes in (1, 1, 3, 1, 3, 3, 1)) < CLOSE  # each size has memory of its own
    monkeypatch.setattr(type(rows.runner.network._compiled), "fill", lambda self, **tensors: None)
    assert rows.round(nodes=1) > WRONG


def test_control_a_drop_of_the_wrong_row_of_the_state():
    rows = walk("gpt2", [5, 2, 9])
    rows.round()
    rows.keep([1, 2])
    rows.runner._memory._rows = [0, 1]
    assert rows.round() > WRONG


# ---- the distribution ----


@pytest.mark.parametrize(("method", "shape", "verifier"), [
    ("ar", None, "recursive"), ("chain", "2", "traversal"), ("rsd-s", "2x2", "recursive"), ("rsd-c", "2-1", "traversal"),
])  # fmt: skip
def test_the_joint_distribution_of_texts_is_the_models(method, shape, verifier):
    """Rung 3 in float32: the exact distribution of whole texts over several rounds, by forking on every random choice."""
    model = tiny_gpt(2, 1, dtype=torch.float32)
    target = OpenVinoRunner(model)
    draft = OpenVinoRunner(tiny_gpt(2, 2, layers=1, dtype=torch.float32), drafts=True)
    expected = reference_distribution(model, 4, at_temperature(1.0))
    distribution = engine_distribution(decoder(target, draft, method, shape, verifier), 4, Sampling(), rounding=1e-6)
    assert total_variation(distribution, expected) < 1e-5
    if method == "rsd-c":  # the control: nodes of an accepted path that are kept wrongly
        distribution = engine_distribution(
            decoder(Misplaced(target), draft, method, shape, verifier), 4, Sampling(), rounding=1e-6
        )
        assert total_variation(distribution, expected) > 1e-3


# ---- number formats ----


@pytest.mark.skipif(not HAS_BF16, reason="the processor has no bfloat16")
def test_bfloat16_is_computed_in_and_stays_near():
    model = small("llama")
    exact = plain_scores(model, [3, 1, 4, 1, 5])
    runner = OpenVinoRunner(model.bfloat16())
    begin(runner, [[3, 1, 4, 1]])
    scores = runner.extend(torch.tensor([[5]]), torch.tensor([[0]]), torch.ones(1, 1, 1, dtype=torch.bool)).logits
    away = float((scores[0, 0] - exact).abs().max() / exact.abs().max())
    assert 1e-4 < away < 0.1  # float32 would be nearer


def test_bfloat16_is_refused_where_the_processor_has_none(monkeypatch):
    class Core:
        def get_property(self, *_):
            return ["FP32"]

    monkeypatch.setattr("draftwood.runners.openvino.network.core", Core)
    with pytest.raises(ConfigError, match="does not compute in bfloat16"):
        OpenVinoRunner(small("gpt2").bfloat16())


def test_another_device_is_asked_for_by_its_name_and_without_the_settings_of_cpus(monkeypatch):
    settings_seen = []

    class Core:
        """The CPU under another name."""

        available_devices = ("CPU", "GPU.0", "GPU.1")

        def get_property(self, device, name):
            assert (device, name) == ("GPU", "OPTIMIZATION_CAPABILITIES")
            return ["FP32", "FP16"]

        def compile_model(self, graph, device, settings):
            settings_seen.append((device, settings.get("INFERENCE_PRECISION_HINT"), "INFERENCE_NUM_THREADS" in settings))
            return core().compile_model(graph, "CPU", settings)

    for module in ("network", "ahead"):  # the former asks for devices, the latter compiles
        monkeypatch.setattr(f"draftwood.runners.openvino.{module}.core", Core)
    runner = OpenVinoRunner(small("gpt2"), place="GPU")
    assert runner.engine == "openvino GPU"
    assert settings_seen == [("GPU", "f32", False)]
    with pytest.raises(ConfigError, match="this device does not compute in bfloat16"):
        OpenVinoRunner(small("gpt2").bfloat16(), place="GPU")
    with pytest.raises(ConfigError, match=r"no device 'GPU.2' here, only CPU, GPU.0, GPU.1"):
        OpenVinoRunner(small("gpt2"), place="GPU.2")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_number_formats_are_refused_by_name(dtype):
    with pytest.raises(
        ConfigError, match=f"dtype {str(dtype)[6:]} is impossible with --backend openvino: .*float32 or bfloat16"
    ):
        OpenVinoRunner(tiny("gpt2", dtype=dtype))


# ---- what cannot be converted, and conversions that are wrong ----


@pytest.mark.parametrize(("kind", "message"), [
    ("mixtral", r"'mixtral' cannot be converted for OpenVINO: it has experts \(num_local_experts=8\)"),
    ("bloom", r"'bloom' cannot score a draft tree: .*ALiBi"),
])  # fmt: skip
def test_models_that_do_not_fit_are_refused_by_name(kind, message):
    with pytest.raises(ModelError, match=message):
        OpenVinoRunner(small(kind))


def test_a_model_that_cannot_be_traced_is_named():
    model = small("llama")
    model.forward = lambda input_ids: None
    with pytest.raises(ModelError, match=r"'llama' cannot be converted for OpenVINO .*--backend torch"):
        graph_of(model)


def test_a_model_in_training_mode_is_refused():
    with pytest.raises(ModelError, match=r"training mode.*model\.eval\(\)"):
        OpenVinoRunner(small("gpt2").train())


@pytest.mark.parametrize("ignored", ["position_ids", "attention_mask"])
def test_control_a_graph_that_ignores_what_a_tree_needs(ignored):
    model = small("gpt2", seed=5)  # of which there is no graph yet
    inner = model.forward
    model.forward = lambda **inputs: inner(**{**inputs, ignored: None})
    with pytest.raises(ModelError):
        OpenVinoRunner(model)


def test_control_a_graph_of_another_model_is_seen(monkeypatch):
    other = graph_of(small("gpt2", seed=1))
    monkeypatch.setattr("draftwood.runners.openvino.runner.stored_graph", lambda *_, **__: other)
    with pytest.raises(ModelError, match="scores a text differently"):
        OpenVinoRunner(small("gpt2"), paged=False)


def test_the_text_that_a_conversion_is_compared_on_fits_the_context():
    assert support._TEXT > 32
    OpenVinoRunner(small("gpt2", max_position_embeddings=32))
