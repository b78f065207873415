"""A tiny drafter distilled from a tiny target."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

from draftwood.core.errors import ConfigError, ModelError
from draftwood.train.chat_files import Chat, save_part
from draftwood.train.chats import write_chats
from draftwood.train.config import ChatsConfig, DraftConfig, LMConfig
from draftwood.train.draft import kl, train_draft
from draftwood.train.lm import train_lm

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
    shutil.copytree(tmp_path / "true" / "chats", tmp_path / "false" / "chats")
    assert rise(train_draft(draft_config(tmp_path / "false", tvd_weight=0.0))) < rise(metrics) / 2


def test_chats_that_are_written_already_serve(draft_config: Make, trained: tuple[Path, Any], tmp_path: Path) -> None:
    def run(out: str = "out") -> dict[str, Any]:
        return train_draft(draft_config(tmp_path / out, chats=chats, context=32))

    chats, tokenizer = tmp_path / "chats", AutoTokenizer.from_pretrained(trained[0])
    chats.mkdir()
    with pytest.raises(ConfigError, match=r"the 0 chats .* are too few .* blocks of 32 tokens"):
        run()
    write_chats(ChatsConfig(target=trained[0], out=chats, tokens=3_000, longest=40))
    metrics = run()
    assert not (tmp_path / "out" / "chats").exists()
    assert metrics["sampled_tokens"] > 2_000
    assert rise(metrics) > 0.1
    save_part(chats / "99999.npz", [Chat([len(tokenizer)], [True])], len(tokenizer))
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
    with pytest.raises(ModelError, match="tokenizer"):
        train_lm(lm_config(tmp_path / "e", tokenizer=tmp_path))
