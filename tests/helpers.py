"""Tiny models and decoders for tests."""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from collections.abc import Sequence
from contextlib import contextmanager
from itertools import zip_longest
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.draft.adaptive.budget import Budget
from draftwood.draft.adaptive.cost import KNOTS, Costs
from draftwood.draft.adaptive.draft_round import TreeShape
from draftwood.draft.adaptive.drafter import BestFirstDrafter
from draftwood.draft.adaptive.growers import LevelGrower
from draftwood.engine import prompts
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import build
from draftwood.engine.pipeline import Entry, ends_of
from draftwood.engine.requests import Request
from draftwood.runners.backends import BACKENDS
from draftwood.runners.factory import make_runners
from draftwood.runners.hidden.dflash import DFlashConfig, DFlashDrafter
from draftwood.runners.hidden.eagle import Eagle3Config, Eagle3Drafter
from draftwood.runners.hidden.model import HiddenBlockConfig, HiddenBlockDrafter
from draftwood.runners.hidden.mtp import MtpConfig, MtpDrafter
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling.rows import Row
from draftwood.sampling.sampler import Sampler
from draftwood.sampling.settings import Sampling
from tests.runners.zoo import tiny


def tiny_gpt(vocab, seed, *, layers=2, hidden=16, context=64, dtype=torch.float64, spread=0.5):
    """A random transformer whose distributions differ from node to node; GPT-2, because it computes in float64
    throughout."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocab, n_embd=hidden, n_layer=layers, n_head=2, n_positions=context, initializer_range=spread,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return GPT2LMHeadModel(config).to(dtype).eval()


def tiny_model(backend, vocab, seed, layers=2):
    """A random model in float32 that the backend runs: Llama for the native engine, else GPT-2."""
    if backend == "native":
        return tiny("llama", seed, dtype=torch.float32, vocab_size=vocab, num_hidden_layers=layers)
    return tiny_gpt(vocab, seed, dtype=torch.float32, layers=layers)


def tiny_runner(vocab, seed, **settings):
    return TorchRunner(tiny_gpt(vocab, seed, **settings))


def tiny_hidden(model, *, block=3, proposes=None, seed=3):
    """A random drafter of the hidden states of a model; it proposes the first tokens only, or all."""
    torch.manual_seed(seed)
    config, vocab = model.config, model.get_output_embeddings().weight.shape[0]
    drafter = HiddenBlockDrafter(
        HiddenBlockConfig(
            target_layers=[1, config.num_hidden_layers], target_depth=config.num_hidden_layers, vocab_size=vocab,
            vocabulary="", hidden_size=config.hidden_size, block=block, draft_vocab_size=proposes or vocab, markov_rank=4,
            num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8, intermediate_size=24,
            rms_norm_eps=1e-5, rope_theta=100.0,
        )
    )  # fmt: skip
    for weight in drafter.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.5)
    drafter.draft_tokens.copy_(torch.arange(proposes or vocab))
    return drafter.to(model.dtype).eval()


def hidden_pair(model, backend="torch", **settings):
    """Runners of a model and of a random drafter of its hidden states."""
    return make_runners(model, tiny_hidden(model, **settings), backend=backend)[:2]


def mtp_shapes(config, inner, experts=None):
    """Of the weights of an MTP head as they are published, without ``mtp.``; each expert has its own.

    Args:
        config: has the sizes of the attention.
        inner: width of the feed-forward network, or of the expert that all tokens have.
        experts: how many a mixture has, and their width.
    """
    width, dim, layer = config.hidden_size, config.head_dim, "layers.0."
    queries, keys = config.num_attention_heads * dim, config.num_key_value_heads * dim
    norms = ["pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", f"{layer}input_layernorm"]
    parts = {
        "fc": (width, 2 * width), **dict.fromkeys([*norms, f"{layer}post_attention_layernorm"], (width,)),
        **{f"{layer}self_attn.{name}_norm": (dim,) for name in "qk"}, f"{layer}self_attn.q_proj": (2 * queries, width),
        **{f"{layer}self_attn.{name}_proj": (keys, width) for name in "kv"}, f"{layer}self_attn.o_proj": (width, queries),
    }  # fmt: skip
    networks = [(f"{layer}mlp." if experts is None else f"{layer}mlp.shared_expert.", inner)]
    if experts is not None:
        parts |= {f"{layer}mlp.gate": (experts[0], width), f"{layer}mlp.shared_expert_gate": (1, width)}
        networks += [(f"{layer}mlp.experts.{number}.", experts[1]) for number in range(experts[0])]
    for begin, size in networks:
        parts |= {**{f"{begin}{name}_proj": (size, width) for name in ("gate", "up")}, f"{begin}down_proj": (width, size)}
    return {f"{name}.weight": shape for name, shape in parts.items()}


def with_experts_together(head):
    """The weights of an MTP head, where those of all experts are one."""
    found = {name: weight for name, weight in head.items() if ".experts." not in name}
    for part in ("gate", "up", "down"):
        each = [weight for name, weight in head.items() if ".experts." in name and f"{part}_proj" in name]
        found |= {f"layers.0.mlp.experts.{part}_proj": torch.stack(each)} if each else {}
    return found


def tiny_head(config, dtype):
    """A random MTP head."""
    mixture = config.mixture and (config.mixture["experts"], config.mixture["expert_inner"])
    shapes = mtp_shapes(config, config.intermediate_size, mixture or None)
    if config.own_head:
        shapes["lm_head.weight"] = (config.draft_vocab_size, config.hidden_size)
    if config.own_embedding:
        shapes["embed_tokens.weight"] = (config.vocab_size, config.hidden_size)
    head = {name: torch.ones(shape) if "norm" in name else torch.randn(shape).mul_(0.5) for name, shape in shapes.items()}
    return MtpDrafter(config, {name: weight.to(dtype) for name, weight in with_experts_together(head).items()})


MIXTURE = {"experts": 6, "experts_per_token": 2, "expert_inner": 12, "normalise_experts": 0}
"""Of an MTP head."""


def tiny_published(model, kind, *, proposes=None, seed=3, **flags):
    """A random EAGLE-3, DFlash or DSpark drafter, or an MTP head, for a model; it proposes the first tokens only, or all."""
    torch.manual_seed(seed)
    config, vocab = model.config, model.get_output_embeddings().weight.shape[0]
    common = dict(
        target_layers=[0, 1], target_size=config.hidden_size, vocab_size=vocab, hidden_size=config.hidden_size,
        draft_vocab_size=proposes or vocab, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        intermediate_size=24, rms_norm_eps=1e-5, attention_bias=False, own_embedding=False,
        rope_frequencies=[100.0 ** (-i / 8) for i in range(0, 8, 2)], rope_scale=1.0,
    )  # fmt: skip
    if kind == "eagle3":
        off = ["norm_before_fc", "fc_norm", "norm_before_residual", "norm_output", "qk_norm", "mlp_bias"]
        norms = dict.fromkeys(off, False)
        drafter = Eagle3Drafter(Eagle3Config(**{**common, **norms, "own_head": True, **flags}))
    elif kind == "mtp":
        rotated = common["rope_frequencies"][:2]  # of half a head
        common |= {"target_layers": [config.num_hidden_layers], "rope_frequencies": rotated, "own_head": False}
        return tiny_head(MtpConfig(**{**common, **flags}), model.dtype)
    else:
        block = dict(slots=4, block=3) if kind == "dflash" else dict(slots=3, block=3)
        rank = 0 if kind == "dflash" else 4
        drafter = DFlashDrafter(DFlashConfig(**common, own_head=False, **block, mask_token=1, markov_rank=rank))
    for name, weight in drafter.named_parameters():
        torch.nn.init.ones_(weight) if "norm" in name else torch.nn.init.normal_(weight, std=0.5)
    return drafter.to(model.dtype).eval()


@contextmanager
def chunks(size):
    """Prompts are read in chunks of this size alongside rows that write, by batches that are made inside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompts, "CHUNK", size)
        yield


def hidden_runner(drafter, target, engine="torch"):
    """The runner of a drafter of hidden states, which shares no network with the target's runner."""
    return BACKENDS[engine].maker(drafter.kind)(drafter, target, SimpleNamespace(network=None))


def published_pair(model, kind, backend="torch", **settings):
    """Runners of a model and of a random published drafter."""
    return make_runners(model, tiny_published(model, kind, **settings), backend=backend)[:2]


class Numbers:
    """A tokenizer of texts that are numbers."""

    bos_token = bos_token_id = eos_token_id = None
    all_special_ids: Sequence[int] = ()
    added_tokens_decoder: ClassVar = {}

    def __call__(self, text):
        return {"input_ids": [int(word) for word in text.split()]}

    def decode(self, ids, **_):
        return "".join(f"<{i}>" for i in ids)


class Words(Numbers):
    """The same for any text: each letter is a token, of 23."""

    def __call__(self, text):
        return {"input_ids": [ord(letter) % 23 for letter in text]}

    def decode(self, ids, **_):
        return "".join(chr(97 + i) for i in ids)


def decoder(target, draft, method, shape=None, verifier="auto", *, greedy=False, nodes=None, eos=(), tokenizer=None):
    drafter, chosen = build(Method(method=method, shape=shape, verifier=verifier, nodes=nodes), draft, greedy=greedy)
    return Decoder(target, drafter, chosen, eos=eos, tokenizer=tokenizer)


def best_first(draft, expander, nodes, width, depth, **more):
    """A best-first tree that is grown level by level."""
    return BestFirstDrafter(LevelGrower(draft, expander, TreeShape(nodes, width, depth)), **more)


def always(budget):
    """This budget for any number of rows."""
    return lambda rows: budget


def linear_costs(base, *, tree=0.0, node, level, frontier_node=0.0):
    """Costs that grow evenly, in seconds: of a round without a tree, of any tree, of each node, and of levels."""
    return Costs(
        base=base,
        trees=tuple((base + tree + node * nodes) / base for nodes in KNOTS),
        back=1.0,
        opening=level / base,
        levels=tuple((level + frontier_node * (nodes - 1)) / base for nodes in KNOTS),
    )


class Generous(Budget):
    """A budget that allows everything, for tests to change."""

    learns = True


def rows_of(texts, sources=(), roots=()):
    """Rows of texts without their roots, which are 0 unless they are given."""
    parts = zip_longest(texts, sources, roots)
    return [Row(tokens=[*text, root or 0], source=source or ()) for text, source, root in parts]


def begin(runner, texts, sources=(), roots=()):
    """The rows of a new batch of texts for a runner."""
    rows = rows_of(texts, sources, roots)
    runner.clear()
    runner.set_rows(rows)
    return rows


def at_roots(runner, roots):
    """The scores after the roots of all rows, which are read without any node below them."""
    tokens = torch.tensor(roots)[:, None]
    return runner.extend(tokens, torch.zeros_like(tokens), torch.ones(len(roots), 1, 1, dtype=torch.bool))


def rest_of(batch):
    """The tokens that the rows of a batch write until all have ended, by row."""
    found = defaultdict(list)
    while len(batch):
        for piece in batch.step():
            found[piece.row] += piece.tokens
    return found


def interrupted(function=None, after=0):
    """The function, which is interrupted after so many calls."""
    calls = iter(range(after))

    def until(*arguments):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return function(*arguments)

    return until


def hide_package(monkeypatch, package):
    """Nothing finds this package."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == package else find_spec(name, *rest))


RAGGED = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11], [12, 13]]


def ragged(length=24, seed=11):
    """Requests with prompts and lengths that differ, ``length`` tokens at most, and seeds from this one on."""
    limits = [Limits(max_new_tokens=length - 3 * i) for i in range(len(RAGGED))]
    return [Request(prompt=RAGGED[i], seed=seed + i, limits=limits[i]) for i in range(len(RAGGED))]


def output_of(prompt, limits, *, eos=(), longest=None, tokenizer=None, **more):
    """The output of a row with this prompt; ``more`` are fields of its request."""
    row = Row(tokens=list(prompt), sampling=Sampling(), stops=ends_of(limits, frozenset(eos)))
    return Entry(row, Request(prompt=prompt, limits=limits, **more), longest=longest, tokenizer=tokenizer)


def sampler_of(sampling, texts, vocab, *, prompts=None, sources=None, stops=frozenset()):
    """A sampler of texts with the same settings, or one for each; ``prompts`` are the prompts' lengths, 1 by default."""
    samplings = [sampling] * len(texts) if isinstance(sampling, Sampling) else sampling
    rows = []
    for i, (text, own) in enumerate(zip(texts, samplings, strict=True)):
        length = 1 if prompts is None else prompts[i]
        source = sources[i] if sources else ()
        rows.append(Row(tokens=list(text[:length]), sampling=own, stops=stops, number=i, source=source))
        rows[-1].tokens += text[length:]
    return Sampler(rows, vocab)


def ancestors_of(parents, depth):
    """The ancestor matrix of trees no deeper than ``depth``, by repeated squaring."""
    size = parents.shape[1]
    reach = torch.eye(size, device=parents.device).expand(parents.shape[0], -1, -1).contiguous()
    reach.scatter_(2, parents.unsqueeze(-1), 1.0)
    for _ in range(max(0, depth - 1).bit_length()):
        reach = (reach @ reach).clamp_(max=1.0)
    return reach > 0
