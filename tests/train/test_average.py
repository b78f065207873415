"""The mean of two models from one training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from draftwood.core.errors import ConfigError, ModelError
from draftwood.train.config import AverageConfig, LMConfig
from draftwood.train.lm import average, train_lm


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
    mean = tmp_path / "mean"
    with pytest.raises(ConfigError, match="differ in size"):
        average(AverageConfig(models=(trained[0], other.out), data=corpus, out=mean))
    with pytest.raises(ConfigError, match="number of models to average is 1"):
        average(AverageConfig(models=(trained[0],), data=corpus, out=mean))
    with pytest.raises(ModelError, match="holds no config"):
        average(AverageConfig(models=(trained[0], tmp_path), data=corpus, out=mean))
    assert not mean.exists()
