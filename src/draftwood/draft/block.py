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
    """Drafts a chain of up to ``runner.block`` tokens from one forward.

    The chain is the one that :class:`LevelDrafter` grows from the same scores and noise. The forward always scores the
    whole block, so a row's draft does not depend on its neighbours' limits. Penalties and processors need the earlier
    tokens of the chain. With them the chain is grown level by level.

    Args:
        runner: the draft model.
    """

    name = "block"
    draw = Draw.WITHOUT_REPLACEMENT

    def __init__(self, runner: BlockRunner) -> None:
        self.runner = runner
        self._level = LevelDrafter(runner, ConstantBranching((1,) * runner.block))
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
            log_probs = sampler.draft(self.runner.score_block(), list).settled
            self._scored = True
        except Exception as error:
            return root_alone(root, FAILED, error)
        drawn = rng.ordered(_mask_limits(log_probs.dense(), limits), 1, 0).squeeze(-1).tolist()  # host sync
        chains = [_drafted(tokens, row.stops) for tokens, row in zip(drawn, sampler.rows, strict=True)]
        builder, depth = TreeBuilder(root), max(map(len, chains))
        builder.add_chains(chains)
        return builder.build(
            draw=Draw.POINT_MASS if sampler.greedy else self.draw,
            ranking=partial(log_probs.at, range(depth)) if depth else None,
        )

    def commit(self, this_round: Round) -> None:
        if self._by_level:
            self._level.commit(this_round)
            return
        read = int(self._scored)  # the runner's memory holds the root of each chain
        self.runner.commit([chain[:read] for chain in this_round.joined], this_round.hidden)


def _mask_limits(logp: Float[Tensor, "row depth vocab"], limits: Sequence[int]) -> Float[Tensor, "row depth vocab"]:
    """The distributions to draw from: no token is possible beyond a row's limit."""
    depths = torch.arange(logp.shape[1], device=logp.device)
    beyond = depths >= torch.tensor(limits, device=logp.device).unsqueeze(1)
    return logp.masked_fill(beyond.unsqueeze(-1), -torch.inf)


def _drafted(tokens: list[int], stops: frozenset[int]) -> list[int]:
    """The tokens before the first -1, and up to the first one that ends the text."""
    end = next((i for i, token in enumerate(tokens, 1) if token in stops), len(tokens))
    return list(takewhile(lambda token: token >= 0, tokens[:end]))
