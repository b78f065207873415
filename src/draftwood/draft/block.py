"""A chain from one forward: the token at each depth of a block is chosen without knowledge of the tokens before it.

Above temperature 0 each token is drawn from the draft's distribution at its depth. Given the text, the tokens are
independent. So the distribution of a token given those above it is the recorded one, and the verifiers of drawn trees are
exact. At temperature 0 the likeliest token of each depth is taken.

Sources: blockwise parallel decoding, Stern et al. 2018, arXiv 1811.03115; SpecDec, Xia et al. 2023, arXiv 2203.16487.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.draws import Draw
from draftwood.core.log_probs import Distributions
from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Round
from draftwood.core.tree import DraftTree, TreeBuilder
from draftwood.draft.level import LevelDrafter
from draftwood.draft.none import FAILED, root_alone
from draftwood.draft.policies import ConstantBranching
from draftwood.runners.protocols import BlockRunner
from draftwood.sampling.sampler import Sampler


@final
class BlockChain:
    """Drafts a chain of up to ``length`` tokens from one forward.

    The chain is the one that :class:`LevelDrafter` grows from the same scores and noise. The forward always scores
    ``length`` tokens, so a row's draft does not depend on its neighbours' limits. Penalties and processors need the earlier
    tokens of the chain. With them the chain is grown level by level, from a forward of the runner's whole block.

    Args:
        runner: the draft model.
        length: the most tokens of a draft, up to ``runner.block``.
    """

    name = "block"
    draw = Draw.WITHOUT_REPLACEMENT

    def __init__(self, runner: BlockRunner, length: int) -> None:
        self.runner = runner
        self.length = length
        self._level = LevelDrafter(runner, ConstantBranching((1,) * length))
        self._by_level = False
        self._scored = False

    def draft(self, root: Sequence[int], sampler: Sampler, rng: RoundRng, limits: Sequence[int]) -> DraftTree:
        self._by_level = sampler.looks_back
        if self._by_level:
            return self._level.draft(root, sampler, rng, limits)
        self._scored = False
        if max(limits) <= 0:
            return root_alone(root)
        try:
            log_probs = sampler.draft(self.runner.score_block(root, self.length), list).settled
            self._scored = True
        except Exception as error:
            return root_alone(root, FAILED, error)
        logp = _mask_limits(log_probs.dense(), limits)
        chains = rng.ordered(logp, 1, 0, logp.shape[1]).squeeze(-1).tolist()  # host sync
        lengths = [_length(chain, row.stops) for chain, row in zip(chains, sampler.rows, strict=True)]
        return _chain(root, chains, lengths, log_probs, certain=sampler.greedy)

    def commit(self, this_round: Round) -> None:
        if self._by_level:
            self._level.commit(this_round)
            return
        read = int(self._scored)  # the runner's memory holds the root of each chain
        self.runner.commit([chain[:read] for chain in this_round.joined], this_round.hidden)


def _mask_limits(logp: Float[Tensor, "row depth vocab"], limits: Sequence[int]) -> Float[Tensor, "row depth vocab"]:
    """The distributions to draw from: no token is possible beyond a row's limit."""
    depths = logp.shape[1]
    if min(limits) >= depths:
        return logp
    beyond = torch.arange(depths, device=logp.device) >= torch.tensor(limits, device=logp.device).unsqueeze(1)
    return logp.masked_fill(beyond.unsqueeze(-1), -torch.inf)


def _length(tokens: list[int], stops: frozenset[int]) -> int:
    """Number of tokens before the first -1, and up to the first token that ends the text."""
    real = sum(1 for _ in takewhile(lambda token: token >= 0, tokens))
    return next((i + 1 for i, token in enumerate(tokens[:real]) if token in stops), real)


def _chain(
    root: Sequence[int], tokens: Sequence[Sequence[int]], lengths: Sequence[int], log_probs: Distributions, *, certain: bool
) -> DraftTree:
    """A chain per row; the tokens were drawn from ``log_probs``, or are the likeliest ones."""
    builder, depth = TreeBuilder(root), max(lengths)
    for row, chain, length in zip(builder.rows, tokens, lengths, strict=True):
        for parent, token in enumerate(chain[:length]):
            row.add(token, parent)
    return builder.build(
        branching=1,
        draw=Draw.POINT_MASS if certain else Draw.WITHOUT_REPLACEMENT,
        ranking=partial(log_probs.at, range(depth)) if depth else None,
    )
