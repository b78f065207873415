"""The exactness report: tests of the engine's texts and of its rounds.

Texts are tested against the target alone (:mod:`draftwood.exactness.goodness`), rounds against the distributions that they
recorded (:mod:`draftwood.exactness.rounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import ne
from typing import final

import torch
from torch import Tensor

from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.core.rounds import Stats
from draftwood.core.settings import Method
from draftwood.draft.adaptive.budget import EverySize
from draftwood.draft.adaptive.controllers import Controllers
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import build
from draftwood.engine.requests import Request
from draftwood.engine.session import Session
from draftwood.exactness.evidence import pit
from draftwood.exactness.goodness import BINS, Report, goodness_of_fit, pit_values, rounding, target_distribution
from draftwood.exactness.rounds import Rounds
from draftwood.exactness.score_faults import ScoreFaults
from draftwood.exactness.texts import Choice, Text, Texts
from draftwood.sampling.settings import Sampling

BATCH = 16  # texts; those of the first batch are made one by one, since drafters draft more for a single text


def decoder_of(pair: Session, method: Method, temperature: float) -> Decoder:
    """A decoder whose adaptive trees have every size in turn: a check drafts whether or not that pays on the machine."""
    chosen, greedy = pair.method(method, temperature=temperature), temperature == 0
    drafter, verifier = build(chosen, pair.draft, greedy=greedy, controllers=Controllers(budget=EverySize()))
    return Decoder(pair.target, drafter, verifier, tokenizer=pair.tokenizer, eos=pair.eos)


def check(
    pair: Pair, decoder: Decoder, sampling: Sampling, prompts: Sequence[str], *, samples: int, new_tokens: int, seed: int,
    on_progress: Callable[[str, float], object] = lambda stage, share: None,
) -> Report:  # fmt: skip
    """Generate ``samples`` texts over the prompts in batches, and test every new token and every round.

    ``on_progress`` is called with the current stage and the share that is done.

    Raises:
        ConfigError: too few samples or tokens for any conclusion.
    """
    if samples * new_tokens < 20 * BINS and not sampling.greedy:
        raise ConfigError(
            f"{samples} samples of {new_tokens} tokens say nothing: give {20 * BINS} tokens or more altogether"
        )
    tests = GreedyTests(pair, sampling) if sampling.greedy else SampledTests(pair, decoder, sampling, seed)
    plain = None
    if pair.target.same_bits and decoder.pipeline.verifier.reads == "argmax":  # a seed gives the text of plain decoding
        plain = pair.decoder(Method(method="ar"), temperature=sampling.temperature)
    other, stats = 0, list[Stats]()
    for first in range(0, samples, BATCH):
        chosen = [pair.encode(prompts[i % len(prompts)]) for i in range(first, min(samples, first + BATCH))]
        limits = Limits(max_new_tokens=new_tokens, ignore_eos=True)
        requests = [Request(prompt=p, seed=seed + first + i, limits=limits) for i, p in enumerate(chosen)]
        together = [[request] for request in requests] if first == 0 else [requests]
        texts = list[list[int]]()
        for part in together:
            texts += _texts(decoder, part, sampling, tests.rounds)
            stats += decoder.stats
            on_progress("texts", (first + len(texts) / 2) / samples)  # the other half is testing them
        tests.add(requests, texts)
        if plain is not None:
            other += sum(map(ne, texts, _texts(plain, requests, sampling, None)))
        on_progress("texts", (first + len(texts)) / samples)
    report = tests.report()
    if plain is not None:
        report = replace(report, other=other, exact=report.exact and not other)
    return report.after(decoder, stats)


def _texts(decoder: Decoder, requests: Sequence[Request], sampling: Sampling, rounds: Rounds | None) -> list[list[int]]:
    """The new tokens of a batch; its rounds are added to ``rounds``."""
    texts = [list[int]() for _ in requests]
    if rounds is not None:
        rounds.start()
    for pieces in decoder.stream(requests, sampling):
        for piece in pieces:
            texts[piece.row] += piece.tokens
        if rounds is not None and pieces:
            rounds.add(pieces[0].round, [piece.row for piece in pieces])
    return texts


@final
@dataclass(frozen=True)
class GreedyTests:
    """Tests at temperature 0: how far each token's log-probability lies below the best one.

    At temperature 0 the target's distribution is a point mass, so the log-probabilities are those at temperature 1. Every
    token must be the best one, up to rounding.
    """

    pair: Pair
    sampling: Sampling
    rounds: None = None
    gaps: list[Tensor] = field(default_factory=list)

    def add(self, requests: Sequence[Request], texts: Sequence[list[int]]) -> None:
        """Test a batch."""
        flat = replace(self.sampling, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        for request, ids in zip(requests, texts, strict=True):
            logp = target_distribution(self.pair, list(request.prompt), ids, flat)
            self.gaps.append(logp.amax(-1) - logp.gather(1, torch.tensor(ids).unsqueeze(1)).squeeze(1))

    def report(self) -> Report:
        """The report on all batches so far."""
        gaps, allowed = torch.cat(self.gaps), rounding(self.pair.model.dtype)
        worst, differing = float(gaps.max()), int((gaps > 0).sum())
        return Report(tokens=len(gaps), differing=differing, gap=worst, allowed=allowed, exact=worst < allowed)


@final
class SampledTests:
    """All tests above temperature 0."""

    def __init__(self, pair: Pair, decoder: Decoder, sampling: Sampling, seed: int) -> None:
        self._pair, self._sampling = pair, sampling
        self._generator = torch.Generator().manual_seed(seed)
        self._others = torch.Generator().manual_seed(seed + 1)  # so the marginal test does not depend on the other tests
        self._pit: list[Tensor] = []
        self._texts, self.rounds = Texts(), Rounds(decoder.pipeline.verifier.name, self._others)
        self._faults = ScoreFaults(pair.target.vocab_size)
        self._choice = Choice(rounding(pair.model.dtype)) if decoder.pipeline.verifier.reads == "argmax" else None

    def add(self, requests: Sequence[Request], texts: Sequence[list[int]]) -> list[Text]:
        """Test a batch; returns its texts with the target's distributions."""
        batch = []
        for request, ids in zip(requests, texts, strict=True):
            prompt, tokens = list(request.prompt), torch.tensor(ids)
            logp = target_distribution(self._pair, prompt, ids, self._sampling)
            self._pit.append(pit_values(logp, self._pair, prompt, ids, self._sampling, self._generator))
            self._faults.add(logp, tokens)
            probs, share = logp.exp(), torch.rand(len(ids), generator=self._others, dtype=torch.float64)
            text = Text(prompt=prompt, tokens=tokens, probs=probs, pit=pit(probs, tokens, share))
            if self._choice is not None:
                self._choice.add(text, request.seed)
            batch.append(text)
        self._texts.add(batch)
        return batch

    def report(self) -> Report:
        """The report on all batches so far."""
        choice = () if self._choice is None else self._choice.p_values()
        others = [*self._faults.p_values(), *self._texts.p_values(), *choice, *self.rounds.p_values()]
        return goodness_of_fit(torch.cat(self._pit), others, self._faults)
