"""MTP heads: their public definition in plain PyTorch, the one of a checkpoint, and what its drafts are worth."""

import json
import logging
from itertools import pairwise
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import silu
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeSparseMoeBlock
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextSparseMoeBlock

import draftwood
from draftwood.cli.settings import Models, check_fit
from draftwood.core.errors import CacheError, ModelError, PairingError
from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.engine.requests import Request
from draftwood.loading import causal
from draftwood.loading.causal import stored_folder
from draftwood.loading.drafts import load_head
from draftwood.native.library import library
from draftwood.runners.factory import make_runners
from draftwood.runners.hidden.mtp import MtpDrafter
from draftwood.runners.native.network import succeed
from draftwood.runners.native.runner import NativeRunner
from draftwood.sampling.rows import Row
from draftwood.sampling.settings import Sampling
from tests.differences import difference
from tests.helpers import MIXTURE, decoder, hidden_runner, mtp_shapes, published_pair, with_experts_together
from tests.ladder import test_rung3_tape
from tests.native.test_states import random_model
from tests.runners.test_eagle import scored
from tests.runners.test_hidden_states import plain_hidden
from tests.runners.zoo import NATIVE, tiny
from tests.tiny_chat import chat_tokenizer, save_chat

KIND, LAYER, EXPERTS = "qwen3_5_text", "layers.0.", "layers.0.mlp.experts."
MIXTURES = {"qwen3_5_moe_text": Qwen3_5MoeSparseMoeBlock, "qwen3_next": Qwen3NextSparseMoeBlock}
OPTIONS = {"profile": "none", "backend": "native"}
TEXT = [3, 1, 7, 2, 9, 4, 4, 8, 0, 5] * 5


def shapes(config):
    """Of the weights of a head as they are published, without ``mtp.``; each expert has its own."""
    if config.model_type in MIXTURES:
        return mtp_shapes(config, config.shared_expert_intermediate_size, (config.num_experts, config.moe_intermediate_size))
    return mtp_shapes(config, config.intermediate_size)


def random_head(config):
    generator = torch.Generator().manual_seed(4)
    return {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes(config).items()}


def joined(head):
    """The same with gates and ups as one, as ``transformers`` and some files have them."""
    found = with_experts_together(head)
    gate_up = torch.cat([found.pop(f"{EXPERTS}{part}_proj") for part in ("gate", "up")], 1)
    return {**found, f"{EXPERTS}gate_up_proj": gate_up}


def checkpoint(folder, model, head, **config):
    """A folder with a model and its head."""
    model.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors") | {f"mtp.{name}": weight for name, weight in head.items()}
    save_file(weights, folder / "model.safetensors")
    found = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**found, **config}))
    return folder


def loaded(folder, dtype=torch.float32):
    """A target and its head."""
    target = stored_folder(folder)
    target.dtype = dtype
    return target, load_head(folder, target)


def outputs(head, config, embedded, hidden):
    """Of the head at each token: embeddings of tokens 1 to n, hidden states before them, positions from 0."""
    heads, kv_heads, dim, count = config.num_attention_heads, config.num_key_value_heads, config.head_dim, len(hidden)

    def norm(name, x):
        return x * (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).rsqrt() * (1 + head[f"{name}.weight"])

    def product(name, x):
        return x @ head[f"{name}.weight"].T

    def turned(x):
        size = int(dim * config.rope_parameters["partial_rotary_factor"])
        angles = torch.arange(count)[:, None] * config.rope_parameters["rope_theta"] ** -(torch.arange(0, size, 2) / size)
        first, second, rest = x.tensor_split([size // 2, size], -1)
        pairs = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)[:, None]
        return torch.cat([pairs.real, pairs.imag, rest], -1)

    x = product("fc", torch.cat([norm("pre_fc_norm_embedding", embedded), norm("pre_fc_norm_hidden", hidden)], -1))
    attention, read = f"{LAYER}self_attn.", norm(f"{LAYER}input_layernorm", x)
    queries, gates = product(f"{attention}q_proj", read).view(count, heads, 2 * dim).split(dim, -1)
    keys, values = (product(f"{attention}{name}_proj", read).view(count, kv_heads, dim) for name in "kv")
    queries, keys = turned(norm(f"{attention}q_norm", queries)), turned(norm(f"{attention}k_norm", keys))
    keys, values = (part.repeat_interleave(heads // kv_heads, 1) for part in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries, keys) / dim**0.5 + torch.full((count, count), -torch.inf).triu(1)
    found = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values) * gates.sigmoid()
    x = x + product(f"{attention}o_proj", found.flatten(1))
    read = norm(f"{LAYER}post_attention_layernorm", x)
    if make := MIXTURES.get(config.model_type):
        mixture, begin = make(config), f"{LAYER}mlp."
        mixture.load_state_dict({name.removeprefix(begin): one for name, one in joined(head).items() if begin in name})
        return norm("norm", x + mixture(read[None])[0])
    up = silu(product(f"{LAYER}mlp.gate_proj", read)) * product(f"{LAYER}mlp.up_proj", read)
    return norm("norm", x + product(f"{LAYER}mlp.down_proj", up))


def chain_scores(model, head, text, path, hidden):
    """After a text and each token of a path, where the head reads its own outputs."""
    found, table = [], model.get_input_embeddings().weight
    for end in range(len(text), len(text) + len(path) + 1):
        states = outputs(head, model.config, table[[*text, *path][1:end]], hidden)
        hidden = torch.cat([hidden, states[-1:]])
        found.append(model.get_output_embeddings()(states[-1]))
    return torch.stack(found)


@pytest.mark.parametrize(("kind", "width", "dtype"), [
    (KIND, 32, torch.float32), (KIND, 36, torch.float32), (KIND, 36, torch.bfloat16),
    *((kind, 48, torch.float32) for kind in MIXTURES),
])  # fmt: skip
def test_scores_are_those_of_the_public_definition_and_a_shift_is_seen(tmp_path, kind, width, dtype):
    model = random_model(kind, dtype, hidden_size=width).float()
    head = {name: weight.to(dtype).float() for name, weight in random_head(model.config).items()}
    written = joined(head) if kind == "qwen3_5_moe_text" else head
    target, drafter = loaded(checkpoint(tmp_path, model, written), dtype)
    read = [weight for weight in drafter.parameters() if weight.is_meta]  # experts stay in their files
    assert len(read) == ((2 if written is not head else 3) if kind in MIXTURES else 0)
    for length in (2, 3, 18, 50):
        text, path = TEXT[:length], [4, 7, 2]
        hidden = plain_hidden(model, text, (model.config.num_hidden_layers,))
        with torch.no_grad():
            wanted, shifted = (chain_scores(model, head, text, path, part) for part in (hidden[:-1], hidden[1:]))
        runner = hidden_runner(drafter, target, "native")
        runner.set_rows([Row(tokens=text)])
        runner.commit([[]], [hidden[:-1]])
        found = scored(runner, text[-1:], path)[0]
        assert difference(found, wanted) < (1e-4 if dtype == torch.float32 else 0.15)
        assert difference(found, shifted) > 1


def test_the_targets_output_weights_are_shared_and_give_the_same_bits(tmp_path):
    model = random_model(KIND)
    target, drafter = loaded(checkpoint(tmp_path, model, random_head(model.config)))
    runners, found = make_runners(target, drafter, backend="native"), []
    for runner in (runners.draft, hidden_runner(drafter, target, "native")):
        runner.set_rows([Row(tokens=TEXT)])
        runner.commit([[]], [torch.ones(len(TEXT) - 1, model.config.hidden_size)])
        found.append(scored(runner, TEXT[-1:], [4, 7, 2]))
    assert torch.equal(*found)
    engine, other = runners.draft.network, NativeRunner(random_model(KIND, hidden_size=32)).network
    assert engine.lender is runners.target.network
    with pytest.raises(CacheError, match="a head of another width, vocabulary or number format"):
        succeed(library().share_head(other.handle, engine.handle))


def successor(token):
    return (7 * token + 3) % 30


def counting(folder):
    """A target that knows each token's successor, and a head that makes the successor's hidden state of a hidden state."""
    model = tiny(KIND, dtype=torch.float32, **NATIVE[KIND], vocab_size=30, tie_word_embeddings=False)
    head = {name: torch.zeros(shape) for name, shape in shapes(model.config).items()}
    weights = model.state_dict()
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "model.norm.weight")):
            weight.zero_()
    tokens = torch.arange(30)
    weights["model.embed_tokens.weight"].copy_(torch.eye(30, 32))
    weights["lm_head.weight"].zero_()[successor(tokens), tokens] = 9.0
    head["fc.weight"][successor(tokens), 32 + tokens] = 1.0
    return loaded(checkpoint(folder, model, head))


def acceptance(target, drafter, change=lambda draft: None):
    runners = make_runners(target, drafter, backend="native")
    change(runners.draft)
    engine = decoder(runners.target, runners.draft, "chain", "3", greedy=True)
    results = engine.generate([Request(prompt=[4, 9], limits=Limits(max_new_tokens=25))], Sampling(temperature=0.0))
    assert all(after == successor(before) for before, after in pairwise(results[0].token_ids))
    return sum(count * rounds for count, rounds in results[0].stats.accepted.items()) / results[0].stats.drafted


def late(draft):
    """Hidden states come one token late."""
    commit, last = draft.commit, [torch.zeros(1, draft.model.hidden_width)]

    def wrong(nodes, hidden=None):
        last.append(torch.cat([last[-1], hidden[0]]))
        commit(nodes, [last[-1][-1 - len(hidden[0]) : -1]])

    draft.commit = wrong


def test_a_head_that_knows_the_next_hidden_state_is_right_and_a_late_or_a_random_one_is_not(tmp_path):
    target, drafter = counting(tmp_path)
    assert acceptance(target, drafter) > 0.9
    assert acceptance(target, drafter, late) < 0.1
    assert acceptance(target, MtpDrafter(drafter.config, random_head(target.config))) < 0.5


@pytest.mark.parametrize(("method", "shape"), [("chain", "3"), ("rsd-s", "2x2"), ("dynamic", "2x2")])
@pytest.mark.parametrize("kind", [KIND, "qwen3_next"])
def test_the_joint_distribution_is_the_targets(kind, method, shape):
    model = tiny(kind, 1, dtype=torch.float32, **NATIVE[kind], vocab_size=3)
    nodes, mixture = 4 if method == "dynamic" else None, {"mixture": MIXTURE} if kind in MIXTURES else {}
    engine = decoder(*published_pair(model, "mtp", "native", **mixture), method, shape, "recursive", nodes=nodes)
    assert test_rung3_tape.distance(engine, 3, prompt=(0, 2, 1, 1, 0) * 6, rounding=1e-6) < 1e-5
    assert engine.stats[0].drafted > 0


@pytest.fixture(scope="module", params=[KIND, *MIXTURES])
def folder(request, tmp_path_factory):
    model = random_model(request.param, vocab_size=len(chat_tokenizer()))
    found = checkpoint(tmp_path_factory.mktemp("mtp"), model, random_head(model.config))
    chat_tokenizer().save_pretrained(found)
    return found


def test_load_finds_it_and_none_leaves_it_out(folder, tmp_path):
    pair, named, plain = (draftwood.load(folder, draft, options=OPTIONS) for draft in (None, "mtp", "none"))
    assert ["MtpDrafter" in repr(one) for one in (pair, named, plain)] == [True, True, False]
    for method in ("auto", "adaptive", "rsd-s", "dynamic", "shared-noise"):
        ways = (pair, method), (plain, "ar")
        texts = [one.generate("the fox", method=way, max_new_tokens=30, temperature=0.0).token_ids for one, way in ways]
        assert texts[0] == texts[1]
    other = draftwood.load(folder, save_chat(tmp_path), options=OPTIONS)
    assert "MtpDrafter" not in repr(other)
    assert other.draft is not None
    check_fit(Models(target=str(folder)), Method(method="rsd-s"), 0.0)
    with pytest.raises(PairingError, match="needs a draft model"):
        check_fit(Models(target=str(folder), draft="none"), Method(method="rsd-s"), 0.0)


@pytest.fixture
def loads(monkeypatch):
    """Which functions have loaded a target."""
    found = []

    def counted(name, load):
        return lambda *given: found.append(name) or load(*given)

    for name in ("stored_folder", "load_model"):
        monkeypatch.setattr(causal, name, counted(name, getattr(causal, name)))
    return found


def test_a_backend_that_runs_no_such_target_loads_it_once_and_says_so(folder, loads):
    with pytest.raises(ModelError, match="which only the native engine scores"):
        draftwood.load(folder, options={**OPTIONS, "backend": "torch"})
    assert loads == ["load_model"]


ONE: str = f"{EXPERTS}15."
BROKEN: list[tuple[dict[str, Tensor | None], dict[str, Any], str]] = [
    ({"fc.weight": None, "norm.weight": None}, {}, r"lack 2 tensors \(mtp.fc.weight, mtp.norm.weight\)"),
    ({"layers.1.mlp.up_proj.weight": torch.ones(2, 2)}, {}, "has 2 layers, and only heads with one layer can draft"),
    ({}, {"mtp_num_hidden_layers": 3}, "has 3 layers, and only heads with one layer can draft"),
    ({"norm.weight": torch.ones(5)}, {}, "mtp.norm.weight is 5 and should be 48"),
    ({"more.weight": torch.ones(5)}, {}, r"no place for \(mtp.more.weight\)"),
    ({f"{LAYER}mlp.gate.weight": None}, {}, r"lack 1 tensor \(mtp.layers.0.mlp.gate.weight\)"),
    ({f"{ONE}up_proj.weight": None}, {}, "mtp.layers.0.mlp.experts.up_proj is 15 x 24 x 48 and should be 16 x 24 x 48"),
    ({f"{ONE}up_proj.weight": torch.ones(2, 2)}, {}, r"experts.up_proj of two types or shapes, \[24, 48\] and \[2, 2\]"),
    ({f"{LAYER}mlp.shared_expert.down_proj.weight": None}, {}, r"\(mtp.layers.0.mlp.shared_expert.down_proj.weight\)"),
]


@pytest.mark.parametrize(("change", "config", "said"), BROKEN)
def test_a_broken_head_is_left_out_with_a_note_and_refused_by_its_name(tmp_path, caplog, loads, change, config, said):
    mixture = any(name.startswith((EXPERTS, f"{LAYER}mlp.gate.", f"{LAYER}mlp.shared")) for name in change)
    model = random_model("qwen3_next" if mixture else KIND, vocab_size=len(chat_tokenizer()))
    head = {name: weight for name, weight in {**random_head(model.config), **change}.items() if weight is not None}
    folder = checkpoint(tmp_path, model, head, **config)
    chat_tokenizer().save_pretrained(folder)
    with caplog.at_level(logging.WARNING):
        pair = draftwood.load(folder, options=OPTIONS)
    assert loads == ["stored_folder"]
    [note] = [record.getMessage() for record in caplog.records if "MTP" in record.getMessage()]
    with pytest.raises(ModelError, match=said) as error:
        draftwood.load(folder, "mtp", options=OPTIONS)
    assert str(error.value) in note
    assert len(pair.generate("the fox", max_new_tokens=4, temperature=0.0).token_ids) == 4


def test_a_target_without_a_head_says_so(tmp_path):
    random_model(KIND).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="has no MTP head to draft with"):
        draftwood.load(tmp_path, "mtp")
