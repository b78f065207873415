"""The exact distribution of the first tokens of a text, from the engine and from the target alone.

Every random choice of the engine is tried with each of its outcomes (:mod:`draftwood.exactness.tape`). The result is the
joint distribution of the first tokens, without any sampling error. It is compared with the target's own distribution: one
plain forward per prefix, without trees or caches. Under the coupled verifier the text is a function of the noise. There a
few noises of each text position are equally likely, and the target alone picks its tokens with the same noises.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.api import Pair
from draftwood.core.draws import Draw
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.core.rounds import Stats
from draftwood.engine.decode import Decoder
from draftwood.engine.requests import Request
from draftwood.exactness import goodness
from draftwood.exactness.goodness import Outcome
from draftwood.exactness.tape import JointDistribution, Tape, TapeSource, Texts, enumerate_distribution, total_variation
from draftwood.sampling.settings import Sampling

MOST_TOKENS: Final = 16  # most tokens that may be possible at a draw
NOISES: Final = 16  # noises of a text position, under the coupled verifier
_ROWS, _NUMBERS = 512, 1 << 21  # most branches in one batch, and most scores of the batch after one token


@final
@dataclass(frozen=True, kw_only=True)
class Enumerated(Outcome):
    """The result of an enumeration.

    Attributes:
        tokens: new tokens of each text.
        prompts: number of prompts.
        noises: number of noises of each text position under the coupled verifier; None where tokens are drawn.
        texts: number of texts with a positive probability, over all prompts.
        branches: number of sequences of random choices that led to them.
        total_variation: the largest distance, over prompts, of the joint distribution from the target's own.
        allowed: the distance that rounding may cause in the target's number format.
    """

    tokens: int
    prompts: int
    noises: int | None
    texts: int
    branches: int
    total_variation: float
    allowed: float

    def summary(self) -> str:
        """The verdict and its reasons, as one line."""
        prompts = f"{self.prompts} prompts" if self.prompts > 1 else "a prompt"
        own = "own distribution" if self.noises is None else f"own picks with the same {self.noises} noises of each position"
        return (
            f"{self.verdict}. The joint distribution of the first {self.tokens} tokens after "
            f"{prompts}, {self.branches:,} branches of random choices, {self.texts:,} texts: total variation "
            f"from the target's {own} {self.total_variation:.2g} at most ({self.allowed:.2g} is allowed for rounding); "
            f"{self.drafts}"
        )


def enumerated(
    pair: Pair, decoder: Decoder, sampling: Sampling, prompts: Sequence[str], *, tokens: int, seed: int,
    on_progress: Callable[[str, float], object] = lambda stage, share: None,
) -> Enumerated:  # fmt: skip
    """Compare the joint distributions of the first ``tokens`` tokens after each prompt.

    ``on_progress`` is called with the current stage and the share that is done.

    Raises:
        ConfigError: temperature 0, a number format that is too coarse, or too many possible tokens or branches.
    """
    allowed = _allowed(pair, decoder, sampling)
    matches = decoder.pipeline.verifier.reads == "argmax"
    noise = _noises(pair.target.vocab_size, seed).to(pair.target.device) if matches else None
    results, stats = [], list[Stats]()
    for at, text in enumerate(prompts):
        on_progress("prompts", at / len(prompts))
        prompt = pair.encode(text)
        engine, branches = _engine_distribution(decoder, prompt, tokens, sampling, noise, allowed, stats)
        target = target_distribution(pair, prompt, tokens, sampling, noise)
        results.append((len(engine), branches, total_variation(engine, target)))
    texts, all_branches, distances = zip(*results, strict=True)
    largest = float(torch.tensor(distances, dtype=torch.float64).max())  # NaN if one of them is
    return Enumerated(
        tokens=tokens,
        prompts=len(results),
        noises=None if noise is None else len(noise),
        texts=sum(texts),
        branches=sum(all_branches),
        total_variation=largest,
        allowed=allowed,
        exact=largest <= allowed,
    ).after(decoder, stats)


def _allowed(pair: Pair, decoder: Decoder, sampling: Sampling) -> float:
    """The distance that rounding may cause.

    Raises:
        ConfigError: the combination cannot be enumerated.
    """
    if sampling.greedy:
        raise ConfigError("temperature 0 leaves nothing to enumerate, since there is one text only: leave --enumerate out")
    dtype = pair.model.dtype
    if torch.finfo(dtype).eps > torch.finfo(torch.float32).eps:
        raise ConfigError(
            f"distributions in {str(dtype).removeprefix('torch.')} are too coarse to be compared by --enumerate: give "
            "--dtype float32 or float64, or leave it out, so that check samples"
        )
    pipeline = decoder.pipeline
    certain = pipeline.verifier.reads == "argmax" and pipeline.drafter.draw in (Draw.SHARED_NOISE, Draw.POINT_MASS)
    possible = min(sampling.top_k or pair.target.vocab_size, pair.target.vocab_size)
    if possible > MOST_TOKENS and not certain:
        raise ConfigError(
            f"{possible} tokens are possible at every position (of a vocabulary of {pair.target.vocab_size}), and "
            f"--enumerate tries each of them wherever one is drawn: give --top-k {MOST_TOKENS} or less, or leave "
            "--enumerate out, so that check samples"
        )
    return max(1e-9, 1024 * torch.finfo(dtype).eps)


def _noises(vocab: int, seed: int) -> Float[Tensor, "outcome vocab"]:
    """Equally likely Gumbel noises of a text position."""
    uniform = torch.rand(NOISES, vocab, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return -(-uniform.clamp(min=1e-12).log()).log()


def _engine_distribution(
    decoder: Decoder,
    prompt: list[int],
    tokens: int,
    sampling: Sampling,
    noise: Float[Tensor, "outcome vocab"] | None,
    rounding: float,
    stats: list[Stats],
) -> tuple[JointDistribution, int]:
    """The engine's distribution and its branches; the statistics of all texts are added to ``stats``."""
    request = Request(prompt=prompt, limits=Limits(max_new_tokens=tokens, ignore_eos=True))

    def run(tapes: list[Tape]) -> list[Texts]:
        for tape in tapes:
            tape.end = len(prompt) + tokens
        results = decoder.generate([request] * len(tapes), sampling, noise=TapeSource(tapes, noise))
        stats.extend(result.stats for result in results)
        return [tuple(result.token_ids) for result in results]

    rows = max(1, min(_ROWS, _NUMBERS // decoder.pipeline.target.vocab_size))
    return enumerate_distribution(run, rows, rounding=rounding)


def target_distribution(
    pair: Pair, prompt: list[int], tokens: int, sampling: Sampling, noise: Float[Tensor, "outcome vocab"] | None
) -> JointDistribution:
    """The joint distribution of the first tokens by the target alone.

    The tokens are its draws, or its picks with equally likely noises.
    """
    out = defaultdict[Texts, float](float)
    waiting: list[tuple[Texts, float]] = [((), 1.0)]
    while waiting:
        text, weight = waiting.pop()
        if len(text) == tokens:
            out[text] += weight
        else:
            after = goodness.target_distribution(pair, prompt, [*text, 0], sampling, first=len(text))
            logp = after[0].double()
            waiting += [((*text, token), weight * p) for token, p in _next(logp, noise)]
    return dict(out)


def _next(logp: Float[Tensor, "vocab"], noise: Float[Tensor, "outcome vocab"] | None) -> Iterator[tuple[int, float]]:
    """The possible next tokens, each with its probability."""
    if noise is None:
        probs = logp.exp()
        yield from ((token, float(probs[token])) for token in probs.nonzero().flatten().tolist())
        return
    picks = (noise.cpu() + logp).argmax(dim=-1).tolist()
    yield from ((token, picks.count(token) / len(picks)) for token in set(picks))
