"""The target asked about a whole tree: one forward for all nodes of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from jaxtyping import Float
from torch import Tensor

from draftwood.core.rounds import Round
from draftwood.core.tree import DraftTree
from draftwood.runners.protocols import Runner


@final
class Target:
    """A runner that sees every node of every tree."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    @property
    def forward_seconds(self) -> float:
        return self.runner.forward_seconds

    def start(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        """Prompts without their last token, and what an encoder reads."""
        self.runner.start(texts, sources)

    def score(self, tree: DraftTree) -> Float[Tensor, "row node vocab"]:
        """Scores after every node; the first round also reads the prompt."""
        return self.runner.extend(tree.tokens, tree.depths, tree.ancestors)

    def commit(self, this_round: Round) -> None:
        """Keep the accepted path; the next token is the next root and is seen then."""
        self.runner.commit([[0, *path] for path in this_round.paths], [[] for _ in this_round.paths])

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows."""
        self.runner.select(rows)
