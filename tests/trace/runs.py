"""Recorded runs of tiny table models."""

from dataclasses import replace

import torch

from draftwood.core.limits import Limits
from draftwood.core.methods import METHODS
from draftwood.core.settings import Method
from draftwood.draft.adaptive.controllers import Controllers
from draftwood.draft.adaptive.learnt import NOTHING
from draftwood.engine.decode import Decoder, recorder_of
from draftwood.engine.methods import build, resolve
from draftwood.engine.requests import Request
from draftwood.sampling.settings import Sampling
from draftwood.trace.records import Part
from draftwood.trace.settings import TraceSettings
from tests.helpers import linear_costs
from tests.tables import BlockTableRunner, TableRunner

VOCAB = 5
WORDS = [" the", " a", " little", " girl", " named", " Lily", ".", " She", " loved", " to", " play", " outside", ",", " and",
         " he", " saw", " big", " tree", " was", " very", " happy", "\n", " day", " Once"]  # fmt: skip
SHAPES = {"chain": "3", "iid": "2x2", "rsd-c": "2-1", "rsd-s": "2x2", "ngram": "3"}


def models(method, seed=0, vocab=VOCAB, noise=0.7, block=3):
    """A target of order 1, and a draft model that differs from it by this noise; None where the method has none."""
    torch.manual_seed(seed)
    table = 1.5 * torch.randn(vocab, vocab, dtype=torch.float64)
    target, near = TableRunner(table), table + noise * torch.randn_like(table)
    if METHODS[method].needs == "nothing":
        return target, None
    if METHODS[method].needs != "block":
        return target, TableRunner(near)
    likeliest = [torch.arange(vocab)]  # at each depth, what follows the root
    for _ in range(block - 1):
        likeliest.append(near[likeliest[-1]].argmax(-1))
    return target, BlockTableRunner(torch.stack([near[tokens] for tokens in likeliest], dim=1))


def timed():
    """The knowledge of an adaptive tree that was timed, and that drafts after its first plain rounds."""
    costs = linear_costs(1.0, tree=0.1, node=0.01, level=0.1)
    learnt = replace(NOTHING, costs=costs, timed=True)
    return replace(Controllers().knowledge, by_rows=dict.fromkeys((1, 2, 4, 8), learnt))


def run(
    method, verifier="auto", *, rows=1, length=24, temperature=1.0, tokens=VOCAB,
    rounds=10_000, first=0, top_p=1.0, shape=None, beta=None,
    nodes=4, vocab=VOCAB, noise=0.7, block=3,
):  # fmt: skip
    """Traces of a few texts."""
    target, draft = models(method, 0, vocab, noise, block)
    sampling = Sampling(temperature=temperature, top_p=top_p)
    nodes = nodes if method in ("dynamic", "shared-noise") else None
    wanted = Method(method=method, verifier=verifier, shape=shape or SHAPES.get(method), nodes=nodes, beta=beta)
    chosen = resolve(wanted, None if draft is None else draft.kind, greedy=sampling.greedy)
    drafter, made = build(chosen, draft, greedy=sampling.greedy, controllers=Controllers(known=timed()))
    decoder = Decoder(target, drafter, made)
    requests = [
        Request(prompt=[row % vocab, (2 * row) % vocab], seed=first + row, limits=Limits(max_new_tokens=length))
        for row in range(rows)
    ]
    kept = TraceSettings(tokens=tokens, rounds=rounds)
    recorder = recorder_of(decoder, requests, sampling, method=chosen, draft=draft, kept=kept)
    results = decoder.generate(requests, sampling, watch=recorder.take)
    found = recorder.traces()
    assert [trace.tokens for trace in found] == [result.token_ids for result in results]
    return found


def story(rounds, method, verifier="auto", *, most=4, words=WORDS, source="", **settings):
    """The first rounds of a text in words, of ``most`` tokens each at the most, whose times are the same on any machine."""
    [trace] = run(method, verifier, length=most * rounds, rounds=rounds, tokens=5, vocab=len(words), **settings)
    made, end = [], 0.0
    for one in trace.rounds:
        seconds = {"draft": 0.004 * max(node.depth for node in one.nodes), "target": 0.02, "verify": 0.001, "other": 0.001}
        end += sum(seconds.values())
        parts = [Part(text=words[token], drafted=place < len(one.path)) for place, token in enumerate(one.tokens)]
        text = "".join(part.text for part in parts)
        made.append(replace(one, text=text, parts=parts, seconds=seconds, end=end))
    assert len(made) == rounds
    return replace(
        trace,
        source=[1, 2] if source else [],
        source_text=source,
        tokens=[token for one in made for token in one.tokens],
        prompt_text="".join(words[token] for token in trace.prompt),
        text="".join(one.text for one in made),
        texts=dict(enumerate(words)),
        rounds=made,
        dropped=0,
    )
