"""Paged attention scores every tree as the model itself does, wherever its keys and values lie."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch

from draftwood.core.errors import ModelError
from tests.helpers import ancestors_of, begin
from tests.runners.test_hidden_states import LAYERS, HiddenWalk
from tests.runners.test_logit_identity import Walk
from tests.runners.test_logit_identity import walk as walk_of

pytest.importorskip("openvino")
from draftwood.runners.openvino import blocks, paged, paged_memory
from draftwood.runners.openvino.blocks import BLOCK
from draftwood.runners.openvino.memory import GrowingMemory
from draftwood.runners.openvino.paged_memory import PagedMemory
from draftwood.runners.openvino.runner import OpenVinoRunner
from draftwood.runners.openvino.sizes import ForwardSizes
from tests.runners.test_openvino import CLOSE, HAS_BF16, WRONG, small

walk = partial(walk_of, engine="paged")


def test_many_rounds_over_the_borders_of_blocks_use_few_of_them():
    rows = walk("llama", [BLOCK - 3, 2 * BLOCK - 1, 1])
    assert max(rows.round(nodes=14, unscored=random.Random(0).randrange(3)) for _ in range(8)) < CLOSE
    for _ in range(3):
        begin(rows.runner, [[5] * 150, [6] * 200])
        roots = torch.tensor([[7], [8]])
        rows.runner.extend(roots, roots * 0, roots[..., None] > 0)
    assert rows.runner.network.storage._count == blocks._FIRST  # those of rows that leave are used again


# ---- padding that keeps the size of forwards ----


def spares(rows: Walk, monkeypatch, least: int = 0) -> list[int]:
    """Padding tokens of every forward from now on, each up to 8; at least ``least``."""
    found: list[int] = []
    memory, inner = rows.runner._memory, rows.runner._memory.inputs
    monkeypatch.setattr(ForwardSizes, "_waste", lambda *_: 0.0)

    def inputs(batch):
        given = inner(batch)
        given = given._replace(spare=max(least, given.spare))
        found.append(given.spare)
        return given

    monkeypatch.setattr(memory, "inputs", inputs)
    return found


@pytest.mark.parametrize("lengths", [[5], [5, 1, 9, 0]])
def test_padding_changes_no_scores_nor_hidden_states(lengths, monkeypatch):
    rows = walk("llama", lengths)
    found = spares(rows, monkeypatch)
    assert rows.round(nodes=3) < CLOSE
    assert max(rows.round(nodes=nodes) for nodes in (6, 5, 2, 1, 4)) < CLOSE
    assert any(found)
    hidden = HiddenWalk(OpenVinoRunner(small("llama"), hidden_layers=LAYERS, paged=True), None, lengths)
    spares(hidden, monkeypatch, least=3)
    assert max(hidden.round(), hidden.round(unscored=2), hidden.round()) < CLOSE


def test_control_padding_that_reads_in_the_block_of_a_text(monkeypatch):
    rows = walk("llama", [5])
    spares(rows, monkeypatch, least=3)
    rows.round()
    rows.runner._memory._spare_block = rows.runner._memory._rows[0].blocks[0]
    rows.round(check=False)
    assert rows.round() > WRONG


def decoded(sizes: ForwardSizes, forwards: list[int], slope: float, base: float = 14.0) -> tuple[float, list[int]]:
    """Seconds of forwards of so many tokens, and the number of tokens that each read, padding included. A change of the
    size costs four seconds."""
    total, read, last = 0.0, [], 0
    for new in forwards:
        read.append(new + sizes.padding(new))
        took = base + slope * read[-1] + 4.0 * (read[-1] != last)
        sizes.record(took)
        total, last = total + took, read[-1]
    return total, read


@pytest.mark.parametrize(("least", "forwards", "base", "slope", "read"), [
    (1, [1, 5, 3, 4] * 50, 14.0, 0.1, [5] * 180),
    (1, [1, 5] * 100, 0.0, 14.0, [1, 5] * 90),
    (1, [5] * 4 + [1] * 40, 14.0, 0.5, [1] * 30),  # padding has cost a change by then
    (1, [40, 1, 1], 14.0, 0.0, [40, 1, 1]),  # a prompt is no size to keep
    (4, [40, 1, 3, 5, 5], 14.0, 1.0, [40, 4, 4, 5, 5]),
    (4, [40, 1, 3, 5, 5, *[2] * 90], 14.0, 1.0, [4] * 60),
])  # fmt: skip
def test_sizes_that_come_and_go_are_kept_where_a_change_costs_more(least, forwards, base, slope, read):
    assert decoded(ForwardSizes(least), forwards, slope, base)[1][-len(read) :] == read


@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0, 5.0])
def test_padding_costs_at_most_as_much_as_changes_do(slope):
    rng = random.Random(1)
    forwards = [rng.choice([1, 1, 1, 2, 5, 6, 9, 16]) for _ in range(600)]
    plain = sum(14.0 + slope * n + 4.0 * (n != old) for n, old in zip(forwards, [0, *forwards], strict=False))
    assert decoded(ForwardSizes(), forwards, slope)[0] < 1.02 * plain


# ---- where it is used ----


@pytest.mark.parametrize("dtype", [torch.float32, *([torch.bfloat16] if HAS_BF16 else [])])
def test_targets_have_it_unless_their_attention_slides_or_cannot_be_paged(dtype, monkeypatch, tmp_path):
    model = small("llama").to(dtype)
    assert isinstance(OpenVinoRunner(model)._memory, PagedMemory)
    assert isinstance(OpenVinoRunner(model, drafts=True)._memory, GrowingMemory)
    assert isinstance(OpenVinoRunner(small("gemma2").to(dtype))._memory, GrowingMemory)
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))
    monkeypatch.setattr(paged, "_ATTENTION", "another")
    assert isinstance(OpenVinoRunner(model)._memory, GrowingMemory)
    with pytest.raises(ModelError, match="'llama' cannot be converted for OpenVINO"):
        OpenVinoRunner(model, paged=True)


def test_another_runner_of_the_network_has_blocks_of_its_own():
    rows = walk("llama", [3, 40])
    rows.round()
    other = Walk(rows.runner.another(), rows.scores_of, [4], seed=1)
    for _ in range(2):
        assert max(other.round(), rows.round()) < CLOSE


@pytest.mark.skipif(not HAS_BF16, reason="the processor has no bfloat16")
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
def test_in_bfloat16_a_tree_is_scored_as_its_paths_up_to_rounding(kind):
    target, tokens = OpenVinoRunner(small(kind).bfloat16(), paged=True), torch.arange(5, 12)[None]
    seen = ancestors_of(torch.tensor([[0, 0, 0, 1, 2, 4, 4]]), depth=7)
    begin(target, [[*range(5, 60)]])
    for node, scores in enumerate(target.extend(tokens, seen.sum(-1) - 1, seen).logits[0]):
        path = tokens[:, seen[0, node]]
        length = path.shape[1]
        begin(target, [[*range(5, 60)]])
        chain = target.extend(path, torch.arange(length)[None], torch.ones(1, length, length, dtype=torch.bool).tril())
        assert float((scores - chain.logits[0, -1]).abs().max() / scores.abs().max()) < 2e-2


# ---- negative controls ----


def test_control_nodes_that_see_all_nodes_before_them(monkeypatch):
    rows = walk("llama", [5])
    monkeypatch.setattr(paged_memory, "_seen", lambda batch, padding: [])
    assert max(rows.round() for _ in range(3)) > WRONG


def test_control_nodes_that_are_kept_where_they_were_read(monkeypatch):
    rows = walk("llama", [5])
    monkeypatch.setattr(blocks.BlockStorage, "copy", lambda self, other, source, target: None)
    assert max(rows.round() for _ in range(4)) > WRONG


def test_control_padding_that_is_read():
    rows = walk("llama", [9, 2])
    inner = rows.runner._rows._padding
    rows.runner._rows._padding = lambda pending: tuple(0 for _ in inner(pending))
    with pytest.raises((KeyError, AssertionError)):
        assert max(rows.round(), rows.round()) < WRONG
