"""Text sampled from the target, which a drafter meets in decoding (on-policy data, arXiv 2310.08461)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.cache_utils import DynamicCache

from draftwood.core.errors import ConfigError
from draftwood.core.files import replacing
from draftwood.runners.cache import cache_argument

_GROUP = 256  # tokens


@torch.no_grad()
def sample(target: Any, prompts: Tensor, length: int, generator: torch.Generator) -> Tensor:
    """Continue prompts int64 [row, token] at temperature 1 to int64 [row, length].

    An end-of-text token does not end a row: the next document follows it, as in packed training text.
    """
    rows, cache, fresh = prompts, DynamicCache(config=target.config), prompts
    while rows.shape[1] < length:
        result = target(input_ids=fresh, use_cache=True, logits_to_keep=1, **cache_argument(target, cache))
        fresh = torch.multinomial(result.logits[:, -1].float().softmax(-1), 1, generator=generator)
        rows = torch.cat([rows, fresh], dim=1)
    return rows


def drawn(probabilities: Float[Tensor, "row vocab"], generator: torch.Generator) -> Int[Tensor, "row"]:
    """One token per row, by two draws: a group of 256 tokens by its sum, then a token of the group.

    Exact to the precision of the sums. Cumulative sums of the whole vocabulary would take most of a draw's time.
    """
    padding = -probabilities.shape[1] % _GROUP
    groups = torch.nn.functional.pad(probabilities, (0, padding)).view(len(probabilities), -1, _GROUP)
    u = torch.rand(2, len(groups), 1, generator=generator, dtype=torch.float64, device=groups.device)
    group = _inverse(groups @ groups.new_ones(_GROUP), u[0])
    return group * _GROUP + _inverse(groups[torch.arange(len(groups)), group], u[1])


def _inverse(weights: Float[Tensor, "row n"], u: Float[Tensor, "row 1"]) -> Int[Tensor, "row"]:
    """The inverse of the cumulative weights at shares ``u`` in [0, 1) of their sum."""
    cumulative = weights.double().cumsum(-1)
    found = torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True).squeeze(1)
    return found.clamp(max=weights.shape[1] - 1)


def sampled_blocks(
    target: Any, starts: Sequence[Sequence[int]], bos: int, count: int, length: int, rows: int, seed: int, cache: Path
) -> Tensor:
    """``count`` blocks int64 [block, length]; each starts with ``bos`` and the first tokens of a document in ``starts``.

    Every batch of ``rows`` blocks is a file in the folder ``cache``. It depends on its number and the seed only, so a
    stopped run continues with the next file.

    Raises:
        ConfigError: ``cache`` holds blocks of another length.
    """
    cache.mkdir(parents=True, exist_ok=True)
    parts = []
    for number in range(-(-count // rows)):
        path = cache / f"{number:05d}.npy"
        if not path.is_file():
            prompts = _prompts(starts, bos, rows, random.Random(f"{seed}/{number}")).to(target.device)
            generator = torch.Generator(target.device).manual_seed(seed * 1_000_003 + number)
            with replacing(path) as part, part.open("wb") as file:
                np.save(file, sample(target, prompts, length, generator).cpu().numpy().astype(np.int32))
            print(f"the target has written {(number + 1) * rows} of {count} blocks", flush=True)
        parts.append(torch.from_numpy(np.load(path).astype(np.int64)))
    blocks = torch.cat(parts)[:count]
    if blocks.shape[1] != length:
        raise ConfigError(f"{cache} holds blocks of {blocks.shape[1]} tokens, not {length}; use another folder")
    return blocks


def _prompts(starts: Sequence[Sequence[int]], bos: int, rows: int, rng: random.Random) -> Tensor:
    """Prompts int64 [row, 1 + n], with one random n for all rows, so that no row is padded."""
    longest = max(map(len, starts))
    n = rng.randint(0, longest)
    chosen = rng.choices([s for s in starts if len(s) >= n], k=rows)
    return torch.tensor([[bos, *s[:n]] for s in chosen])
