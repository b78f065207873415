"""Drafters of hidden states in the native engine: what is forgotten is forgotten there too, and a block is one."""

from itertools import product

import pytest
import torch

from draftwood.hardware.threads import ThreadRule
from draftwood.runners.native import network
from draftwood.runners.native.runner import NativeRunner
from tests.differences import difference
from tests.helpers import (
    MIXTURE,
    ancestors_of,
    at_roots,
    hidden_runner,
    interrupted,
    rows_of,
    tiny_hidden,
    tiny_model,
    tiny_published,
)
from tests.native.test_bits import FORMATS, PARENTS, TEXT, after, model_of, path
from tests.native.test_stored import stored
from tests.runners.zoo import tiny

VOCAB = 11


def scores_of(runner, seed, texts, length, root=3):
    """Scores after roots of rows whose hidden states of the last ``length`` tokens are new."""
    generator = torch.Generator().manual_seed(seed)
    config = runner.model.config
    width = len(config.target_layers) * getattr(config, "target_size", config.hidden_size)
    rows = rows_of(texts)
    runner.set_rows(rows)
    hidden = [torch.randn(length, width, generator=generator) for _ in rows]
    runner.commit([[] for _ in rows], hidden)
    found = at_roots(runner, [root] * len(rows)).logits
    runner.commit([[0] for _ in rows], [torch.zeros(0, width) for _ in rows])
    return found


def test_a_second_text_with_the_same_beginning_and_one_with_a_gap():
    model = tiny_model("native", VOCAB, 1)
    drafter = tiny_hidden(model)
    runners = [hidden_runner(drafter, model, engine) for engine in ("native", "torch")]
    text, other, gap = [1] * 31, [1] * 4 + [2] * 40, [1] * 4 + [2] * 60
    for given, new in ((text, 30), (other, 40), (gap, 5)):
        found = [scores_of(runner, 1, [given], new) for runner in runners]
        assert difference(found[0], found[1]) < 1e-4
        assert list(map(len, runners[0]._passes.table.parts)) == [text.cached for text in runners[0]._texts]
        for runner in runners:
            runner.clear()


@pytest.mark.parametrize("kind", ["hidden", "dflash", "dspark"])
def test_many_rows_have_the_bits_of_each_alone(kind):
    model = tiny_model("native", VOCAB, 1)
    drafter = tiny_hidden(model) if kind == "hidden" else tiny_published(model, kind)
    if kind == "dflash":
        drafter.config.slots, drafter.config.block = 10, 9
    runner = hidden_runner(drafter, model, "native")
    together = scores_of(runner, 5, [[1] * 21] * 9, 20)
    generator = torch.Generator().manual_seed(5)
    width = len(drafter.config.target_layers) * model.config.hidden_size
    for row in range(9):
        runner.clear()
        rows = rows_of([[1] * 21])
        runner.set_rows(rows)
        runner.commit([[]], [torch.randn(20, width, generator=generator)])
        assert torch.equal(at_roots(runner, [3]).logits[0], together[row])


def test_a_table_of_rotations_that_was_not_made_is_made_again(monkeypatch):
    monkeypatch.setattr(network, "_POSITIONS", 20)
    runner = NativeRunner(model_of("llama", torch.float32), hidden_layers=(0,))
    rotate = runner.network._rotate
    runner.network._rotate = interrupted()
    with pytest.raises(KeyboardInterrupt):
        after(runner, TEXT[:100])
    runner.network._rotate = rotate
    found = after(runner, TEXT[:100])
    monkeypatch.undo()
    fresh = NativeRunner(model_of("llama", torch.float32), hidden_layers=(0,))
    assert torch.equal(found, after(fresh, TEXT[:100]))


EAGLES = [
    {"own_head": False, "rope_scale": 1.3},
    {"num_hidden_layers": 2, "norm_output": True, "fc_norm": True, "attention_bias": True, "proposes": 7},
    {"norm_before_fc": True, "norm_before_residual": True, "qk_norm": True, "num_attention_heads": 6},
    {"own_embedding": True, "hidden_size": 33, "head_dim": 10, "intermediate_size": 17, "target_layers": [0, 1, 1],
     "rope_frequencies": [1.0, 0.6, 0.3, 0.2, 0.1]},
    {"kind": "mtp", "num_attention_heads": 6},
    {"kind": "mtp", "own_head": True, "own_embedding": True, "proposes": 7, "head_dim": 10},
    {"kind": "mtp", "mixture": {**MIXTURE, "experts_per_token": 5}},  # rounding moves the weakest alone
]  # fmt: skip


def eagle_of(dtype, kind="eagle3", **flags):
    """A drafter and its target, whose norms have weights and whose scores are of a size with those of a model."""
    model = model_of("llama", dtype)
    drafter = tiny_published(model, kind, **flags)
    with torch.no_grad():
        for name, weight in drafter.weights().items():
            if weight.is_floating_point():
                weight.uniform_(0.2, 1.8) if "norm" in name else weight.mul_(0.3)
    return drafter, model


def eagle_scores(runner, rows, tokens, parents):
    """Scores of a tree, given its tokens below the root, in rows with a text and a seed of hidden states."""
    texts = [text for text, _ in rows]
    width = runner.model.hidden_width
    hidden = [torch.randn(len(text) - 1, width, generator=torch.Generator().manual_seed(seed)) for text, seed in rows]
    runner.clear()
    runner.set_rows(rows_of([text[:-1] for text in texts], roots=[text[-1] for text in texts]))
    runner.commit([[] for _ in rows], hidden)
    seen = ancestors_of(torch.tensor([list(parents)] * len(rows)), len(parents))
    return runner.extend(torch.tensor([[text[-1], *tokens] for text in texts]), seen.sum(-1) - 1, seen).logits


@pytest.mark.parametrize(("dtype", "flags"), product(FORMATS, EAGLES))
def test_a_tree_of_an_eagle_drafter_has_the_bits_of_its_paths(isa, dtype, flags, monkeypatch):
    runner, tokens = hidden_runner(*eagle_of(dtype, **flags), "native"), TEXT[40 : 39 + len(PARENTS)]
    for length in (2, 64, 260):
        text, wanted = TEXT[:length], []
        for node in range(len(PARENTS)):
            chain = [tokens[i - 1] for i in path(node)[1:]]
            wanted.append(eagle_scores(runner, [(text, 1)], chain, [max(0, i - 1) for i in range(len(chain) + 1)])[0, -1])
        for threads, others in ((1, 0), (2, 3), (3, 1)):
            monkeypatch.setattr(ThreadRule, "now", threads)
            rows = [*((TEXT[5 * i : 9 + 31 * i], 2 + i) for i in range(others)), (text, 1)]
            assert torch.equal(eagle_scores(runner, rows, tokens, PARENTS)[-1], torch.stack(wanted)), (length, threads)


@pytest.mark.parametrize(("dtype", "flags"), product(FORMATS, EAGLES[:-3]))
def test_scores_of_an_eagle_drafter_are_those_of_pytorch(isa, dtype, flags):
    drafter, model = eagle_of(dtype, **flags)
    native = hidden_runner(drafter, model, "native")
    exact = hidden_runner(drafter.double(), model.double())
    rows = [(TEXT[:70], 1), (TEXT[3:9], 2)]
    found, wanted = (eagle_scores(runner, rows, TEXT[40 : 39 + len(PARENTS)], PARENTS) for runner in (native, exact))
    assert native.engine.startswith("native ")
    assert difference(found, wanted) < wanted.std() * (1e-4 if dtype == torch.float32 else 0.2)
    assert found.shape == wanted.shape


KINDS = ["hidden", "dspark", "eagle3"]


def drafter_of(kind, model, proposes=None):
    return tiny_hidden(model, proposes=proposes) if kind == "hidden" else tiny_published(model, kind, proposes=proposes)


@pytest.mark.parametrize(("kind", "dtype", "kept"), product(KINDS, FORMATS, [0, 1, 30, None]))
def test_every_token_is_a_root_whatever_the_drafter_proposes(kind, dtype, kept):
    """Also where the target's embedding is stored in another number format."""
    model = tiny("gemma2" if kept is None and kind == "hidden" else "llama", 1, dtype=torch.bfloat16).to(dtype)
    drafter = drafter_of(kind, model, proposes=7)
    target = model if kept is None else stored(model, kind=kept)
    native, plain = hidden_runner(drafter, target, "native"), hidden_runner(drafter, model)
    for root in (6, 7, 50, model.config.vocab_size - 1):
        found, wanted = (scores_of(runner, 1, [[1] * 9], 8, root) for runner in (native, plain))
        assert difference(found, wanted) < wanted.abs().max() * (1e-4 if dtype == torch.float32 else 0.2), root


@pytest.mark.parametrize("part", ["fc.weight", "layers.0.hidden_norm.weight", "layers.0.self_attn.k_proj.weight", "hidden"])
def test_what_is_no_number_gives_scores_that_are_none(part):
    drafter, model = eagle_of(torch.float32)
    if part != "hidden":
        with torch.no_grad():
            drafter.get_parameter(part).view(-1)[0] = torch.nan
    runner = hidden_runner(drafter, model, "native")
    if part == "hidden":
        runner.set_rows(rows_of([[1, 2, 3]]))
        runner.commit([[]], [torch.full((3, drafter.hidden_width), torch.nan)])
        found = at_roots(runner, [0]).logits
    else:
        found = eagle_scores(runner, [(TEXT[:9], 1)], [4], [0, 0])
    assert found.isnan().all()
