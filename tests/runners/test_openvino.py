"""The OpenVINO runner scores every tree as the model itself does, round after round, and its distribution is the model's."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from draftwood.core.errors import CacheError, ConfigError, ModelError
from draftwood.exactness.tape import total_variation
from draftwood.runners import support
from draftwood.runners.openvino import memory
from draftwood.runners.protocols import ModelRunner, ReadsAtOnce
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling.settings import Sampling
from tests.helpers import begin, decoder, tiny_gpt
from tests.ladder.test_rung3_tape import Misplaced, at_temperature, engine_distribution, reference_distribution
from tests.runners.test_logit_identity import Walk
from tests.runners.zoo import SLIDING, SUPPORTED, VOCAB, plain_scores, tiny

pytest.importorskip("openvino")
from draftwood.runners.openvino.graph import core, graph_of
from draftwood.runners.openvino.runner import OpenVinoRunner

CLOSE = 1e-4  # float32, scores of up to 10
WRONG = 1e-2  # a negative control must be at least this far off
HAS_BF16 = "BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def small(kind: str, **settings):
    return tiny(kind, dtype=torch.float32, **settings)


def with_state(model, **options) -> OpenVinoRunner:
    """A runner whose graph holds its keys and values, as for draft models and sliding attention."""
    return OpenVinoRunner(model, paged=False, **options)


def walk(kind: str, lengths: list[int], *, drafts: bool = False, **settings) -> Walk:
    model = small(kind, **settings)
    return Walk(with_state(model, drafts=drafts), lambda text: plain_scores(model, text), lengths)


@pytest.mark.parametrize("kind", SUPPORTED + SLIDING)
def test_a_tree_is_scored_as_its_paths_in_every_round(kind):
    rows = walk(kind, [5, 1, 9, 0])
    assert isinstance(rows.runner, ModelRunner)
    assert max(rows.round(), rows.round(unscored=2)) < CLOSE
    rows.keep([0, 1, 3])  # a row has left
    assert max(rows.round(), rows.round(unscored=3)) < CLOSE
    rows.keep([1])
    assert max(rows.round(), rows.round()) < CLOSE


class Both(ReadsAtOnce):
    """Two runners with the same input."""

    def __init__(self, one, other):
        self.one, self.other, self.vocab_size, self.worst = one, other, one.vocab_size, 0.0

    def clear(self, *, keep=False):
        for runner in (self.one, self.other):
            runner.clear(keep=keep)

    def set_rows(self, rows):
        for runner in (self.one, self.other):
            runner.set_rows(rows)

    def extend(self, *arguments):
        scores, others = self.one.extend(*arguments), self.other.extend(*arguments)
        assert scores.logits.shape == others.logits.shape
        self.worst = max(self.worst, float((scores.logits - others.logits).abs().max()))
        return scores

    def commit(self, nodes, hidden=None):
        for runner in (self.one, self.other):
            runner.commit(nodes)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
def test_pytorch_says_the_same_over_many_rounds(kind):
    model = small(kind)
    both = Both(with_state(model), TorchRunner(model))
    rows = Walk(both, None, [4, 11, 0])
    for _ in range(8):
        rows.round(nodes=12, unscored=random.Random(0).randrange(3), check=False)
    rows.keep([0, 2])
    for _ in range(4):
        rows.round(nodes=3, check=False)
    assert 0 < both.worst < CLOSE


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_prompts_longer_than_one_chunk_in_a_ragged_batch(kind):
    rows = walk(kind, [3, 1100, 515], max_position_embeddings=1200)
    assert max(rows.round(nodes=4), rows.round(nodes=4)) < CLOSE
    rows.keep([0, 2])
    assert rows.round(nodes=4) < CLOSE


def test_the_last_tokens_of_the_context_are_exact_and_no_more_are_taken():
    rows = walk("gpt2", [28, 30], max_position_embeddings=32)
    tokens, depths = torch.tensor([[1, 2, 3]] * 2), torch.tensor([[0, 1, 2]] * 2)
    scores = rows.runner.extend(tokens, depths, torch.ones(2, 3, 3, dtype=torch.bool).tril()).logits
    for row, nodes in ((0, 3), (1, 2)):  # position 32 does not exist: that node is never used
        for node in range(nodes):
            wanted = rows.scores_of(rows.texts[row] + tokens[row, : node + 1].tolist())
            assert torch.allclose(scores[row, node], wanted, atol=CLOSE)
    begin(rows.runner, [[5] * 32])
    with pytest.raises(CacheError, match=r"33 tokens but gpt2 takes 32"):
        rows.runner.extend(tokens[:1], depths[:1], torch.ones(1, 3, 3, dtype=torch.bool).tril())


def test_a_draft_may_be_asked_about_tokens_that_it_does_not_know():
    model = small("llama")
    runner = OpenVinoRunner(model, drafts=True)
    begin(runner, [[1, 2]])
    one = torch.ones(1, 1, 1, dtype=torch.bool)
    scores = runner.extend(torch.tensor([[VOCAB + 5]]), torch.tensor([[0]]), one).logits
    assert torch.allclose(scores[0, 0], plain_scores(model, [1, 2, VOCAB - 1]), atol=CLOSE)


def test_a_model_that_cannot_keep_some_scores_only():
    model = small("llama")
    inner = model.forward

    def forward(input_ids, attention_mask=None, position_ids=None, past_key_values=None, use_cache=None):
        return inner(input_ids, attention_mask, position_ids, past_key_values, use_cache=use_cache)

    model.forward = forward
    rows = Walk(with_state(model), lambda text: plain_scores(model, text), [3, 150])
    assert max(rows.round(), rows.round()) < CLOSE


def test_rounds_in_which_a_runner_is_not_asked_and_rows_that_leave_meanwhile():
    rows = walk("llama", [5, 2, 7])
    rows.unasked()
    rows.keep([1, 2])  # before anything was read
    assert rows.round() < CLOSE
    rows.unasked()
    rows.keep([1])
    rows.keep([0])
    assert max(rows.round(), rows.round()) < CLOSE


def test_starting_again_forgets_everything():
    rows = walk("llama", [5, 2])
    rows.round()
    assert Walk(rows.runner, rows.scores_of, [3, 8, 1], seed=1).round() < CLOSE


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


def test_earlier_scores_stay_as_they_were():
    rows = walk("llama", [5])
    arguments = torch.tensor([[7]]), torch.tensor([[0]]), torch.ones(1, 1, 1, dtype=torch.bool)
    first = rows.runner.extend(*arguments).logits
    before = first.clone()
    rows.runner.extend(*arguments[:2], torch.ones(1, 1, 2, dtype=torch.bool))
    assert torch.equal(first, before)


# ---- dead slots ----


@pytest.fixture
def cleared(monkeypatch) -> list[int]:
    """Slots in use at every time that a memory was cleared."""
    found: list[int] = []
    inner = memory.GrowingMemory._clear

    def clear(memory, most):
        found.append(most)
        inner(memory, most)

    monkeypatch.setattr(memory.GrowingMemory, "_clear", clear)
    return found


@pytest.fixture
def impatient(monkeypatch) -> None:
    """Dead slots are cleared away soon."""
    monkeypatch.setattr(memory, "_PATIENCE", 4.0)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma2", "gemma3_text"])
def test_clearing_dead_slots_away_changes_nothing(kind, cleared, impatient):
    rows = walk(kind, [2, 6, 0], max_position_embeddings=64)
    assert max(rows.round(nodes=14) for _ in range(5)) < CLOSE
    rows.keep([0, 2])
    assert max(rows.round(nodes=14) for _ in range(5)) < CLOSE
    assert len(cleared) > 3
    assert rows.runner._memory._slots < 80 < 10 * 14


def test_slots_are_cleared_seldom_but_never_left_to_pile_up(cleared):
    rows = walk("llama", [50])
    for _ in range(40):
        rows.round(nodes=16, check=False)
    assert 1 < len(cleared) < 6
    live = max(rows.runner._memory._live)
    assert (rows.runner._memory._slots - live) ** 2 <= 100 * live
    assert rows.round() < CLOSE


def test_control_clearing_away_the_wrong_slots_is_seen(cleared, impatient, monkeypatch):
    rows = walk("llama", [2, 6])
    inner = memory.GrowingMemory._clear

    def wrong(memory, most):
        line = memory._bias[:, : memory._slots]
        line[:] = np.roll(line, 1, axis=1)
        inner(memory, most)

    monkeypatch.setattr(memory.GrowingMemory, "_clear", wrong)
    differences = [rows.round(nodes=14) for _ in range(6)]
    assert cleared
    assert max(differences) > WRONG


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


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma3_text"])
def test_a_forward_a_little_smaller_than_the_last_one_is_made_as_large(kind, widths):
    """With tokens of no use, which change nothing, in the same round or later ones."""
    rows = walk(kind, [7], drafts=True)
    assert max(rows.round(nodes=nodes) for nodes in (6, 5, 2, 6, 1, 3)) < CLOSE
    assert sum(wanted < read for wanted, read in widths) > 4
    assert max(read - wanted for wanted, read in widths) <= 6


def test_forwards_of_a_target_are_left_as_they_are(widths):
    """A controller learns what each size takes, and chooses."""
    rows = walk("llama", [7])
    assert max(rows.round(nodes=nodes) for nodes in (6, 5, 2)) < CLOSE
    assert all(wanted == read for wanted, read in widths)


def test_forwards_of_many_rows_or_of_large_models_are_left_as_they_are(widths):
    rows = walk("llama", [7] * 8, drafts=True)
    assert max(rows.round(nodes=nodes) for nodes in (6, 4, 2)) < CLOSE
    assert all(wanted == read for wanted, read in widths)
    model = small("llama")
    assert memory.spare_tokens(model, 2) == 6
    assert memory.spare_tokens(torch.nn.Linear(10_000, 1_000), 2) == 0


def test_control_tokens_of_no_use_that_are_seen(monkeypatch):
    inner = memory.GrowingMemory.compact

    def compact(memory, source, target):
        memory._token_slots = [place - (memory._new - len(memory._token_slots)) for place in memory._token_slots]
        inner(memory, source, target)

    monkeypatch.setattr(memory.GrowingMemory, "compact", compact)
    rows = walk("llama", [7], drafts=True)
    assert max(rows.round(nodes=nodes) for nodes in (6, 5, 2, 6, 1, 3)) > WRONG


def test_control_dead_slots_that_are_seen(monkeypatch):
    rows = walk("llama", [5, 2])
    rows.round()
    rows.runner._memory._bias.fill(0.0)
    assert rows.round() > WRONG


@pytest.mark.parametrize("lengths", [[5], [4, 4], [7, 2]])
def test_bare_roots_see_the_text_and_no_more(lengths, monkeypatch):
    """A root alone needs no mask of its own; what rounds with trees have left behind stays hidden from it."""
    monkeypatch.setattr(memory, "_ROOM", 2)  # it grows
    bare, inner = [], memory.GrowingMemory.inputs

    def inputs(memory, batch):
        bare.append(batch.mask is None)
        return inner(memory, batch)

    monkeypatch.setattr(memory.GrowingMemory, "inputs", inputs)
    rows = walk("llama", lengths)
    assert max(rows.round(nodes=nodes, accept=False) for nodes in (1, 6, 1, 1, 4, 1, 1, 1)) < CLOSE
    assert sum(bare) == (5 if len(set(lengths)) == 1 else 0)  # in the first round the prompt is read too


def test_small_inputs_are_copied_in_inference_mode_and_out_of_it():
    rows = walk("llama", [5])
    with torch.inference_mode():
        assert max(rows.round(nodes=1) for _ in range(2)) < CLOSE
    assert rows.round(nodes=1) < CLOSE


def test_control_bare_roots_that_see_what_was_rejected():
    rows = walk("llama", [5])
    rows.round(nodes=8)
    rows.runner._memory._bias.fill(0.0)
    assert rows.round(nodes=1) > WRONG


def test_control_small_inputs_that_are_not_copied(monkeypatch):
    rows = walk("llama", [5])
    assert max(rows.round(nodes=nodes) for nodes in (1, 1, 3, 1, 3, 3, 1)) < CLOSE  # each size has memory of its own
    held = rows.runner.network._compiled._held
    monkeypatch.setattr(type(rows.runner.network._compiled), "fill", lambda self, **tensors: None)
    assert rows.round(nodes=1) > WRONG
    assert held["tokens"].shape == (1, 1)


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
    with pytest.raises(ConfigError, match=f"dtype {str(dtype)[6:]} is impossible with OpenVINO: .*float32 or bfloat16"):
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
        with_state(small("gpt2"))


def test_the_text_that_a_conversion_is_compared_on_fits_the_context():
    assert support._TEXT > 32
    OpenVinoRunner(small("gpt2", max_position_embeddings=32))
