"""The number format of training, which is the one that is faster on the present processor."""

import pytest
import torch

from draftwood.train import loop, number_format
from draftwood.train.config import DrafterConfig


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["without bf16 products", "with them"])
def faster(request, monkeypatch):
    """A processor on which this format is the faster one."""
    monkeypatch.setattr(number_format, "_seconds", lambda dtype: 1.0 if dtype is request.param else 5.0)
    number_format.number_format.cache_clear()
    yield request.param
    number_format.number_format.cache_clear()


def test_products_and_the_trainer_use_the_faster_format(faster, tmp_path):
    assert (number_format.number_format("cpu"), number_format.number_format("cuda")) == (faster, torch.bfloat16)
    with number_format.autocast(torch.device("cpu")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is faster
    if not torch.cuda.is_available():
        assert loop.arguments(DrafterConfig(target=tmp_path, out=tmp_path), 1).bf16 is (faster is torch.bfloat16)
