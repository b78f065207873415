"""Training computes in the format that is faster on the present processor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from draftwood.train import loop, number_format
from draftwood.train.chats import write_chats
from draftwood.train.config import ChatsConfig, LMConfig
from draftwood.train.optim import orthogonal
from tests.tiny_chat import save_chat


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["without bf16 products", "with them"])
def faster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.dtype]:
    """A processor on which this format is the faster one."""
    monkeypatch.setattr(number_format, "_seconds", lambda dtype: 1.0 if dtype is request.param else 5.0)
    number_format.number_format.cache_clear()
    yield request.param
    number_format.number_format.cache_clear()


def test_products_and_the_trainer_use_the_faster_format(faster: torch.dtype, tmp_path: Path) -> None:
    assert number_format.number_format("cpu") is faster
    with number_format.autocast(torch.device("cpu")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is faster
    assert orthogonal(torch.ones(2, 2)).dtype is torch.float32
    if not torch.cuda.is_available():
        assert loop.arguments(LMConfig(data=tmp_path, out=tmp_path), 1).bf16 is (faster is torch.bfloat16)


def test_chats_are_written_in_the_faster_format(
    faster: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[torch.dtype] = []

    def load(_name, _options, _device, dtype):
        loaded.append(dtype)
        raise KeyboardInterrupt

    monkeypatch.setattr("draftwood.train.chats.load_model", load)
    target = save_chat(tmp_path / "target")
    for dtype in ("auto", "bfloat16"):
        with pytest.raises(KeyboardInterrupt):
            write_chats(ChatsConfig(target=target, out=tmp_path / "chats", dtype=dtype))
    assert loaded == [faster, torch.bfloat16]


def test_the_timed_products_are_of_the_asked_format() -> None:
    assert number_format._seconds(torch.float32) > 0
    number_format.number_format.cache_clear()
    assert number_format.number_format("cpu") in (torch.float32, torch.bfloat16)
    assert number_format.number_format("cuda") is torch.bfloat16
