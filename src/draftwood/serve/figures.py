"""What drafting brought: of one text in one round, of a response, and of the server."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, final

from draftwood.core.rounds import Piece


@final
@dataclass(frozen=True, kw_only=True)
class Draft:
    """One text's draft of one round.

    Attributes:
        nodes: drafted tokens.
        depth: the deepest level.
        accepted: accepted tokens, without the one that the target adds.
        ranks: of every accepted token, its place among its siblings, from 0.
    """

    nodes: int
    depth: int
    accepted: int
    ranks: tuple[int, ...]

    @staticmethod
    def of(piece: Piece) -> Draft | None:
        """The draft of a piece; None if nothing was drafted."""
        tree, row = piece.round.tree, piece.round_row
        if not (nodes := tree.drafted[row]):
            return None
        path, parents, valid = piece.round.paths[row], tree.host.parents[row], tree.host.valid[row]
        depths = [0] * len(parents)
        for node in range(1, len(parents)):
            depths[node] = depths[parents[node]] + 1 if valid[node] else 0
        above = [0, *path]
        ranks = tuple(tree.children[row][parent].index(node) for parent, node in zip(above, path, strict=False))
        return Draft(nodes=nodes, depth=max(depths), accepted=len(path), ranks=ranks)


@final
@dataclass(kw_only=True)
class DraftTotals:
    """The drafts of a response.

    Attributes:
        accepted: number of drafts of which 0, 1, 2, ... tokens were accepted.
        nodes: drafted tokens.
        depth: the deepest level.
    """

    accepted: Counter[int] = field(default_factory=Counter)
    nodes: int = 0
    depth: int = 0

    def add(self, draft: Draft) -> None:
        """Count one more draft."""
        self.accepted[draft.accepted] += 1
        self.nodes += draft.nodes
        self.depth = max(self.depth, draft.depth)

    def to_json(self) -> dict[str, Any]:
        """Plain values, in the words of other servers."""
        steps, kept = self.accepted.total(), sum(self.accepted.elements())
        return {
            "mean_acceptance_length": round(1 + kept / steps, 4) if steps else 1.0,
            "draft_acceptance_rate": round(kept / self.nodes, 4) if self.nodes else 0.0,
            "acceptance_histogram": [self.accepted[length] for length in range(max(self.accepted, default=-1) + 1)],
            "num_spec_steps": steps,
            "num_draft_tokens": self.nodes,
            "num_accepted_draft_tokens": kept,
            "num_spec_tokens": self.depth,
        }
