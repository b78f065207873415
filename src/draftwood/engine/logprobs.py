"""Log-probabilities of the tokens of a round, and of a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.errors import CacheError, ConfigError
from draftwood.core.log_probs import RoundChecks
from draftwood.core.rounds import Round
from draftwood.core.token_logprobs import LogprobSettings, TokenLogprob
from draftwood.hardware.threads import chosen_threads
from draftwood.runners.protocols import Runner
from draftwood.sampling.rows import Row
from draftwood.trace.arrays import best_of

_CHUNK: Final = 256  # most tokens of a prompt that are scored at a time
_SCORES: Final = 1 << 24  # most scores of these tokens (64 MiB in float32), for large vocabularies


def of_round(
    made: Round, row: int, tokens: Sequence[int], wanted: LogprobSettings | None, *, greedy: bool
) -> list[TokenLogprob] | None:
    """The log-probabilities of a row's new tokens, at the nodes of the kept path.

    A last token that replaces the sampled one (``forced_eos_token_id``) is certain in the sampled distribution.

    Args:
        tokens: those of the round's tokens that the text kept.
        wanted: what the row's request wants; None for nothing.
        greedy: the row has temperature 0, where the sampled distribution is a point mass.
    """
    if wanted is None:
        return None
    nodes = [0, *made.paths[row]][: len(tokens)]
    if wanted.of == "model":
        return scored(made.scores.logits[row, nodes], tokens, wanted.top)
    certain = [TokenLogprob(token=token, logprob=0.0, top=((token, 0.0),)[: wanted.top]) for token in tokens]
    if greedy:
        return certain
    scores, columns = made.target.possible(row, nodes)
    found = scored(scores, tokens, wanted.top, columns)
    drawn = made.tokens[row][: len(tokens)]
    return [own if own.token == token else one for own, one, token in zip(found, certain, drawn, strict=True)]


def scored(
    scores: Float[Tensor, "node n"], tokens: Sequence[int], top: int, columns: Int[Tensor, "node n"] | None = None
) -> list[TokenLogprob]:
    """The log-probability of one token at each node, and the likeliest tokens there.

    Args:
        scores: log-probabilities up to a constant of each node.
        tokens: one for each node.
        top: the most likely tokens that are listed.
        columns: the token ids of the scores; None for the whole vocabulary in order. Other tokens are impossible.
    """
    logp = (scores if scores.dtype == torch.float64 else scores.float()).log_softmax(dim=-1)
    if columns is not None:
        columns, order = columns.sort(dim=-1)
        logp = logp.gather(-1, order)
    chosen = torch.tensor(tokens, device=logp.device).unsqueeze(1)
    if columns is None:
        own = logp.gather(1, chosen).squeeze(1)
    else:
        own = logp.masked_fill(columns != chosen, -torch.inf).amax(dim=1)
    lists: list[list[tuple[int, float]]] = [[] for _ in tokens]
    if top:
        values, indices = best_of(logp, top)
        ids = indices if columns is None else columns.gather(1, indices)
        lists = [list(zip(*line, strict=True)) for line in zip(ids.tolist(), values.tolist(), strict=True)]
    return [
        TokenLogprob(token=token, logprob=value, top=tuple(one for one in line if one[1] > -torch.inf))
        for token, value, line in zip(tokens, own.tolist(), lists, strict=True)
    ]


def of_prompt(runner: Runner, prompt: Sequence[int], top: int) -> Iterator[list[TokenLogprob]]:
    """The model's log-probabilities of a prompt's tokens after the first, at most 256 tokens at a time.

    Args:
        runner: a causal model; its rows are replaced.
        prompt: token ids, at least one.
        top: as for :func:`scored`.

    Raises:
        ConfigError: unknown tokens.
        CacheError: a prompt longer than the model's context.
        NumericsError: scores that are NaN.
    """
    if bad := [token for token in prompt if not 0 <= token < runner.vocab_size]:
        raise ConfigError(f"the prompt holds token {bad[0]}, but the target knows 0 to {runner.vocab_size - 1}")
    if runner.max_length is not None and len(prompt) > runner.max_length:
        raise CacheError(f"the prompt has {len(prompt)} tokens, but the model's context is {runner.max_length}: shorten it")
    row = Row(tokens=list(prompt[:1]))
    runner.clear()
    runner.set_rows([row])
    most = max(1, min(_CHUNK, _SCORES // runner.vocab_size))
    for start in range(0, len(prompt) - 1, most):
        following = list(prompt[start + 1 : start + 1 + most])
        size = len(following)
        nodes, chain = np.array([prompt[start : start + size]]), np.tri(size, dtype=np.bool_)[None]
        with torch.inference_mode(), chosen_threads(runner):
            scores = runner.extend(nodes, np.arange(size)[None], chain).logits
            for error in RoundChecks().check(scores).values():
                raise error
            found = scored(scores[0], following, top)
            row.tokens += following
            runner.commit([list(range(size))])
        yield found
    runner.clear()
