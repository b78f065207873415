"""Drafters of hidden states in the native engine: what is forgotten is forgotten there too, and a block is one."""

from __future__ import annotations

import pytest
import torch

from draftwood.runners.hidden.runner import HiddenBlockRunner
from draftwood.runners.native import network
from draftwood.runners.native.runner import NativeRunner
from tests.helpers import rows_of, tiny_hidden, tiny_model, tiny_published
from tests.native.test_bits import TEXT, after, model_of

VOCAB = 11


def scores_of(runner: HiddenBlockRunner, seed: int, texts: list[list[int]], length: int) -> torch.Tensor:
    """Scores after roots of rows whose hidden states of the last ``length`` tokens are new."""
    generator = torch.Generator().manual_seed(seed)
    config = runner.model.config
    width = len(config.target_layers) * getattr(config, "target_size", config.hidden_size)
    rows = rows_of(texts)
    runner.set_rows(rows)
    hidden = [torch.randn(length, width, generator=generator) for _ in rows]
    runner.commit([[] for _ in rows], hidden)
    nothing = torch.zeros(len(rows), 1, dtype=torch.long)
    found = runner.extend(torch.full((len(rows), 1), 3), nothing, torch.ones(len(rows), 1, 1, dtype=torch.bool)).logits
    runner.commit([[0] for _ in rows], [torch.zeros(0, width) for _ in rows])
    return found


def test_a_second_text_with_the_same_beginning_and_one_with_a_gap() -> None:
    model = tiny_model("native", VOCAB, 1)
    drafter = tiny_hidden(model)
    runners = [HiddenBlockRunner(drafter, model, engine=engine) for engine in ("native", "torch")]
    text, other, gap = [1] * 31, [1] * 4 + [2] * 40, [1] * 4 + [2] * 60
    for given, new in ((text, 30), (other, 40), (gap, 5)):
        found = [scores_of(runner, 1, [given], new) for runner in runners]
        assert (found[0] - found[1]).abs().max() < 1e-4
        assert list(map(len, runners[0]._memory.store.rows)) == runners[0]._memory.lengths
        for runner in runners:
            runner.clear(keep=True)


@pytest.mark.parametrize("kind", ["hidden", "dflash", "dspark"])
def test_many_rows_have_the_bits_of_each_alone(kind: str) -> None:
    model = tiny_model("native", VOCAB, 1)
    drafter = tiny_hidden(model) if kind == "hidden" else tiny_published(model, kind)
    if kind == "dflash":
        drafter.config.slots, drafter.config.block = 10, 9
    runner = HiddenBlockRunner(drafter, model, engine="native")
    together = scores_of(runner, 5, [[1] * 21] * 9, 20)
    generator = torch.Generator().manual_seed(5)
    width = len(drafter.config.target_layers) * model.config.hidden_size
    for row in range(9):
        runner.clear()
        rows = rows_of([[1] * 21])
        runner.set_rows(rows)
        runner.commit([[]], [torch.randn(20, width, generator=generator)])
        alone = runner.extend(
            torch.tensor([[3]]), torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 1, 1, dtype=torch.bool)
        )
        assert torch.equal(alone.logits[0], together[row])


def test_a_table_of_rotations_that_was_not_made_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_POSITIONS", 20)
    runner = NativeRunner(model_of("llama", torch.float32), hidden_layers=(0,))
    rotate = runner.network.engine._rotate

    def interrupted(positions: int) -> None:
        raise KeyboardInterrupt

    runner.network.engine._rotate = interrupted
    with pytest.raises(KeyboardInterrupt):
        after(runner, TEXT[:100])
    runner.network.engine._rotate = rotate
    found = after(runner, TEXT[:100])
    monkeypatch.undo()
    fresh = NativeRunner(model_of("llama", torch.float32), hidden_layers=(0,))
    assert torch.equal(found, after(fresh, TEXT[:100]))
