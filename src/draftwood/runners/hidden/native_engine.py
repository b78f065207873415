"""Drafters of hidden states as engines: their layers, and what they make of the target's hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.draft_kind import EAGLE3
from draftwood.native.library import DrafterSource, Facts
from draftwood.runners.hidden.module import DrafterModule
from draftwood.runners.native.families import FAMILIES
from draftwood.runners.native.family import EMBEDDING
from draftwood.runners.native.network import Engine
from draftwood.runners.native.refusals import refuse, why_not_format
from draftwood.runners.native.sources import Held, factor, layer_source
from draftwood.runners.native.stored import source_of
from draftwood.runners.native.weights import rounded, sized


def drafter_engine(
    drafter: DrafterModule,
    target: Any,
    held: Held,
    source: DrafterSource,
    taps: Sequence[int] = (),
    lender: Engine | None = None,
) -> Engine:
    """The engine of a drafter with layers of its family.

    Args:
        drafter, target: a drafter and its target, whose weights it may share. A drafter is rounded to eight bits
            if its target multiplies codes by inputs of eight bits.
        held: keeps the memory of ``source`` alive.
        source: what it has in addition to its layers.
        taps: as for :class:`Engine`.
        lender: the target's engine, which shares its head.

    Raises:
        ConfigError: the native library is missing.
        ModelError: the engine does not compute in the drafter's number format, or memory does not suffice.
    """
    refuse(why_not_format(drafter))
    config, family, weights = drafter.config, FAMILIES[drafter.family], drafter.weights()
    whole = source_of(target)
    head: Any = whole.head if drafter.whole_head else drafter.head(target)
    integers = whole.integers and drafter.dtype == torch.bfloat16 and not family.experts  # whose choices flip
    if integers:
        weights = {name: _coded(weight) if name.startswith("layers.") else weight for name, weight in weights.items()}
        head = _coded(head)
    if source.rank:
        markov = sized("markov_out", weights["markov_out.weight"], len(drafter.draft_tokens), source.rank)
        source.markov_out = held.matrix(_coded(markov) if integers else markov)
    if drafter.whole_head and lender is not None and lender.facts.bfloat16 == (drafter.dtype == torch.bfloat16):
        head = lender
    embedding, scale = weights.get("embed_tokens.weight"), 0.0
    if embedding is None:
        embedding, scale = whole.weights[EMBEDDING], whole.embedding_scale()
    tokens = min(embedding.shape[0], config.vocab_size) if source.rank else embedding.shape[0]
    facts = _facts(drafter, activations=8 if integers else 16, tokens=tokens, embedding_scale=scale)

    def rotate(positions: int) -> tuple[Float[Tensor, "position half"], Float[Tensor, "position half"]]:
        cos, sin = drafter.rotation(torch.arange(positions).unsqueeze(0))
        return cos[0, 0], sin[0, 0]

    prefixes = [f"layers.{number}." for number in range(facts.layers)]
    layers = [layer_source(weights, prefix, held, facts, family) for prefix in prefixes]
    norm = factor(weights["norm.weight"], family, drafter.dtype)
    engine = Engine(facts, layers, taps, (embedding, head, norm), held, rotate, None)
    engine.drafts(source)
    return engine


def _coded(weight: Any) -> Any:
    """A matrix in codes of eight bits, as the target has its own: a pass reads half of the bytes. Other weights stay."""
    matrix = isinstance(weight, Tensor) and weight.ndim == 2 and weight.shape[1] % 32 == 0
    return rounded(weight, 8) if matrix else weight


def _facts(drafter: DrafterModule, **more: Any) -> Facts:
    config, family = drafter.config, FAMILIES[drafter.family]
    return Facts(
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        inner=config.intermediate_size,
        vocab=len(drafter.draft_tokens),
        rotary_dim=2 * len(config.rope_frequencies),
        bfloat16=drafter.dtype == torch.bfloat16,
        epsilon=config.rms_norm_eps,
        scale=config.head_dim**-0.5,
        gated=family.gated,
        **(config.mixture if family.experts else {}),
        **more,
    )


def feature_engine(drafter: DrafterModule, target: Any, lender: Engine | None) -> Engine:
    """The engine of a drafter with one pass per level, which returns the features that its own outputs are; arguments and
    errors as for :func:`drafter_engine`."""
    held = Held(drafter.dtype, coded=not FAMILIES[drafter.family].experts)
    if drafter.kind is EAGLE3:
        layers = drafter.config.num_hidden_layers + (not drafter.config.norm_output)
        return drafter_engine(drafter, target, held, _eagle_source(drafter, held), [layers], lender)
    return drafter_engine(drafter, target, held, _mtp_source(drafter, held), [1], lender)


def _eagle_source(drafter: Any, held: Held) -> DrafterSource:
    config = drafter.config
    if config.norm_before_fc and config.fc_norm:
        refuse("it has no code for two norms of the hidden states, norm_before_fc and fc_norm")
    norms: Any = [drafter.input_norm] if config.norm_before_fc else drafter.fc_norm if config.fc_norm else []
    weight = torch.cat([norm.weight for norm in norms]) if norms else None
    taps, size = len(config.target_layers), config.target_size
    return DrafterSource(
        sources=1 if config.norm_before_fc else taps,
        source_width=taps * size if config.norm_before_fc else size,
        norm_sources=weight is not None,
        source_epsilon=config.rms_norm_eps,
        source_norm=held.numbers(sized("fc_norm", weight, taps * size)),
        norm_residual=config.norm_before_residual,
        features=held.weights(sized("fc", drafter.fc.weight, config.hidden_size, taps * size)),
    )


def _mtp_source(drafter: Any, held: Held) -> DrafterSource:
    config, width, family = drafter.config, drafter.config.hidden_size, FAMILIES[drafter.family]
    weights = drafter.weights()
    norms = [factor(weights[f"pre_fc_norm_{part}.weight"], family, held.dtype) for part in ("embedding", "hidden")]
    return DrafterSource(
        sources=2,
        source_width=width,
        norm_sources=True,
        source_epsilon=config.rms_norm_eps,
        source_norm=held.numbers(sized("pre_fc_norm", torch.cat(norms), 2 * width)),
        embeds=True,
        features=held.weights(sized("fc", weights["fc.weight"], width, 2 * width)),
    )
