"""The target model scores a whole tree: one forward for all nodes of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from jaxtyping import Float
from torch import Tensor

from draftwood.core.rounds import Round
from draftwood.core.scores import Scores
from draftwood.core.tree import DraftTree
from draftwood.runners.protocols import Prefix, Runner


@final
class Target:
    """A runner that scores every node of every tree."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    @property
    def forward_seconds(self) -> float:
        return self.runner.forward_seconds

    def clear(self, *, keep: bool = False) -> None:
        """Remove all rows; ``keep`` as for :meth:`draftwood.runners.protocols.Runner.clear`."""
        self.runner.clear(keep=keep)

    def add(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        """Append rows: prompts without their last token, and the encoder's inputs."""
        self.runner.add(texts, sources)

    def prefill(self, text: Sequence[int], *, prefix: Prefix | None = None) -> Float[Tensor, "_token width"] | None:
        """Read the beginning of a text that is added later; as :meth:`draftwood.runners.protocols.Runner.prefill`."""
        return self.runner.prefill(text, prefix=prefix)

    def score(self, tree: DraftTree) -> Scores:
        """Scores at every node; a row's first round also reads its prompt."""
        return self.runner.extend(tree.tokens, tree.depths, tree.ancestors)

    def commit(self, this_round: Round) -> None:
        """Keep the accepted path; the next token is the next round's root."""
        self.runner.commit([[0, *path] for path in this_round.paths], [[] for _ in this_round.paths])

    def drop(self, rows: Sequence[int]) -> None:
        """Remove rows; the others keep their order."""
        self.runner.drop(rows)
