"""A tiny language model: it learns, it can be stopped, and what it leaves behind loads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from draftwood.core.errors import ConfigError
from draftwood.train import lm, loop
from draftwood.train.config import LMConfig
from draftwood.train.lm import train_lm

Make = Callable[..., LMConfig]


def test_the_held_out_loss_falls(trained: tuple[Path, dict[str, Any]]) -> None:
    _, metrics = trained
    start = metrics["history"][0]
    assert start["step"] == 0
    assert set(metrics["held_out_loss"]) == {"woods", "farm"}
    for name, loss in metrics["held_out_loss"].items():
        assert loss < start["report"][name] - 1


def test_metrics_tell_what_was_done(trained: tuple[Path, dict[str, Any]]) -> None:
    out, metrics = trained
    assert json.loads((out / "metrics.json").read_text(encoding="utf-8")) == metrics
    assert metrics["steps"] == 80
    assert metrics["tokens_seen"] == 80 * 4 * 64
    assert metrics["config"]["mix"] == "woods=4,farm=1.5"
    assert metrics["seconds"] > 0
    assert len(metrics["samples"]) > 0


def test_what_is_saved_is_a_bfloat16_model_with_its_tokenizer(trained: tuple[Path, dict[str, Any]]) -> None:
    out, metrics = trained
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert model.dtype == torch.bfloat16
    assert model.config.use_cache
    assert loop.parameters(model) == metrics["parameters"]
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_a_stopped_run_goes_on_to_the_same_model(
    lm_config: Make, trained: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = lm.held_out_losses
    calls = []

    def stop_at_the_second_report(*args: Any) -> dict[str, float]:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return whole(*args)

    monkeypatch.setattr(lm, "held_out_losses", stop_at_the_second_report)
    with pytest.raises(KeyboardInterrupt):
        train_lm(lm_config(tmp_path))
    assert not (tmp_path / "model.safetensors").exists()
    assert (tmp_path / "checkpoints" / "checkpoint-25").is_dir()
    monkeypatch.setattr(lm, "held_out_losses", whole)
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


def test_a_batch_larger_than_the_data_is_refused(lm_config: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="do not fill a batch of 4096"):
        train_lm(lm_config(tmp_path, batch=4096))


def test_a_missing_data_folder_leaves_no_trace(lm_config: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        train_lm(lm_config(tmp_path / "out", data=tmp_path / "nowhere"))
    assert not (tmp_path / "out").exists()


def test_a_run_with_a_deadline_ends_in_time_with_a_learning_rate_near_zero(lm_config: Make, tmp_path: Path) -> None:
    metrics = train_lm(lm_config(tmp_path, steps=100_000, minutes=0.02, save_every=100_000))
    assert 0 < metrics["steps"] < 5_000
    assert metrics["seconds"] < 10
    assert (tmp_path / "model.safetensors").is_file()
    losses = [e["loss"] for e in metrics["history"] if "loss" in e]
    assert not losses or losses[-1] < metrics["history"][0]["report"]["woods"]
