"""Verifying on the union of supports: where top-k, top-p or min-p make most tokens impossible, the rest is left out.

A token that neither the target nor the draft can say at any node of the round changes no distribution. Leaving such tokens
out keeps the order of the others, so that the draws from cumulative distributions give the same tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.log_probs import LogProbs
from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Verdict
from draftwood.core.tree import DraftTree
from draftwood.verify import Verifier
from draftwood.verify.coupled import Coupled, Greedy, follow_table


def verify(verifier: Verifier, tree: DraftTree, target: LogProbs, rng: RoundRng) -> Verdict:
    """As ``verifier.verify``; where the target's distributions name their tokens, only on the tokens that are possible for
    the target or the draft, or drafted (one host sync), and not at all where they leave a matching verifier no choice."""
    matches = isinstance(verifier, Coupled | Greedy)
    if matches and target.certain is not None:
        return follow_table(tree, target.certain)
    smaller, target_logp, tokens = reduced(tree, target, scores=matches)
    if tokens is None:
        return verifier.verify(smaller, target_logp, rng)
    verdict = verifier.verify(smaller, target_logp, OnUnion(rng, tokens, target.vocab))
    return replace(verdict, next_tokens=tokens[list(verdict.next_tokens)].tolist())


def reduced(
    tree: DraftTree, target: LogProbs, *, scores: bool = False
) -> tuple[DraftTree, Float[Tensor, "row node n"], Int[Tensor, "n"] | None]:
    """The tree and the target's log-probabilities on the tokens that are possible, and these tokens in rising order; all of
    them, and None, where the target's distributions do not name theirs. Then ``scores`` do, where asked for."""
    if target.tokens is None:
        return tree, target.scores if scores else target.logp, None
    draft = tree.draft_log_probs
    supports = [target.support(), tree.tokens.flatten(), *([] if draft is None else [draft.support()])]
    tokens: Int[Tensor, "n"] = torch.unique(torch.cat(supports))
    smaller = replace(
        tree,
        tokens=torch.searchsorted(tokens, tree.tokens),
        draft_log_probs=None if draft is None else LogProbs(logp=draft.on(tokens), vocab=len(tokens)),
    )
    return smaller, target.on(tokens), tokens


@final
class OnUnion:
    """:class:`RoundRng` of a verifier that numbers only some tokens; of all noise only the shared one belongs to a token."""

    def __init__(self, rng: RoundRng, tokens: Int[Tensor, "n"], vocab: int) -> None:
        self._rng, self._tokens, self._vocab = rng, tokens, vocab
        self.ordered, self.independent, self.beam = rng.ordered, rng.independent, rng.beam
        self.accept, self.token, self.path = rng.accept, rng.token, rng.path

    def shared(
        self, offset: int, count: int, vocab: int, tokens: Int[Tensor, "n"] | None = None
    ) -> Float[Tensor, "row count _"] | None:
        """The noise of these tokens."""
        return self._rng.shared(offset, count, self._vocab, self._tokens if tokens is None else self._tokens[tokens])
