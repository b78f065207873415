"""A tiny translation model: it learns, it can be stopped, and what it leaves behind translates."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, MarianMTModel

from draftwood.core.errors import ConfigError
from draftwood.train.config import TranslatorConfig
from draftwood.train.pairs import TokenPairs
from draftwood.train.translator import held_out_loss, train_translator, translate
from tests.helpers import hide_package

Make = Callable[..., TranslatorConfig]


def test_it_learns_to_translate(translator: tuple[Path, dict[str, Any]]) -> None:
    out, metrics = translator
    start = metrics["history"][0]["report"]
    assert start["bleu"] < 10
    assert metrics["held_out"]["bleu"] > 90
    assert metrics["held_out"]["chrf"] > 90
    assert metrics["held_out"]["loss"] < start["loss"] / 5
    assert json.loads((out / "metrics.json").read_text(encoding="utf-8")) == metrics
    assert metrics["steps"] == 300
    assert metrics["too_long_pairs"] == {"train": 0, "val": 0}


def test_what_is_saved_translates_with_the_names_of_transformers_alone(translator: tuple[Path, dict[str, Any]]) -> None:
    out, metrics = translator
    model, tokenizer = MarianMTModel.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert model.dtype == torch.bfloat16
    saved = load_file(out / "model.safetensors")
    assert sum(w.numel() for name, w in saved.items() if name != "final_logits_bias") == metrics["parameters"]
    settings = model.generation_config
    assert (settings.num_beams, settings.do_sample, settings.forced_eos_token_id) == (1, False, None)
    assert settings.decoder_start_token_id == tokenizer.pad_token_id
    assert settings.eos_token_id == tokenizer.eos_token_id
    batch = tokenizer(["ein rotes Boot fährt nie", "ein altes Haus steht hier"], return_tensors="pt", padding=True)
    written = tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
    assert written == ["a red boat sails never", "a old house stands here"]


def test_loss_and_translations_do_not_depend_on_the_batch(
    translator: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MarianMTModel.from_pretrained(translator[0], dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(translator[0])
    texts = ["ein rotes Boot fährt nie", "hier", "ein altes Haus und ein altes Haus steht hier"]
    sources = [tokenizer(t)["input_ids"] for t in texts]
    together = translate(model, sources)
    assert together == [translate(model, [s])[0] for s in sources]
    assert all(row[-1] == tokenizer.eos_token_id for row in together)
    pairs = TokenPairs(sources=sources, targets=together)
    singles = [TokenPairs(sources=[s], targets=[t]) for s, t in zip(sources, together, strict=True)]
    with torch.no_grad():
        one_by_one = [held_out_loss(model, p) * len(p.targets[0]) for p in singles]
        assert held_out_loss(model, pairs) == pytest.approx(sum(one_by_one) / sum(map(len, together)), rel=1e-4)


def test_a_translation_without_end_is_cut(translator: tuple[Path, dict[str, Any]]) -> None:
    model = MarianMTModel.from_pretrained(translator[0], dtype=torch.float32).eval()
    model.final_logits_bias[0, 40] = 1000.0
    assert translate(model, [[5, 1]]) == [[40] * 15]  # with the start token 3 * 2 + 10
    assert len(translate(model, [[5] * 30 + [1]])[0]) == model.config.max_position_embeddings - 1


def test_missing_held_out_pairs_and_a_missing_sacrebleu_leave_no_trace(
    translator_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for language in ("de", "en"):
        (tmp_path / f"a.train.{language}").write_text("Ja\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"holds no NAME\.val\.de"):
        train_translator(translator_config(tmp_path / "out", data=tmp_path))
    hide_package(monkeypatch, "sacrebleu")
    with pytest.raises(ConfigError, match=r"\[train\]"):
        train_translator(translator_config(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
