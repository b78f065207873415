"""A tiny language model: it learns, it can be stopped, and what it leaves behind loads; and the mean of two models."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from draftwood.core.errors import ConfigError, ModelError
from draftwood.train import callbacks, lm, loop
from draftwood.train.config import AverageConfig, LMConfig
from draftwood.train.lm import average, train_lm
from tests.helpers import interrupted

Make = Callable[..., LMConfig]


def test_the_held_out_loss_falls_and_metrics_tell_what_was_done(trained: tuple[Path, dict[str, Any]]) -> None:
    out, metrics = trained
    start = metrics["history"][0]
    assert start["step"] == 0
    assert set(metrics["held_out_loss"]) == {"woods", "farm"}
    assert all(loss < start["report"][name] - 1 for name, loss in metrics["held_out_loss"].items())
    assert json.loads((out / "metrics.json").read_text(encoding="utf-8")) == metrics
    assert (metrics["steps"], metrics["tokens_seen"]) == (80, 80 * 4 * 64)
    assert metrics["config"]["mix"] == "woods=4,farm=1.5"
    assert metrics["seconds"] > 0


def test_what_is_saved_is_a_bfloat16_model_with_its_tokenizer(trained: tuple[Path, dict[str, Any]]) -> None:
    out, metrics = trained
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert model.dtype == torch.bfloat16
    assert model.config.use_cache
    assert loop.parameters(model) == metrics["parameters"]
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_a_stopped_run_goes_on_to_the_same_model(
    lm_config: Make, trained: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lm, "held_out_losses", interrupted(lm.held_out_losses, 1))  # at the second report
        with pytest.raises(KeyboardInterrupt):
            train_lm(lm_config(tmp_path))
    assert not (tmp_path / "model.safetensors").exists()
    assert (tmp_path / "checkpoints" / "checkpoint-25").is_dir()
    metrics = train_lm(lm_config(tmp_path))
    assert metrics["steps"] == trained[1]["steps"]
    assert metrics["history"][0]["step"] == 0
    for name, loss in trained[1]["held_out_loss"].items():
        assert metrics["held_out_loss"][name] == pytest.approx(loss, abs=0.02)


def test_a_folder_with_another_run_is_refused(lm_config: Make, tmp_path: Path) -> None:
    loop.claim(lm_config(tmp_path, hidden=32))
    loop.claim(lm_config(tmp_path, hidden=32, steps=99))
    with pytest.raises(ConfigError, match="hidden=32 there, 64 here"):
        loop.claim(lm_config(tmp_path, hidden=64))


def test_bad_data_is_refused_and_leaves_no_trace(lm_config: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="do not fill a batch of 4096"):
        train_lm(lm_config(tmp_path, batch=4096))
    with pytest.raises(ConfigError, match="does not exist"):
        train_lm(lm_config(tmp_path / "out", data=tmp_path / "nowhere"))
    assert not (tmp_path / "out").exists()


def test_a_run_with_a_deadline_ends_in_time_with_a_learning_rate_near_zero(
    lm_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates, left = [], callbacks.Deadline.left
    monkeypatch.setattr(callbacks.Deadline, "left", lambda self: rates.append(left(self)) or rates[-1])
    ticks = count()
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))  # a second each time
    metrics = train_lm(lm_config(tmp_path, steps=100_000, minutes=1.0, save_every=100_000))
    assert 0 < metrics["steps"] < 60
    assert min(filter(None, rates)) < 0.1
    assert rates[-1] == 0
    assert rates == sorted(rates, reverse=True)
    assert (tmp_path / "model.safetensors").is_file()


def weights(folder: Path) -> dict[str, Any]:
    return dict(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).named_parameters())


def test_training_goes_on_from_a_model_and_the_mean_of_both_is_half_way(
    lm_config: Callable[..., LMConfig], trained: tuple[Path, dict[str, Any]], corpus: Path, tmp_path: Path
) -> None:
    begun, metrics = trained
    later = lm_config(tmp_path / "later", start=begun, mix="woods=1,farm=4", learning_rate=2e-3, steps=20)
    started_at = train_lm(later)["history"][0]["report"]
    for name, loss in metrics["held_out_loss"].items():
        assert started_at[name] == pytest.approx(loss, abs=0.1)  # not where random weights begin
    assert (later.out / "tokenizer.json").read_text() == (begun / "tokenizer.json").read_text()  # not one of the new mix
    figures = average(AverageConfig(models=(begun, later.out), data=corpus, out=tmp_path / "mean"))
    a, b, mean = weights(begun), weights(later.out), weights(tmp_path / "mean")
    assert any(not torch.equal(a[name], b[name]) for name in a)
    for name in a:
        assert torch.allclose(mean[name], (a[name] + b[name]) / 2, atol=1e-6, rtol=1e-2)  # saved as bfloat16
    assert figures["models"] == [f"{begun.parent.name}/{begun.name}", f"{tmp_path.name}/later"]
    assert set(figures["held_out_loss"]) == {"woods", "farm"}
    assert max(figures["held_out_loss"].values()) < max(metrics["history"][0]["report"].values()) - 1


def test_what_cannot_be_averaged_is_named(
    lm_config: Callable[..., LMConfig], trained: tuple[Path, dict[str, Any]], corpus: Path, tmp_path: Path
) -> None:
    other = lm_config(tmp_path / "other", tokenizer=trained[0], hidden=16, steps=1)
    train_lm(other)
    for models, error, message in (
        ((trained[0], other.out), ConfigError, "differ in size"),
        ((trained[0],), ConfigError, "number of models to average is 1"),
        ((trained[0], tmp_path), ModelError, "holds no config"),
    ):
        with pytest.raises(error, match=message):
            average(AverageConfig(models=models, data=corpus, out=tmp_path / "mean"))
    assert not (tmp_path / "mean").exists()
