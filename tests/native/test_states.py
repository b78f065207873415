"""Layers with a running state: scores of every length, deep and wide trees, forks, memory, and the joint distribution."""

import json
from copy import deepcopy

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood.core.errors import CacheError, ModelError
from draftwood.runners.native.runner import NativeRunner
from draftwood.runners.protocols import Prefix
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling.rows import Row
from tests.differences import difference
from tests.helpers import decoder
from tests.ladder import test_rung3_tape
from tests.ladder.test_rung3_tape import misplaced
from tests.native.test_bits import TEXT, after, model_of, one_by_one, path, score
from tests.native.test_stored import check_read
from tests.runners.zoo import NATIVE, tiny

KINDS = ["qwen3_5_text", "lfm2", "granitemoehybrid", "bamba"]
PROMPT = [0, 2, 1, 1, 0] * 6
EXACT, WRONG = 1e-5, 1e-3


def random_model(kind, dtype=torch.float32, **settings):
    """A model whose norms, decays and biases are random too."""
    model = model_of(kind, dtype, **settings)
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        if "norm" in name or "dt_bias" in name or name.endswith((".D", "conv1d.bias", "expert_bias")):
            weight.data += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name)))
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_every_prompt_and_every_length_has_the_scores_of_the_model(kind):
    layers = "conv" if kind == "lfm2" else "linear_attention"
    settings = {"num_hidden_layers": 4, "layer_types": [layers, layers, "full_attention", layers], "num_local_experts": 0}
    if kind == "bamba":
        settings = {"num_hidden_layers": 4, "attn_layer_indices": [2]}
    model = random_model(kind, **settings)
    text = [*TEXT, *TEXT[:30]]
    with torch.no_grad():
        wanted = deepcopy(model).double()(input_ids=torch.tensor([text]), use_cache=False).logits[0]
    runner, size, vocab = NativeRunner(model, hidden_layers=(0, 1, 2)), wanted.abs().max(), wanted.shape[1]
    for found in (one_by_one(runner, text), [after(runner, text[:length]) for length in range(1, 101)]):
        errors = sorted(difference(mine[:vocab], its) / size for mine, its in zip(found, wanted, strict=False))
        assert errors[-len(errors) // 20] < 1e-4
        assert errors[-1] < 2e-3, "rounding at single tokens"


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_of_any_depth_has_the_bits_of_its_paths_and_so_has_what_is_kept(kind):
    runner = NativeRunner(random_model(kind), hidden_layers=(0, 1, 2))
    parents = [0, 0, 1, *range(2, 40), 30, 30, 41, 42]  # three branches, of which two leave the first one deep down
    tokens = [TEXT[(3 * i) % 97] for i in range(len(parents))]

    for length in (1, 14, 15, 16, 17, 31, 32, 33, 40, 100):
        text = [*TEXT[: length - 1], tokens[0]]
        row = Row(tokens=list(text))
        runner.clear()
        runner.set_rows([row])
        found = score(runner, [tokens], parents)[0]
        for node in (0, 1, 15, 16, 17, 32, 40, 43, 44):
            assert torch.equal(found[node], after(runner, [*text, *(tokens[i] for i in path(node, parents)[1:])])), (
                length,
                node,
            )
        for kept in (path(node, parents) for node in (0, 1, 17, 40, 44)):
            row = Row(tokens=list(text))
            runner.clear()
            runner.set_rows([row])
            score(runner, [tokens], parents)
            runner.commit([kept])
            row.tokens += [*(tokens[i] for i in kept[1:]), 5, 6]
            assert torch.equal(score(runner, [[6]], [0])[0, 0], after(runner, row.tokens)), (length, kept)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_shares_what_is_kept_and_reads_the_rest_again(kind):
    runner = NativeRunner(random_model(kind), hidden_layers=(0, 1, 2))
    shared = []
    for length in (3, 20, 40, 97):
        for less in (1, 2, 5, 17, 30):
            row, other = Row(tokens=TEXT[:length]), Row(tokens=[*TEXT[: max(1, length - less)], 9, 8])
            runner.clear()
            runner.prefill(row, length)
            runner.set_rows([row])
            prefix = Prefix(row, len(other.tokens) - 2)
            runner.prefill(other, prefix.length, prefix=prefix)
            shared.append(len(runner._rows.begin(other, None)))
            runner.prefill(other, len(other.tokens) - 1)
            runner.set_rows([row, other])
            row.tokens.append(4)
            wanted = [
                after(NativeRunner(runner.model, check=False, hidden_layers=(0, 1, 2)), one.tokens) for one in (row, other)
            ]
            assert torch.equal(score(runner, [[4], [8]], [0])[:, 0], torch.stack(wanted))
    assert max(shared) > 90


@pytest.mark.parametrize("kind", KINDS[:3])
@pytest.mark.parametrize("length", [35, 48, 49])
def test_a_fork_knows_which_states_and_entries_are_of_its_tokens(kind, length):
    runner, row = NativeRunner(random_model(kind), hidden_layers=(0, 1, 2)), Row(tokens=TEXT[: length - 2])
    runner.set_rows([row])
    score(runner, [TEXT[length - 3 : length + 17]], [0, *range(19)])  # which makes states that are read later
    row.tokens = TEXT[: length + 1]
    runner.commit([[0, 1, 2]])
    whole, reached, half = runner.memory_of(row), [], length // 16 * 16
    for first, second in ((length, length - 1), (half, half - 1), (half, 10)):
        fork = whole.fork(first)
        fork.cut(second)
        other = Row(tokens=[*TEXT[:60], 8])
        runner._rows.coming = other, fork
        reached.append(len(fork))
        runner.prefill(other, 60)
        runner.set_rows([other])
        assert torch.equal(score(runner, [[8]], [0])[0, 0], after(runner, other.tokens)), (first, second, reached)
        runner.clear()
    assert reached[0] == length - 1


@pytest.mark.parametrize("kind", KINDS[:3])
def test_scores_behind_a_mark_have_the_same_bits_and_behind_that_of_another_place_they_have_not(kind):
    runner, row = NativeRunner(random_model(kind), hidden_layers=(0, 1, 2)), Row(tokens=[*TEXT[:150], 4])
    places = (33, 48, 64, 81, 112)
    for length in (*places, 150):
        runner.prefill(row, length)
        runner.mark(row, regular=True)
    first, *marks = runner.memory_of(row).marks
    alone = NativeRunner(runner.model, check=False, hidden_layers=(0, 1, 2))
    for right in (True, False):
        for length, mark in zip(places[1:], marks, strict=False):
            for part in range(0 if right else 3):  # of running states
                mark.parts[part][:] = first.parts[part]
            runner.set_rows([row])
            other = Row(tokens=[*TEXT[: length + 5], 8])
            runner.prefill(other, length, prefix=Prefix(row, length + 5))
            assert len(runner.memory_of(other)) == length
            runner.set_rows([row, other])
            found = score(runner, [[4], [8]], [0])[1, 0]
            assert torch.equal(found, after(alone, other.tokens)) == right


def test_memory_is_bounded_and_freed():
    runner = NativeRunner(random_model("qwen3_5_text", max_position_embeddings=3000))
    row = Row(tokens=(TEXT * 9)[:2000])
    runner.prefill(row, 40)
    states = runner.memory_bytes - 64 * runner.token_bytes
    runner.prefill(row, 2000)
    assert runner.memory_bytes - 2048 * runner.token_bytes == states > 0
    runner.clear()
    assert runner.memory_bytes == 0


def test_nodes_that_see_two_of_a_depth_are_refused():
    runner = NativeRunner(random_model("lfm2"))
    runner.set_rows([Row(tokens=[1])])
    seen = torch.tensor([[[1, 0, 0], [1, 1, 0], [1, 1, 1]]], dtype=torch.bool)
    with pytest.raises(CacheError, match="need trees"):
        runner.extend(torch.tensor([[1, 2, 3]]), torch.tensor([[0, 1, 1]]), seen)


def with_a_leak(runner):
    """A runner whose nodes behind the second child of the root see the first one instead."""
    extend = runner.extend

    def wrong(tokens, depths, seen):
        seen = torch.as_tensor(seen).clone()
        if seen.shape[1] > 3:
            behind = seen[:, 3:, 2].clone()
            seen[:, 3:, 1] |= behind
            seen[:, 3:, 2] &= ~behind
        return extend(tokens, depths, seen)

    runner.extend = wrong
    return runner


@pytest.mark.parametrize("kind", KINDS[:3])  # Bamba's layers are those of Granite
@pytest.mark.parametrize("length", [14, 30])  # of prompts: text passes a checkpoint
def test_the_joint_distribution_is_the_targets_and_a_leak_is_seen(kind, length):
    def model(seed):
        return NativeRunner(tiny(kind, seed, dtype=torch.float32, **NATIVE[kind], vocab_size=3), drafts=seed == 2)

    def distance(change, method, shape):
        engine = decoder(change(model(1)), model(2), method, shape, "recursive")
        return test_rung3_tape.distance(engine, 3, prompt=tuple(PROMPT[:length]), rounding=1e-6)

    for method, shape in (("chain", "3"), ("rsd-s", "2x2"), ("rsd-c", "2-1")):
        assert distance(lambda runner: runner, method, shape) < EXACT
    for change in (with_a_leak, misplaced):
        assert distance(change, "rsd-c", "2-1") > WRONG


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [*KINDS, "qwen3_5_moe_text", "lfm2_moe"])
def test_files_are_read_as_transformers_reads_them(tmp_path, kind, dtype):
    model = random_model(kind, dtype)
    model.save_pretrained(tmp_path)
    if kind == "qwen3_5_moe_text":  # experts are published as one weight, and saved as one each
        weights = {name: weight.clone() for name, weight in model.state_dict().items()}
        save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    model = type(model).from_pretrained(tmp_path, dtype=dtype).eval()
    check_read(tmp_path, model)
    if not kind.startswith("qwen3_5"):
        return
    weights = load_file(tmp_path / "model.safetensors")  # as it is published: with pictures and heads of further tokens
    named = {name.replace("model.", "model.language_model.", 1): weight for name, weight in weights.items()}
    save_file({**named, "model.visual.a": torch.ones(1), "mtp.fc.weight": torch.ones(1)}, tmp_path / "model.safetensors")
    text = json.loads((tmp_path / "config.json").read_text())
    whole = {"model_type": kind.removesuffix("_text"), "architectures": ["of text and pictures"]}
    config = {**whole, "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps({**config, "vision_config": {"depth": 1}}))
    check_read(tmp_path, model)


def test_a_kind_of_state_without_code_is_refused_by_both_engines():
    kinds = {"layers_block_type": ["linear_attention", "full_attention"], "mamba_num_heads": 4, "mamba_head_dim": 16}
    falcon = {"mamba_n_heads": 4, "mamba_d_state": 12, "mamba_n_groups": 2, "mamba_d_ssm": 64, "mamba_d_head": 16}
    mamba = {"num_heads": 4, "head_dim": 16, "n_groups": 2, "state_size": 12}
    for kind, settings, words in (
        ("mamba2", mamba, "which only the native engine scores, of some models"),
        ("falcon_h1", falcon, "each of its layers attends and keeps a running state"),
        ("nemotron_h", {**kinds, "n_groups": 2, "ssm_state_size": 12}, "are networks of squared ReLU"),
    ):
        for runner in (TorchRunner, NativeRunner):
            with pytest.raises(ModelError, match=words):
                runner(tiny(kind, dtype=torch.float32, **settings))
