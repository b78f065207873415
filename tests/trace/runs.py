"""Recorded runs of tiny table models."""

from __future__ import annotations

from dataclasses import replace

import torch

from draftwood.core.limits import Limits
from draftwood.core.methods import METHODS
from draftwood.core.settings import Method
from draftwood.draft.adaptive.controllers import Controllers
from draftwood.draft.adaptive.learnt import NOTHING, Costs, Knowledge
from draftwood.engine import tracing
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import build, resolve
from draftwood.engine.requests import Request
from draftwood.sampling.settings import Sampling
from draftwood.trace.records import Trace
from draftwood.trace.settings import TraceSettings
from tests.tables import BlockTableRunner, TableRunner

VOCAB = 5
SHAPES = {"chain": "3", "iid": "2x2", "rsd-c": "2-1", "rsd-s": "2x2", "ngram": "3"}


def models(method: str, seed: int = 0) -> tuple[TableRunner, TableRunner | BlockTableRunner | None]:
    """A target of order 1, and a draft model that resembles it; None where the method has none."""
    torch.manual_seed(seed)
    table = 1.5 * torch.randn(VOCAB, VOCAB, dtype=torch.float64)
    target, near = TableRunner(table), table + 0.7 * torch.randn_like(table)
    if METHODS[method].needs == "nothing":
        return target, None
    if METHODS[method].needs == "block":
        return target, BlockTableRunner(near.unsqueeze(1) + 0.3 * torch.randn(VOCAB, 3, VOCAB, dtype=torch.float64))
    return target, TableRunner(near)


def timed() -> Knowledge:
    """The knowledge of an adaptive tree that was timed, and that drafts after its first plain rounds."""
    costs = Costs(base=1.0, tree=0.1, node=0.01, change=0.0, back=0.0, level=0.1, frontier_node=0.0)
    learnt = replace(NOTHING, costs=costs, timed=True)
    return replace(Controllers().knowledge, by_rows=dict.fromkeys((1, 2, 4, 8), learnt))


def run(
    method: str, verifier: str = "auto", *, rows: int = 1, length: int = 24, temperature: float = 1.0, tokens: int = VOCAB,
    rounds: int = 10_000, first: int = 0, top_p: float = 1.0, shape: str | None = None, beta: int | None = None,
    nodes: int | None = 4,
) -> list[Trace]:  # fmt: skip
    """Traces of a few texts."""
    target, draft = models(method)
    sampling = Sampling(temperature=temperature, top_p=top_p)
    nodes = nodes if method in ("dynamic", "shared-noise") else None
    wanted = Method(method=method, verifier=verifier, shape=shape or SHAPES.get(method), nodes=nodes, beta=beta)
    chosen = resolve(wanted, has_draft=draft is not None, greedy=sampling.greedy)
    drafter, made = build(chosen, draft, greedy=sampling.greedy, controllers=Controllers(known=timed()))
    decoder = Decoder(target, drafter, made)
    requests = [
        Request(prompt=[row % VOCAB, (2 * row) % VOCAB], seed=first + row, limits=Limits(max_new_tokens=length))
        for row in range(rows)
    ]
    kept = TraceSettings(tokens=tokens, rounds=rounds)
    results = tracing.generate(decoder, requests, sampling, method=chosen, draft=draft, trace=kept)
    found = [result.trace for result in results]
    assert all(trace is not None for trace in found)
    assert [trace.tokens for trace in found] == [result.token_ids for result in results]
    return found
