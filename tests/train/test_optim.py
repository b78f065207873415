"""The optimizer, and the number format, which is the one that is faster on the present processor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from draftwood.train import loop, number_format
from draftwood.train.config import LMConfig
from draftwood.train.optim import MuonAdamW, orthogonal


@pytest.mark.parametrize("shape", [(32, 80), (80, 32)])
def test_orthogonal_keeps_directions_and_levels_their_sizes(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    sizes = torch.linalg.svdvals(orthogonal(matrix))
    assert 0.5 < sizes.min() <= sizes.max() < 1.4
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    along = (left.T @ orthogonal(matrix) @ right.T).diagonal()
    torch.testing.assert_close(along, sizes.flip(0).sort(descending=True).values, atol=0.5, rtol=0)


def test_vectors_and_embeddings_get_the_update_of_adamw() -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Embedding(6, 4), nn.Embedding(6, 4)
    theirs.load_state_dict(ours.state_dict())
    mine = MuonAdamW(ours, lr=0.1, weight_decay=0.1, betas=(0.9, 0.95))
    adamw = torch.optim.AdamW(theirs.parameters(), lr=0.1, weight_decay=0.1, betas=(0.9, 0.95))
    for step in range(4):
        for module, optimizer in ((ours, mine), (theirs, adamw)):
            optimizer.zero_grad()
            (module(torch.arange(6)).sin() * (step + 1)).sum().backward()
            optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight)


def test_a_matrix_is_learnt() -> None:
    torch.manual_seed(0)
    wanted, model = torch.randn(8, 8), nn.Linear(8, 8)
    optimizer = MuonAdamW(model, lr=0.2, weight_decay=0.0, betas=(0.9, 0.95))
    losses = []
    for step in range(150):
        optimizer.param_groups[0]["lr"] = 0.2 * (1 - step / 150)
        inputs = torch.randn(32, 8)
        loss = (model(inputs) - inputs @ wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 20


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["without bf16 products", "with them"])
def faster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.dtype]:
    """A processor on which this format is the faster one."""
    monkeypatch.setattr(number_format, "_seconds", lambda dtype: 1.0 if dtype is request.param else 5.0)
    number_format.number_format.cache_clear()
    yield request.param
    number_format.number_format.cache_clear()


def test_products_and_the_trainer_use_the_faster_format(faster: torch.dtype, tmp_path: Path) -> None:
    assert (number_format.number_format("cpu"), number_format.number_format("cuda")) == (faster, torch.bfloat16)
    with number_format.autocast(torch.device("cpu")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is faster
    assert orthogonal(torch.ones(2, 2)).dtype is torch.float32
    if not torch.cuda.is_available():
        assert loop.arguments(LMConfig(data=tmp_path, out=tmp_path), 1, False).bf16 is (faster is torch.bfloat16)
