"""The exactness report: texts from the engine, judged by the target alone (:mod:`draftwood.judging`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from draftwood.api import Pair
from draftwood.decode import Decoder, Request
from draftwood.errors import ConfigError
from draftwood.judging import BINS, Report, judged, judged_greedy, places_of, target_law
from draftwood.output import Limits
from draftwood.sampling import Sampling


def check(
    pair: Pair, decoder: Decoder, sampling: Sampling, prompts: Sequence[str], *, samples: int, new_tokens: int, seed: int
) -> Report:
    """Generate ``samples`` texts over the prompts in batches and judge every new token.

    Raises:
        ConfigError: fewer samples or tokens than can say anything.
    """
    if samples * new_tokens < 20 * BINS and not sampling.greedy:
        raise ConfigError(
            f"{samples} samples of {new_tokens} tokens say nothing: give {20 * BINS} tokens or more altogether"
        )
    # At temperature 0 the law is a point mass; how far a token lies below the best one is seen at temperature 1.
    flat = replace(sampling, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    judge = flat if sampling.greedy else sampling
    generator = torch.Generator().manual_seed(seed)
    places: list[Tensor] = []
    gaps: list[Tensor] = []
    for first in range(0, samples, 16):
        chosen = [pair.encode(prompts[i % len(prompts)]) for i in range(first, min(samples, first + 16))]
        limits = Limits(max_new_tokens=new_tokens, ignore_eos=True)
        requests = [Request(prompt=p, seed=seed + first + i, limits=limits) for i, p in enumerate(chosen)]
        for prompt, result in zip(chosen, decoder.generate(requests, sampling), strict=True):
            ids = result.token_ids
            if sampling.greedy:
                law = target_law(pair.target, prompt, ids, judge)
                gaps.append(law.amax(-1) - law.gather(1, torch.tensor(ids).unsqueeze(1)).squeeze(1))
            else:
                places.append(places_of(pair.target, pair.draft, prompt, ids, judge, generator))
    return judged_greedy(torch.cat(gaps), pair.target.model.dtype) if sampling.greedy else judged(torch.cat(places))
