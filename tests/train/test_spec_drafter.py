"""Tiny drafters of blocks, distilled from a tiny translation model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from draftwood.core.errors import ConfigError, ModelError
from draftwood.runners.blocks.masked_block import MaskedBlockDrafter
from draftwood.train import spec_drafter as module
from draftwood.train.config import SpecDrafterConfig
from draftwood.train.spec_drafter import load_translator, masked_block_loss, train_spec_drafter, written_outputs
from draftwood.train.translator import translate
from tests.helpers import interrupted

Make = Callable[..., SpecDrafterConfig]


@pytest.fixture(scope="module")
def drafted(spec_config: Make, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("masked-block")
    return out, train_spec_drafter(spec_config(out))


def test_a_masked_block_drafter_learns_what_the_target_writes(drafted: tuple[Path, dict[str, Any]]) -> None:
    out, metrics = drafted
    start, end = metrics["history"][0]["report"], metrics["held_out"]
    assert start["tokens_per_pass"] < 1.3
    assert end["tokens_per_pass"] > 3
    assert end["loss"] < start["loss"] / 3
    assert json.loads((out / "metrics.json").read_text(encoding="utf-8")) == metrics


def test_what_is_saved_drafts_for_its_target(
    drafted: tuple[Path, dict[str, Any]], translator: tuple[Path, dict[str, Any]]
) -> None:
    drafter = MaskedBlockDrafter.from_pretrained(drafted[0], dtype=torch.float32).eval()
    target, _ = load_translator(translator[0])
    tokenizer = AutoTokenizer.from_pretrained(drafted[0])
    drafter.check_target(target)
    assert drafter.config.target == drafted[1]["target"]
    ids = torch.tensor([tokenizer("ein rotes Boot liegt hier")["input_ids"]])
    with torch.no_grad():
        block = drafter(drafter.encode(ids), torch.tensor([[target.config.decoder_start_token_id]]), None, 6)
    wanted = translate(target, ids.tolist())[0]
    assert sum(a == b for a, b in zip(block.argmax(-1)[0].tolist(), wanted, strict=False)) >= 3


def test_a_stopped_run_goes_on_to_the_same_drafter_and_writes_nothing_twice(
    spec_config: Make, drafted: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "evaluate", interrupted(module.evaluate, 1))  # at the second report
        with pytest.raises(KeyboardInterrupt):
            train_spec_drafter(spec_config(tmp_path))
    assert (tmp_path / "checkpoints" / "checkpoint-75").is_dir()
    monkeypatch.setattr(module, "translate", interrupted(module.translate, 0))  # outputs are written already
    metrics = train_spec_drafter(spec_config(tmp_path))
    assert metrics["steps"] == drafted[1]["steps"]
    assert metrics["held_out"]["loss"] == pytest.approx(drafted[1]["held_out"]["loss"], abs=0.02)


def test_outputs_are_the_targets_translations_in_the_order_given(
    translator: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_OUTPUTS_PER_FILE", 2)
    target, tokenizer = load_translator(translator[0])
    texts = ["ein rotes Boot und ein altes Haus fährt nie", "hier", "ein altes Haus steht hier", "ein rotes Buch", "nie"]
    sources = [tokenizer(t)["input_ids"] for t in texts]
    outputs = written_outputs(target, sources, tmp_path, "train")
    assert outputs == [translate(target, [s])[0] for s in sources]
    assert len(list(tmp_path.glob("train-*.json"))) == 3
    assert written_outputs(target, sources, tmp_path, "train") == outputs
    target.lm_head.weight.data += 1
    with pytest.raises(ConfigError, match="outputs of target"):
        written_outputs(target, sources, tmp_path, "train")


BATCH = {
    "input_ids": torch.tensor([[9, 8, 1]]),
    "attention_mask": torch.ones(1, 3, dtype=torch.long),
    "prefix": torch.tensor([[0, 7]]),
    "prefix_mask": torch.ones(1, 2, dtype=torch.long),
    "labels": torch.tensor([[20, 21, 1, -100, -100]]),
}


def test_the_first_pass_does_not_keep_the_second_from_learning(
    spec_config: Make, drafted: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    drafter = MaskedBlockDrafter.from_pretrained(drafted[0], dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # which keeps copies of the weights of the pass without gradient
        masked_block_loss(spec_config(tmp_path), drafter, BATCH, 0.0, torch.Generator()).backward()
    still = [n for n, p in drafter.named_parameters() if "positions" not in n and (p.grad is None or not p.grad.any())]
    assert [name for name in still if not name.endswith("k_proj.bias")] == []  # a key's bias changes no attention


def test_what_is_revealed_and_what_lies_beyond_the_end_is_not_in_the_loss(
    spec_config: Make, drafted: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = MaskedBlockDrafter.from_pretrained(drafted[0], dtype=torch.float32).eval()
    config = spec_config(tmp_path, label_smoothing=0.0)
    shown, shares = torch.tensor([[True, False, False, False, False]]), []
    monkeypatch.setattr(module, "glance", lambda guessed, labels, share, _: (shares.append(share), shown)[1])
    with torch.no_grad():
        loss, *_ = (masked_block_loss(config, drafter, BATCH, progress, torch.Generator()) for progress in (0.0, 0.5, 1.0))
        assert shares == pytest.approx([0.5, 0.4, 0.3])
        mask = drafter.config.mask_token_id
        known = torch.tensor([[20, mask, mask, mask, mask]])
        logp = drafter(drafter.encode(BATCH["input_ids"]), BATCH["prefix"], None, 5, known).log_softmax(-1)
    assert loss.item() == pytest.approx(-(logp[0, 1, 21] + logp[0, 2, 1]).item() / 2, rel=1e-4)


def test_a_folder_that_is_no_translator_is_refused(
    spec_config: Make, translator: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        train_spec_drafter(spec_config(tmp_path / "out", target=tmp_path))
    other = tmp_path / "other"
    shutil.copytree(translator[0], other, ignore=shutil.ignore_patterns("checkpoints"))
    config = json.loads((other / "config.json").read_text(encoding="utf-8"))
    (other / "config.json").write_text(json.dumps({**config, "model_type": "bart"}), encoding="utf-8")
    with pytest.raises(ModelError, match="type 'bart'"):
        train_spec_drafter(spec_config(tmp_path / "out", target=other))
    with pytest.raises(ConfigError, match="glance_start is 2"):
        train_spec_drafter(spec_config(tmp_path / "out", glance_start=2.0))
    assert not (tmp_path / "out").exists()
