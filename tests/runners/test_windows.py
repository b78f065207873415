"""Sliding windows count text positions: trees are scored as plain forwards score their paths, however long the text is."""

import pytest
import torch

from draftwood.core.errors import ModelError
from draftwood.runners import torch_runner
from draftwood.runners.context import Window, context, mask_argument, sliding_window
from draftwood.runners.forward import RoundSlots
from draftwood.runners.torch_runner import TorchRunner, used_window
from tests.runners.test_logit_identity import Walk
from tests.runners.zoo import BY_ENGINE, WINDOW, WINDOWED, plain_scores, runner_of, tiny, windowed

CLOSE = 1e-4  # float32, scores of up to 10
WRONG = 1e-2  # a negative control must be at least this far off
LENGTHS = [5, 20, 40, 0]  # tokens of the first texts; all of them outgrow the window
MIXED = [kind for kind in WINDOWED if kind not in ("mistral", "phi3")]  # some layers slide, others do not


def walk(kind, lengths=LENGTHS, engine="torch", **settings):
    model = windowed(kind, **settings)
    return Walk(runner_of(engine, model), lambda text: plain_scores(model, text), lengths)


@BY_ENGINE
@pytest.mark.parametrize("kind", WINDOWED)
def test_trees_are_scored_as_their_paths_beyond_the_window(kind, engine):
    rows = walk(kind, engine=engine)
    assert rows.runner.max_length == 256
    assert max(rows.round(), rows.round(unscored=2)) < CLOSE
    rows.keep([0, 1, 3])
    rows.add([30, 3])
    assert max(rows.round(nodes) for nodes in (12, 7, 1, 3, 7)) < CLOSE
    rows.keep([1])
    assert max(rows.round(nodes) for nodes in (12, 1, 5)) < CLOSE
    assert len(rows.texts[0]) > 3 * WINDOW


@pytest.mark.parametrize("kind", ["mistral", "gemma3_text"])
def test_paths_longer_than_the_window(kind):
    """Nodes stop seeing their own ancestors."""
    rows = walk(kind, window=2)
    assert max(rows.round(nodes=16) for _ in range(3)) < CLOSE


@BY_ENGINE
@pytest.mark.parametrize("kind", ["mistral", "gemma2"])
def test_prompts_longer_than_one_chunk_in_a_ragged_batch(kind, engine):
    rows = walk(kind, [3, 1100, 515], engine, max_position_embeddings=1200, window=20)
    assert max(rows.round(nodes=4), rows.round(nodes=4)) < CLOSE


@pytest.mark.parametrize("off", [-1, 1])
@pytest.mark.parametrize("kind", ["mistral", "gemma3_text"])
def test_control_a_window_that_is_wrong_by_one(kind, off, monkeypatch):
    monkeypatch.setattr(torch_runner, "used_window", lambda model: sliding_window(model.config)._replace(size=WINDOW + off))
    assert walk(kind).round() > WRONG


def test_control_layers_of_the_wrong_kind(monkeypatch):
    monkeypatch.setattr(torch_runner, "used_window", lambda model: sliding_window(model.config))  # else its check refuses it
    monkeypatch.setattr(torch_runner, "mask_argument", lambda full, sliding: mask_argument(sliding, full))
    assert walk("gemma2").round() > WRONG


def test_control_a_window_that_counts_slots(monkeypatch):
    rows, alone = walk("mistral"), walk("mistral", [20], window=2)
    monkeypatch.setattr(RoundSlots, "slot_positions", slots_as_positions)
    assert rows.round() > WRONG  # rows of other lengths
    monkeypatch.undo()
    assert alone.round(nodes=12) < CLOSE
    monkeypatch.setattr(RoundSlots, "slot_positions", slots_as_positions)
    assert alone.round(nodes=12) > WRONG  # slots of siblings are between a node and its ancestors


def slots_as_positions(now):
    return torch.arange(now.base + now.pad + now.nodes).expand(len(now.pending), -1)


@pytest.mark.parametrize(("kind", "settings"), [
    ("llama", {}),
    ("mistral", {"sliding_window": None}),
    ("mistral", {"sliding_window": 256}),  # the context ends within the window
    ("qwen2", {"use_sliding_window": False, "sliding_window": WINDOW}),
])  # fmt: skip
def test_configurations_without_a_window(kind, settings):
    config = tiny(kind, **settings).config
    assert sliding_window(config) is None
    assert context(config).length == 256


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_window_that_the_model_ignores_is_ignored(dtype):
    model = tiny("llama", dtype=dtype, sliding_window=WINDOW)
    assert sliding_window(model.config) == Window(WINDOW, everywhere=True)
    assert used_window(model) is None
    assert model.config.sliding_window == WINDOW
    assert used_window(windowed("mistral").to(dtype)) is not None


def test_a_model_is_checked_once_and_again_if_it_changes():
    model, calls = windowed("mistral"), []
    model.register_forward_hook(lambda *_: calls.append(1))
    found = [used_window(model), used_window(model)]
    assert (found, len(calls)) == ([Window(WINDOW, everywhere=True)] * 2, 3)
    model.set_attn_implementation("eager")
    assert used_window(model) == found[0]
    model.config.sliding_window = 5
    assert used_window(model) == Window(5, everywhere=True)
    assert len(calls) == 9


@pytest.mark.parametrize("kind", MIXED)
def test_masks_that_a_model_takes_otherwise_are_refused_by_name(kind):
    model = windowed(kind)
    inner = model.forward
    model.forward = lambda attention_mask=None, **inputs: inner(
        attention_mask=attention_mask["full_attention"] if isinstance(attention_mask, dict) else attention_mask, **inputs
    )
    with pytest.raises(ModelError, match=rf"'{kind}' cannot score a draft tree: .*sliding_window={WINDOW}, but its scores"):
        TorchRunner(model)
    model.forward = lambda input_ids, use_cache: inner(input_ids=input_ids, use_cache=use_cache)
    with pytest.raises(ModelError, match=f"'{kind}' cannot score a draft tree: TypeError"):
        TorchRunner(model)
    assert model.config.sliding_window == WINDOW
