"""Weights in codes. With inputs of 16 bits scores are, bit for bit, those of the numbers that the codes stand for; with
inputs of 8 bits they are those of one arithmetic on every instruction set."""

from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from draftwood.native.library import instruction_sets, library
from draftwood.runners.native.family import EMBEDDING, HEAD
from draftwood.runners.native.runner import NativeRunner
from draftwood.runners.native.weights import BLOCKS, Weight
from draftwood.sampling.rows import Row
from tests.differences import difference
from tests.loading.gguf_files import blocks
from tests.native.test_bits import BAD, PARENTS, TEXT, check_no_number, score
from tests.native.test_stored import stored
from tests.runners.zoo import VOCAB, tiny

SIZES = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512}
KINDS = [Kind(number) for number in BLOCKS]
CODES = [kind for kind in KINDS if kind.name[0] not in "FB"]
MIXTURE = {"q_proj": Kind.Q4_K, "v_proj": Kind.Q6_K, "down_proj": Kind.Q6_K, "up_proj": Kind.Q5_0, "lm_head": Kind.Q8_0}


def coded(kinds, default=None, **settings):
    """A model whose matrices are random codes of these types, heads of queries and keys in llama.cpp's order."""
    found = stored(tiny("llama", 1, dtype=torch.bfloat16, **{**SIZES, **settings}), coded=True)
    found.activations = 16
    weights = dict(found.weights)
    for name, weight in found.weights.items():
        part = name.split(".")[-2]
        if (kind := kinds.get(part, default)) is not None and len(weight.shape) > 1:
            data = blocks(np.random.default_rng(len(name)), kind, *weight.shape).reshape(-1)
            head = found.config.head_dim if part in ("q_proj", "k_proj") else 0
            weights[name] = Weight(data=data, kind=int(kind), shape=weight.shape, head=head)
    found.weights = weights
    return found


def scores(model):
    """Of a tree after a text."""
    runner = NativeRunner(model, check=False, hidden_layers=(2,))
    runner.set_rows([Row(tokens=TEXT[:40])])
    return score(runner, [[TEXT[39], *range(1, len(PARENTS))]], PARENTS)


def compare(model):
    found = scores(model)
    assert found.isfinite().all()
    assert found.std() > 0.01
    assert torch.equal(found, scores(model.module))
    model.coded = False
    assert torch.equal(found, scores(model))


def in_eights(x):
    """Inputs as they are multiplied: rounded to 8 bits, with a scale for 32 of them. Slow, and another way."""
    groups = x.reshape(*x.shape[:-1], -1, 32)
    scale = np.abs(groups).max(-1, keepdims=True) / np.float32(127)
    return (np.rint(groups / np.where(scale == 0, 1, scale)) * scale).reshape(x.shape)


@pytest.mark.parametrize("kind", CODES, ids=lambda kind: kind.name)
def test_products_in_integers_are_those_of_rounded_inputs(isa, kind):
    model = coded({"lm_head": kind}, tie_word_embeddings=False)
    model.activations = 8
    runner = NativeRunner(model, check=False, hidden_layers=(2,))  # the input of the head
    head = model.head.tensor(torch.float32).numpy().T.astype(np.float64)
    for rows in (1, 2, 3, 5, 8, 9, 17, 33):
        runner.clear()
        runner.set_rows([Row(tokens=[3])])
        nodes = torch.arange(rows)[None]
        found = runner.extend((nodes + 3) % VOCAB, nodes, torch.ones(1, rows, rows).tril().bool())
        inputs = found.hidden[0].numpy()
        wanted = torch.from_numpy(in_eights(inputs).astype(np.float64) @ head)
        assert difference(found.logits[0].double(), wanted) < 1e-5 * float(wanted.abs().max()), rows
        exact = torch.from_numpy(inputs.astype(np.float64) @ head)
        assert difference(found.logits[0].double(), exact) > 1e-4 * float(exact.abs().max()), "control: inputs are rounded"


@pytest.mark.parametrize(("kinds", "inner"), [({}, 512), (MIXTURE, 512), ({"down_proj": Kind.Q4_1}, 544)])
def test_scores_of_integers_have_one_text_on_every_instruction_set(kinds, inner):
    found = []
    for name in instruction_sets():
        library().use(name.encode())
        for kind in (None,) if kinds else CODES:
            model = coded(kinds, kind, intermediate_size=inner)
            model.activations = 8
            found.append(scores(model))
            assert found[-1].isfinite().all()
    library().use(instruction_sets()[-1].encode())
    count = len(found) // len(instruction_sets())
    assert len(instruction_sets()) > 1
    for at, one in enumerate(found):
        assert torch.equal(one, found[at % count])
    model.activations = 16
    assert not torch.equal(scores(model), found[-1])  # the control: another arithmetic has other bits


def test_a_group_that_is_not_finite_is_seen_and_a_tiny_one_is_zero(isa):
    for value, finite in ((float("nan"), False), (float("inf"), False), (1e-38, True)):
        model = coded({}, Kind.Q4_1)
        model.activations = 8
        norm = model.weights["model.norm.weight"].tensor(torch.float32)
        norm[5] = value
        data = norm.numpy().view(np.uint8)
        model.weights = {**model.weights, "model.norm.weight": Weight(data=data, kind=0, shape=tuple(norm.shape))}
        assert scores(model)[..., :VOCAB].isfinite().all() == finite


@pytest.mark.parametrize("activations", [8, 16])
@pytest.mark.parametrize("kind", [Kind.Q4_K, Kind.Q8_0, Kind.MXFP4], ids=lambda kind: kind.name)
def test_a_token_that_is_no_number_changes_no_bit_of_what_does_not_see_it(isa, kind, activations):
    model = coded({}, kind, tie_word_embeddings=False)
    model.activations = activations
    embedding = model.weights[EMBEDDING]
    data = embedding.data.copy()
    data.reshape(VOCAB, -1)[BAD, :2] = 255  # a scale, which is first in a block
    model.weights = {**model.weights, EMBEDDING: replace(embedding, data=data)}
    check_no_number(NativeRunner(model, check=False, hidden_layers=(0, 1, 2)), 0.0)


@pytest.mark.parametrize("kind", CODES, ids=lambda kind: kind.name)
def test_scores_are_those_of_the_numbers(isa, kind):
    compare(coded({}, kind, tie_word_embeddings=True))


@pytest.mark.parametrize("settings", [{}, {"head_dim": 48}], ids=["parts", "padded"])  # padded inputs have no codes
def test_types_may_be_mixed(isa, settings):
    kinds = MIXTURE if not settings else {"o_proj": Kind.Q8_0, "down_proj": Kind.Q4_1}
    compare(coded(kinds, **settings))


@pytest.mark.parametrize("family", ["olmo2", "phi3", "gemma2", "gemma3_text"])
def test_a_rounded_model_is_the_same_by_codes_and_by_numbers(family):
    found = stored(tiny(family, 1, dtype=torch.bfloat16, **SIZES))
    found.round_to(4)
    compare(found)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_are_those_of_the_package_gguf(kind, dtype):
    block, size = BLOCKS[int(kind)]
    if kind in CODES:
        data = blocks(np.random.default_rng(3), kind, 5, 2 * block)
    else:
        data = gguf.quantize(np.random.default_rng(3).normal(size=(5, 2)).astype(np.float32), kind).view(np.uint8)
    assert data.size == 10 * size
    found = Weight(data=data.reshape(-1), kind=int(kind), shape=(5, 2 * block)).tensor(dtype)
    wanted = gguf.dequantize(data.view(np.float32) if kind == Kind.F32 else data, kind)
    assert torch.equal(found, torch.from_numpy(np.array(wanted, np.float32)).reshape(5, -1).to(dtype))


def test_control_another_code_is_another_model():
    model = coded({}, Kind.Q4_1)
    before, name = scores(model), "model.layers.0.mlp.down_proj.weight"
    weight = model.weights[name]
    other = weight.data.copy()
    other[5::20] ^= 1  # codes of some numbers
    model.weights = {**model.weights, name: replace(weight, data=other)}
    assert not torch.equal(scores(model), before)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_rounded_model_is_that_of_its_codes(isa, bits):
    own = stored(tiny("llama", 1, dtype=torch.bfloat16, **SIZES))
    before = {name: weight.tensor(torch.float32) for name, weight in own.weights.items()}
    own.round_to(bits)
    for name, weight in own.weights.items():
        kept = 8 if name in (EMBEDDING, HEAD) else bits
        assert weight.kind == ({4: 3, 8: 8}[kept] if len(weight.shape) > 1 else 30), name
        if weight.coded:
            groups = before[name].view(-1, 32)
            step = groups.abs().amax(1) / 127 if kept == 8 else (groups.amax(1) - groups.amin(1)) / 15
            error = (weight.tensor(torch.float32).view(-1, 32) - groups).abs().amax(1)
            # Scale and least number are rounded to float16.
            assert (error <= 0.51 * step + groups.abs().amax(1) * 2**-10).all(), name
    assert f" int{bits} " in NativeRunner(own).engine
    compare(own)
