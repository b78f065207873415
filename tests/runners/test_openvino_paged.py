"""Paged attention scores every tree as the model itself does, wherever its keys and values lie."""

from __future__ import annotations

import random

import pytest
import torch

from draftwood.core.errors import ModelError
from tests.engine.test_batch import causal
from tests.engine.test_prompts import check, long_requests
from tests.helpers import begin, decoder
from tests.runners.test_hidden_states import LAYERS, HiddenWalk
from tests.runners.test_history import Chat
from tests.runners.test_logit_identity import Walk
from tests.runners.zoo import SUPPORTED, plain_scores

pytest.importorskip("openvino")
from draftwood.engine import prompts
from draftwood.runners.openvino import blocks, paged, paged_memory, runner, store
from draftwood.runners.openvino.blocks import BLOCK
from draftwood.runners.openvino.memory import GrowingMemory
from draftwood.runners.openvino.paged_memory import PagedMemory
from draftwood.runners.openvino.runner import OpenVinoRunner
from draftwood.runners.openvino.sizes import ForwardSizes
from tests.runners.test_openvino import CLOSE, HAS_BF16, WRONG, small


def walk(kind: str, lengths: list[int], **settings) -> Walk:
    model = small(kind, **settings)
    return Walk(OpenVinoRunner(model, paged=True), lambda text: plain_scores(model, text), lengths)


def tree_of(parents: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, depths and ancestors of a tree whose node 0 is the root."""
    seen = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents[1:], 1):
        seen[node] |= seen[parent]
    return 5 + torch.arange(len(parents))[None], seen.sum(-1)[None] - 1, seen[None]


@pytest.mark.parametrize("kind", SUPPORTED)
def test_a_tree_is_scored_as_its_paths_in_every_round(kind):
    rows = walk(kind, [5, 1, 9, 0])
    assert max(rows.round(), rows.round(unscored=2)) < CLOSE
    rows.keep([0, 1, 3])  # a row has left
    assert max(rows.round(), rows.round(unscored=3)) < CLOSE
    rows.keep([1])
    assert max(rows.round(), rows.round()) < CLOSE


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_prompts_longer_than_one_chunk_in_a_ragged_batch(kind):
    """They need more blocks than there are at first, and one row is all padding in the first chunk."""
    rows = walk(kind, [3, 1100, 515], max_position_embeddings=1200)
    assert max(rows.round(nodes=4), rows.round(nodes=4)) < CLOSE
    rows.keep([0, 2])
    assert rows.round(nodes=4) < CLOSE


def test_many_rounds_over_the_borders_of_blocks():
    rows = walk("llama", [BLOCK - 3, 2 * BLOCK - 1, 1])
    assert max(rows.round(nodes=14, unscored=random.Random(0).randrange(3)) for _ in range(8)) < CLOSE


def test_hidden_states_are_those_of_each_path():
    rows = HiddenWalk(OpenVinoRunner(small("llama"), hidden_layers=LAYERS, paged=True), None, [5, 1, 9])
    assert max(rows.round(), rows.round(unscored=2), rows.round()) < CLOSE
    rows.keep([0, 2])
    rows.add([6, 2])
    assert max(rows.round(unscored=3), rows.round()) < CLOSE


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_scores_after_a_kept_beginning_are_those_of_the_model(kind):
    chat = Chat(lambda model: OpenVinoRunner(model, paged=True), kind)
    for common in (9, 100, 3, 12, 1):
        assert max(chat.round(), chat.round(unscored=2), chat.round(unscored=3)) < CLOSE
        chat.again(min(common, len(chat.texts[0])), 4)
    assert chat.round() < CLOSE


def test_nodes_that_follow_nodes_of_their_round_are_scored_as_paths():
    """The earlier nodes are read again, because a graph cannot tell them apart in the cache."""
    model = small("llama")
    target = OpenVinoRunner(model, paged=True)
    begin(target, [[1, 2, 3]])
    tokens, depths, seen = tree_of([0, 0, 0, 1, 2, 4])
    parts = [target.extend(tokens[:, a:b], depths[:, a:b], seen[:, a:b, :b]).logits for a, b in ((0, 1), (1, 3), (3, 6))]
    for node, scores in enumerate(torch.cat(parts, dim=1)[0]):
        path = [1, 2, 3, *tokens[0, seen[0, node]].tolist()]
        assert torch.allclose(scores, plain_scores(model, path), atol=CLOSE)


# ---- rows that come and go ----


@pytest.fixture
def everywhere(monkeypatch) -> None:
    """Targets in float32 have paged attention too."""
    monkeypatch.setattr(runner, "prefers_paged", lambda model, place: True)
    monkeypatch.setattr(prompts, "SHARED", 4)
    causal.cache_clear()
    yield
    causal.cache_clear()


@pytest.mark.parametrize("method", [("rsd-s", "2x3", "traversal"), ("chain", "2", "recursive")])
def test_a_text_is_the_same_in_company_and_if_its_prompt_is_read_in_chunks(method, everywhere):
    check(decoder(*causal("openvino"), *method), long_requests(1))


def test_control_a_cache_that_copies_another_row_is_seen(everywhere, monkeypatch):
    inner = PagedMemory.begin
    monkeypatch.setattr(PagedMemory, "begin", lambda self, other, row, length: inner(self, other, 0, min(length, 4)))
    with pytest.raises((AssertionError, ValueError, RuntimeError, IndexError)):
        check(decoder(*causal("openvino"), "chain", "2", "recursive"), long_requests(0))


def test_blocks_of_rows_that_leave_are_used_again():
    rows = walk("llama", [150, 200])
    storage = rows.runner.network.storage
    for _ in range(3):
        rows.round(nodes=3, check=False)
        begin(rows.runner, rows.texts)
    rows.runner.clear()
    assert sorted([*storage._free, rows.runner._memory._spare_block]) == list(range(blocks._FIRST))


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
def test_padding_changes_no_scores(lengths, monkeypatch):
    rows = walk("llama", lengths)
    found = spares(rows, monkeypatch)
    assert rows.round(nodes=3) < CLOSE
    assert max(rows.round(nodes=nodes) for nodes in (6, 5, 2, 1, 4)) < CLOSE
    assert any(found)


def test_hidden_states_of_padding_are_left_out(monkeypatch):
    rows = HiddenWalk(OpenVinoRunner(small("llama"), hidden_layers=LAYERS, paged=True), None, [5, 1, 9])
    spares(rows, monkeypatch, least=3)
    assert max(rows.round(), rows.round(unscored=2), rows.round()) < CLOSE


def test_control_padding_that_reads_in_the_block_of_a_text(monkeypatch):
    rows = walk("llama", [5])
    spares(rows, monkeypatch, least=3)
    rows.round()
    rows.runner._memory._spare_block = rows.runner._memory._rows[0].blocks[0]
    rows.round(check=False)
    assert rows.round() > WRONG


def decoded(sizes: ForwardSizes, forwards: list[int], seconds) -> tuple[float, list[int]]:
    """Seconds of forwards of so many tokens, and the number of tokens that each read, padding included."""
    total, read, last = 0.0, [], 0
    for new in forwards:
        read.append(new + sizes.padding(new))
        took = seconds(read[-1]) + 4.0 * (read[-1] != last)
        sizes.record(took)
        total, last = total + took, read[-1]
    return total, read


def test_sizes_that_come_and_go_are_kept_where_a_change_costs_more():
    total, read = decoded(ForwardSizes(), [1, 5, 3, 4] * 50, lambda tokens: 14.0 + 0.1 * tokens)
    assert set(read[20:]) == {5}
    assert total < 1.02 * 200 * 14.5
    _, read = decoded(ForwardSizes(), [1, 5] * 100, lambda tokens: 14.0 * tokens)
    assert read[20:] == [1, 5] * 90
    _, read = decoded(ForwardSizes(), [5] * 4 + [1] * 40, lambda tokens: 14.0 + 0.5 * tokens)
    assert read[-30:] == [1] * 30  # padding has cost a change by then
    _, read = decoded(ForwardSizes(), [40, 1, 1], lambda tokens: 14.0)
    assert read == [40, 1, 1]  # a prompt is no size to keep
    _, read = decoded(ForwardSizes(4), [40, 1, 3, 5, 5, *[2] * 90], lambda tokens: 14.0 + tokens)
    assert read[:5] == [40, 4, 4, 5, 5]
    assert read[-60:] == [4] * 60


def test_padding_costs_at_most_as_much_as_changes_do():
    rng = random.Random(1)
    for slope in (0.0, 0.3, 1.0, 5.0):
        forwards = [rng.choice([1, 1, 1, 2, 5, 6, 9, 16]) for _ in range(600)]
        total, _ = decoded(ForwardSizes(), forwards, lambda tokens, slope=slope: 14.0 + slope * tokens)
        plain = sum(14.0 + slope * n + 4.0 * (n != old) for n, old in zip(forwards, [0, *forwards], strict=False))
        assert total < 1.02 * plain


# ---- where it is used ----


@pytest.mark.parametrize("dtype", [torch.float32, *([torch.bfloat16] if HAS_BF16 else [])])
def test_targets_have_it_unless_their_attention_slides(dtype):
    model = small("llama").to(dtype)
    assert isinstance(OpenVinoRunner(model)._memory, PagedMemory)
    assert isinstance(OpenVinoRunner(model, drafts=True)._memory, GrowingMemory)
    assert isinstance(OpenVinoRunner(small("gemma2").to(dtype))._memory, GrowingMemory)


@pytest.mark.parametrize(("dtype", "read"), [(torch.float32, 1), *([(torch.bfloat16, 4)] if HAS_BF16 else [])])
def test_a_single_token_is_read_with_padding_in_bfloat16(dtype, read):
    target = OpenVinoRunner(small("llama").to(dtype))
    [row] = begin(target, [[*range(30)]])
    for _ in range(4):
        target.extend(torch.tensor([[4]]), torch.tensor([[0]]), torch.ones(1, 1, 1, dtype=torch.bool))
        row.tokens.append(4)
        target.commit([[0]])
    assert target._memory._sizes._last == read


@pytest.mark.skipif(not HAS_BF16, reason="the processor has no bfloat16")
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
def test_in_bfloat16_a_tree_is_scored_as_its_paths_up_to_rounding(kind):
    model = small(kind).bfloat16()
    target, text = OpenVinoRunner(model, paged=True), [*range(5, 60)]
    tokens, depths, seen = tree_of([0, 0, 0, 1, 2, 4, 4])
    begin(target, [text])
    tree = target.extend(tokens, depths, seen).logits[0]
    for node, scores in enumerate(tree):
        path = tokens[:, seen[0, node]]
        length = path.shape[1]
        begin(target, [text])
        chain = target.extend(path, torch.arange(length)[None], torch.ones(1, length, length, dtype=torch.bool).tril())
        assert float((scores - chain.logits[0, -1]).abs().max() / scores.abs().max()) < 2e-2


def test_a_stored_graph_computes_the_same_bits(monkeypatch, tmp_path):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))
    made, inner = [], store.paged_graph
    monkeypatch.setattr(store, "paged_graph", lambda model, **settings: made.append(1) or inner(model, **settings))
    found = []
    for _ in range(2):
        target = OpenVinoRunner(small("gpt2"), paged=True)
        begin(target, [[1, 2, 3]])
        found.append(target.extend(*tree_of([0, 0, 0])).logits)
    assert made == [1]
    assert torch.equal(*found)


def test_attention_that_cannot_be_paged_is_named(monkeypatch):
    monkeypatch.setattr(paged, "_ATTENTION", "another")
    with pytest.raises(ModelError, match="'llama' cannot be converted for OpenVINO"):
        paged.paged_graph(small("llama"))


@pytest.mark.skipif(not HAS_BF16, reason="the processor has no bfloat16")
def test_where_attention_cannot_be_paged_a_graph_has_state(monkeypatch, tmp_path):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))
    monkeypatch.setattr(paged, "_ATTENTION", "another")
    model = small("llama").bfloat16()
    assert isinstance(OpenVinoRunner(model)._memory, GrowingMemory)
    with pytest.raises(ModelError):
        OpenVinoRunner(model, paged=True)


def test_another_runner_of_the_network_has_blocks_of_its_own():
    model = small("llama")
    target = OpenVinoRunner(model, paged=True)
    begin(target, [[1, 2, 3]])
    other = target.another()
    begin(other, [[7, 8, 9, 10]])
    for one, text in ((other, [7, 8, 9, 10]), (target, [1, 2, 3])):
        assert torch.allclose(one.extend(*tree_of([0])).logits[0, 0], plain_scores(model, [*text, 5]), atol=CLOSE)


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
