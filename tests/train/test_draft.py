"""A tiny drafter distilled from a tiny target."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.core.errors import ConfigError, ModelError
from draftwood.train.chat_files import Chat, save_part
from draftwood.train.config import DraftConfig, LMConfig
from draftwood.train.draft import kl, load_target, train_draft
from draftwood.train.lm import train_lm
from draftwood.train.sample import sample, sampled_blocks

Make = Callable[..., DraftConfig]


def rise(metrics: dict[str, Any]) -> float:
    """Gain in acceptance over the untrained drafter, on text that the target wrote."""
    start: float = metrics["history"][0]["report"]["written_by_target"]["acceptance"]
    end: float = metrics["held_out"]["written_by_target"]["acceptance"]
    return end - start


def test_distillation_raises_acceptance_and_a_shuffled_teacher_does_not(
    draft_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = train_draft(draft_config(tmp_path / "true", tvd_weight=0.0))
    assert rise(metrics) > 0.1
    assert set(metrics["held_out"]) == {"woods", "farm", "written_by_target"}

    def shuffled(target_logp: Tensor, draft_logp: Tensor) -> Tensor:
        order = torch.randperm(target_logp.shape[-1])
        return kl(target_logp[..., order], draft_logp)

    monkeypatch.setattr("draftwood.train.draft.kl", shuffled)
    shutil.copytree(tmp_path / "true" / "sampled", tmp_path / "false" / "sampled")
    assert rise(train_draft(draft_config(tmp_path / "false", tvd_weight=0.0))) < rise(metrics) / 2


def test_written_blocks_are_kept_and_do_not_depend_on_a_stop(draft_config: Make, tmp_path: Path) -> None:
    target, _ = load_target(draft_config(tmp_path))
    starts = [[5, 6, 7], [8, 9, 10, 11], [12]]

    def write(count: int, folder: str) -> Tensor:
        return sampled_blocks(target, starts, 0, count, 32, rows=4, seed=3, cache=tmp_path / folder)

    whole = write(12, "whole")
    assert whole.shape == (12, 32)
    assert (whole[:, 0] == 0).all()
    write(4, "stopped")
    first = (tmp_path / "stopped" / "00000.npy").stat().st_mtime_ns
    assert torch.equal(write(12, "stopped"), whole)
    assert (tmp_path / "stopped" / "00000.npy").stat().st_mtime_ns == first
    assert not torch.equal(whole[:4], whole[4:8])
    with pytest.raises(ConfigError, match="blocks of 32 tokens, not 16"):
        sampled_blocks(target, starts, 0, 12, 16, rows=4, seed=3, cache=tmp_path / "whole")


def test_samples_follow_the_distribution_of_the_target(draft_config: Make, tmp_path: Path) -> None:
    target, tokenizer = load_target(draft_config(tmp_path))
    prompt = tokenizer("The fox", return_tensors="pt").input_ids
    rows = sample(target, prompt.expand(2000, -1), prompt.shape[1] + 2, torch.Generator().manual_seed(0))
    with torch.no_grad():
        first = target(prompt).logits[0, -1].float().softmax(-1)
        second = target(rows[:, :-1]).logits[:, -1].float().softmax(-1).mean(0)
    for place, distribution in ((-2, first), (-1, second)):
        seen = torch.bincount(rows[:, place], minlength=len(distribution)) / len(rows)
        assert (seen - distribution).abs().sum() / 2 < 3 * (len(distribution) / len(rows)) ** 0.5 / 2


def test_chats_serve_in_place_of_sampled_blocks(draft_config: Make, tmp_path: Path) -> None:
    def run(out: str = "out", **changes: Any) -> dict[str, Any]:
        defaults = {"sampled": 1024, "sample_rows": 64, "prefix": 16}
        return train_draft(draft_config(tmp_path / out, **{**defaults, "chats": chats, "context": 32, **changes}))

    target, tokenizer = load_target(draft_config(tmp_path / "out"))
    start = torch.full((80, 1), tokenizer.eos_token_id)
    rows = sample(target, start, 40, torch.Generator().manual_seed(0)).tolist()
    chats = tmp_path / "chats"
    chats.mkdir()
    with pytest.raises(ConfigError, match=r"the 0 chats .* are too few .* blocks of 32 tokens"):
        run()
    with pytest.raises(ConfigError, match=r"the target writes nothing now: leave sampled, prefix out"):
        run(sampled=8, prefix=4)
    save_part(chats / "00000.npz", [Chat(ids, [True] * len(ids)) for ids in rows], len(tokenizer))
    metrics = run()  # in the same folder: what was refused did not claim it
    assert metrics["sampled_tokens"] == 72 * 40 // 32 * 32  # eight of the 80 chats are held out
    assert not (tmp_path / "out" / "sampled").exists()
    assert rise(metrics) > 0.1
    save_part(chats / "00001.npz", [Chat([len(tokenizer)], [True])], len(tokenizer))
    with pytest.raises(ConfigError, match=f"holds token {len(tokenizer)}, and the target has {len(tokenizer)} tokens"):
        run("other")


def test_a_folder_without_a_target_and_a_context_beyond_it_are_refused(draft_config: Make, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        train_draft(draft_config(tmp_path / "out", target=tmp_path))
    with pytest.raises(ConfigError, match="longer than the target's 64"):
        train_draft(draft_config(tmp_path, context=128))


def test_a_drafter_goes_on_from_a_language_model_with_the_tokenizer_of_the_target(
    draft_config: Make, lm_config: Callable[..., LMConfig], trained: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    small = lm_config(tmp_path / "small", tokenizer=trained[0], hidden=16, intermediate=32)
    train_lm(small)
    untrained = train_draft(draft_config(tmp_path / "a", steps=1))["history"][0]["report"]
    started = train_draft(draft_config(tmp_path / "b", steps=1, start=small.out))["history"][0]["report"]
    assert started["woods"]["acceptance"] > untrained["woods"]["acceptance"] + 0.2
    with pytest.raises(ConfigError, match="has other sizes than these settings"):
        train_draft(draft_config(tmp_path / "c", start=small.out, hidden=32))
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        train_draft(draft_config(tmp_path / "d", start=tmp_path))
    with pytest.raises(ModelError, match=r"holds no tokenizer\.json"):
        train_lm(lm_config(tmp_path / "e", tokenizer=tmp_path))
