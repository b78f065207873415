"""The exact joint distribution of texts of a target with sliding attention, far beyond its window (rungs 3 and 5)."""

import pytest
import torch

from draftwood.runners import torch_runner
from draftwood.runners.context import sliding_window
from draftwood.runners.torch_runner import TorchRunner
from tests.helpers import decoder
from tests.ladder import test_rung3_tape
from tests.ladder.test_rung3_tape import misplaced
from tests.runners.zoo import NATIVE, WINDOWED, runner_of, tiny

VOCAB, WINDOW, LENGTH = 3, 3, 3
PROMPT = (0, 2, 1, 1, 0, 1, 0, 2)
EXACT = 1e-5  # parts of these models compute in float32 whatever their weights are
WRONG = 1e-3  # a negative control must be at least this far off
KINDS = ["mistral", "gemma3_text", "qwen2"]
METHODS = [
    ("ar", None, "recursive"), ("chain", "3", "traversal"), ("rsd-c", "2-1", "traversal"), ("rsd-s", "2x2", "recursive"),
    ("ngram", "2", "recursive"),
]  # fmt: skip


def model(kind, seed, dtype, window=WINDOW, **settings):
    own = WINDOWED.get(kind) or NATIVE[kind]
    return tiny(kind, seed, dtype=dtype, **{**own, "vocab_size": VOCAB, "sliding_window": window, **settings})


def distance(target, draft, method, shape, verifier):
    """The total variation distance of the engine's joint distribution from the target's own, of one forward per prefix."""
    return test_rung3_tape.distance(decoder(target, draft, method, shape, verifier), LENGTH, prompt=PROMPT, rounding=1e-6)


@pytest.mark.parametrize(("method", "shape", "verifier"), METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_joint_distribution_beyond_the_window_is_the_targets(kind, method, shape, verifier):
    target, draft = (TorchRunner(model(kind, seed, torch.float64, window)) for seed, window in ((1, WINDOW), (2, 2)))
    assert distance(target, draft, method, shape, verifier) < EXACT


@pytest.mark.parametrize("off", [-1, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_control_a_window_that_is_wrong_by_one_is_seen(kind, off, monkeypatch):
    def used(model):
        return sliding_window(model.config)._replace(size=WINDOW + off)

    draft = TorchRunner(model(kind, 2, torch.float64))
    monkeypatch.setattr(torch_runner, "used_window", used)
    target = TorchRunner(model(kind, 1, torch.float64))
    assert distance(target, draft, "chain", "2", "recursive") > WRONG


def test_control_an_accepted_path_that_is_not_moved_is_seen():
    target, draft = (TorchRunner(model("mistral", seed, torch.float64)) for seed in (1, 2))
    assert distance(misplaced(target), draft, "rsd-c", "2-1", "traversal") > WRONG


@pytest.mark.parametrize("kind", ["mistral", "qwen2", "gpt_oss", "gemma4_text"])
def test_on_the_native_engine_too(kind, monkeypatch):
    target, draft = (runner_of("native", model(kind, seed, torch.float32), drafts=seed == 2) for seed in (1, 2))
    assert distance(target, draft, "rsd-s", "2x2", "recursive") < EXACT
    wider = sliding_window(target.model.config)._replace(size=WINDOW + 1)
    monkeypatch.setattr("draftwood.runners.native.stored.sliding_window", lambda config: wider)
    wrong = runner_of("native", target.model, check=False)
    assert distance(wrong, draft, "chain", "2", "recursive") > WRONG
