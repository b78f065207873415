"""The optimizer of the recipe."""

import pytest
import torch
from torch import nn

from recipes.muon import MuonAdamW, orthogonal


@pytest.mark.parametrize("shape", [(32, 80), (80, 32)])
def test_orthogonal_keeps_directions_and_levels_their_sizes(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    sizes = torch.linalg.svdvals(orthogonal(matrix))
    assert 0.5 < sizes.min() <= sizes.max() < 1.4
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    along = (left.T @ orthogonal(matrix) @ right.T).diagonal()
    torch.testing.assert_close(along, sizes.flip(0).sort(descending=True).values, atol=0.5, rtol=0)


def test_vectors_and_embeddings_get_the_update_of_adamw():
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


def test_a_matrix_is_learnt():
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
