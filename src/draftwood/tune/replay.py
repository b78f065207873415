"""What every tree of a nest would have been accepted of, round by round, while real text is written.

In each round one large tree is drafted and scored, and the exact expected acceptance of each of its members follows for both
verifiers (:mod:`draftwood.verify.expected`). The mean over rounds is an estimate of block efficiency without the verifiers'
own chance, and the same rounds serve all members, so their order is known better than their level. A mean over rounds hangs
on where rounds begin, which is where the last one ended: the text goes on by the verdict on one member of middling size, the
anchor, so that rounds begin as they do for shapes that may be chosen. Every smaller tree is a legal draft of its own, so the
text follows the target's distribution.

Source: acceptance measured once, shapes compared by arithmetic, as in Sequoia (arXiv 2402.12374).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Verdict
from draftwood.core.tree import DRAWS_WITH_LOG_PROBS, DraftTree
from draftwood.tune.nests import Nest
from draftwood.verify import Reads, Verifier
from draftwood.verify.expected import expected


@final
class Replay:
    """A verifier that takes notes: it asks every member of a nest and decides by the anchor.

    Args:
        nest: what is asked.
        inner: the verifier that decides.

    Attributes:
        recursive, traversal: per round with a whole tree, the expected accepted tokens of each member, in the nest's order.
    """

    name = "replay"
    lossless = True
    draws = DRAWS_WITH_LOG_PROBS
    tolerant = False
    reads: ClassVar[Reads] = "probabilities"

    def __init__(self, nest: Nest, inner: Verifier) -> None:
        self._inner = inner
        self._members = list(nest.members.values())
        self._anchor = sorted(nest.members[nest.anchor])
        self._size = 1 + max(map(max, self._members))
        self.recursive: list[list[float]] = []
        self.traversal: list[list[float]] = []

    def verify(self, tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], choices: RoundRng) -> Verdict:
        for found, drafted in zip(expected(tree, target_logp), tree.drafted, strict=True):
            if 1 + drafted == self._size:  # not at the end of the text, where trees are cut
                self.recursive.append([found.recursive(kept) for kept in self._members])
                self.traversal.append([found.traversal(kept) for kept in self._members])
        kept = [node for node in self._anchor if node < tree.size]
        verdict = self._inner.verify(part_of(tree, kept), target_logp[:, kept], choices)
        return Verdict(paths=[[kept[node] for node in path] for path in verdict.paths], next_tokens=verdict.next_tokens)


def part_of(tree: DraftTree, kept: Sequence[int]) -> DraftTree:
    """The tree of some nodes, in ascending order, that hold each other's parents and earlier siblings."""
    kept = list(kept)
    place = torch.zeros(tree.size, dtype=torch.long, device=tree.tokens.device)
    place[kept] = torch.arange(len(kept), device=place.device)
    inner = 0 if tree.draft_log_probs is None else tree.draft_log_probs.logp.shape[1]
    asked = [node for node in kept if node < inner]
    return replace(
        tree,
        tokens=tree.tokens[:, kept],
        parents=place[tree.parents[:, kept]],
        depths=tree.depths[:, kept],
        valid=tree.valid[:, kept],
        ancestors=tree.ancestors[:, kept][:, :, kept],
        draft_log_probs=None if tree.draft_log_probs is None else tree.draft_log_probs.at(asked),
        drawn=None if tree.drawn is None else tree.drawn[:, kept],
    )
