"""A node's scores are the same bits in a tree, a chain, a prompt, any company and on any number of threads."""

import random
from itertools import product

import pytest
import torch

from draftwood.hardware.threads import ThreadRule
from draftwood.runners.native.runner import NativeRunner
from draftwood.runners.protocols import Prefix
from draftwood.sampling.rows import Row
from tests.differences import difference
from tests.helpers import ancestors_of
from tests.runners.zoo import NATIVE, VOCAB, tiny

FORMATS = [torch.float32, torch.bfloat16]
TEXT = random.Random(0).choices(range(VOCAB), k=270)  # more than go through all layers together
PARENTS = [0, 0, 0, 0, 1, 2, 5, 6, 6, 8]
BAD = next(token for token in range(VOCAB) if token not in TEXT[:80])


def model_of(kind, dtype, **settings):
    sizes = {"hidden_size": 48, "num_attention_heads": 6, "max_position_embeddings": 320}
    model = tiny(kind, 1, dtype=dtype, **{**NATIVE[kind], **sizes, **settings})
    for name, weight in model.named_parameters():
        if "experts" in name and "bias" in name:  # those of a new model are zeros
            torch.nn.init.normal_(weight, std=0.3)
    return model


def runner_of(kind, dtype):
    return NativeRunner(model_of(kind, dtype), hidden_layers=(0, 1, 2))


def score(runner, tokens, parents):
    """Scores and hidden states of the nodes of a tree in every row."""
    seen = ancestors_of(torch.tensor([list(parents)] * len(tokens)), len(parents))
    found = runner.extend(torch.tensor(tokens), seen.sum(-1) - 1, seen)
    assert found.hidden is not None
    return torch.cat([found.logits, found.hidden], dim=-1)


def one_by_one(runner, text, begin=1):
    """The same after each token of a text, by plain decoding behind its beginning."""
    row, found = Row(tokens=list(text[:begin])), []
    runner.clear()
    runner.set_rows([row])
    for token in [*text[begin:], 0]:
        found.append(score(runner, [row.tokens[-1:]], [0])[0, 0])
        row.tokens.append(token)
        runner.commit([[0]])
    return torch.stack(found)


def after(runner, text):
    """The same after the last token of a text, whose other tokens are a prompt."""
    return one_by_one(runner, text, len(text))[0]


def path(node, parents=PARENTS):
    return [*path(parents[node], parents), node] if node else [0]


@pytest.mark.parametrize(("kind", "dtype"), product(NATIVE, FORMATS))
def test_a_text_has_the_same_bits_in_any_portions(isa, kind, dtype):
    runner = runner_of(kind, dtype)
    alone = one_by_one(runner, TEXT)
    runner.clear()
    runner.set_rows([Row(tokens=TEXT[:1])])
    assert torch.equal(score(runner, [TEXT], [max(0, i - 1) for i in range(len(TEXT))])[0], alone)  # as a chain of nodes
    for length in (1, 15, 64, 100, 256, 257):
        assert torch.equal(after(runner, TEXT[:length]), alone[length - 1])
    row = Row(tokens=list(TEXT))
    runner.clear()
    for end in (7, 8, 71, 265):
        runner.prefill(row, end)
    runner.set_rows([row])
    assert torch.equal(score(runner, [TEXT[-1:]], [0])[0, 0], alone[-1])


@pytest.mark.parametrize("dtype", FORMATS)
def test_so_has_one_of_more_heads_with_the_same_keys_than_a_tile_has_rows(isa, dtype):
    model = model_of("llama", dtype, hidden_size=136, num_attention_heads=17, num_key_value_heads=1)
    runner, text = NativeRunner(model, hidden_layers=(0, 1, 2)), TEXT[:70]
    alone = one_by_one(runner, text)
    runner.clear()
    runner.set_rows([Row(tokens=text[:1])])
    assert torch.equal(score(runner, [text], [max(0, i - 1) for i in range(70)])[0], alone)


@pytest.mark.parametrize(("kind", "dtype"), product(NATIVE, FORMATS))
def test_a_tree_has_the_bits_of_its_paths_in_any_company_and_on_any_threads(isa, kind, dtype, monkeypatch):
    runner, tokens = runner_of(kind, dtype), TEXT[40 : 40 + len(PARENTS)]
    for length in (1, 16, 63, 64, 250):
        text = [*TEXT[: length - 1], tokens[0]]
        nodes = {}
        for leaf in set(range(len(PARENTS))) - {*PARENTS}:
            whole = [*text, *(tokens[i] for i in path(leaf)[1:])]
            nodes |= zip(path(leaf), one_by_one(runner, whole, length), strict=True)
        wanted = torch.stack([nodes[i] for i in range(len(PARENTS))])
        for threads, others in ((1, 0), (2, 3), (3, 1)):
            monkeypatch.setattr(ThreadRule, "now", threads)
            rows = [Row(tokens=text), *(Row(tokens=TEXT[5 * i : 9 + 31 * i]) for i in range(others))]
            runner.clear()
            runner.set_rows(rows[::-1])
            nodes = [[row.tokens[-1], *tokens[1:]] for row in rows[::-1]]
            assert torch.equal(score(runner, nodes, PARENTS)[-1], wanted), (length, threads)


@pytest.mark.parametrize("dtype", FORMATS)
def test_accepted_nodes_and_copied_beginnings_have_the_bits_of_text(isa, dtype):
    runner, kept = runner_of("llama", dtype), path(8)
    for length in (3, 60, 64, 95):
        row = Row(tokens=list(TEXT[:length]))
        runner.clear()
        runner.set_rows([row])
        tokens = [row.tokens[-1], *TEXT[1 : len(PARENTS)]]
        score(runner, [tokens], PARENTS)
        row.tokens += [*(tokens[i] for i in kept[1:]), 5]
        runner.commit([kept])
        copy = Row(tokens=[*row.tokens[:-2], 1, 2])
        runner.prefill(copy, len(copy.tokens) - 1, prefix=Prefix(row, len(copy.tokens) - 2))
        runner.set_rows([row, copy])
        found = score(runner, [[5], [2]], [0])[:, 0]
        assert torch.equal(found, torch.stack([after(runner, one.tokens) for one in (row, copy)]))


def spoilt(runner):
    with torch.no_grad():
        runner.model.get_input_embeddings().weight[BAD] = torch.nan
    return runner


def check_no_number(runner, gap):
    """A token that is no number ends the texts that see it, and scores of no other one differ by more than ``gap``."""
    for length in (3, 4, 33, 62, 63, 64):
        text, new = TEXT[:length], TEXT[length]
        *wanted, last = (after(runner, TEXT[:n]) for n in (length - 1, length, length + 1))
        row, other, spoilt = Row(tokens=text[:-1]), Row(tokens=[*text, new]), Row(tokens=[*text, BAD, 5, 6])
        runner.clear()
        runner.set_rows([row])
        found = score(runner, [[text[-2], BAD, 5, text[-1], BAD]], [0, 0, 1, 0, 3])[0]
        assert found[[1, 2, 4], :VOCAB].isnan().all()
        assert difference(found[[0, 3]], torch.stack(wanted)) <= gap, "as its siblings"
        row.tokens += [text[-1], new]
        runner.commit([[0, 3]])
        assert difference(score(runner, [[new]], [0])[0, 0], last) <= gap, "after it was rejected"
        runner.clear()
        runner.prefill(spoilt, length + 2)
        runner.set_rows([spoilt])
        runner.prefill(other, length, prefix=Prefix(spoilt, length))
        runner.set_rows([spoilt, other])
        found = score(runner, [[6], [new]], [0])[:, 0]
        assert found[0, :VOCAB].isnan().all()
        assert difference(found[1], last) <= gap, "with the beginning before it"


@pytest.mark.parametrize(("kind", "dtype"), product(["llama", "gemma2"], FORMATS))
def test_a_token_that_is_no_number_changes_no_bit_of_what_does_not_see_it(isa, kind, dtype):
    check_no_number(spoilt(runner_of(kind, dtype)), 0.0)


@pytest.mark.parametrize("dtype", FORMATS)
def test_control_sums_in_another_order_are_seen(isa, dtype):
    """The same function with the inner numbers of a layer in reverse: sums that were split by threads would differ so."""
    model = model_of("llama", dtype)
    mine = one_by_one(NativeRunner(model, hidden_layers=(0, 1, 2)), TEXT[:20])
    with torch.no_grad():
        mlp = model.model.layers[0].mlp
        for weight, dim in ((mlp.gate_proj.weight, 0), (mlp.up_proj.weight, 0), (mlp.down_proj.weight, 1)):
            weight.copy_(weight.flip(dim))
    other = one_by_one(NativeRunner(model, hidden_layers=(0, 1, 2)), TEXT[:20])
    assert 0 < difference(mine, other) < 0.5
