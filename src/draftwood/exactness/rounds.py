"""Tests of single rounds: drafted tokens and verdicts against the distributions that they should follow.

Drafted tokens have recorded distributions. For verdicts, the tree and the target's scores determine two things: the
acceptance probability of each tried child, and the distribution of the token at the end of the path. Whether a child is
tried depends on earlier choices only. So accepted minus expected is a martingale, at any depth and for any rank among
siblings. No text is read here, so nothing is selected by its outcome.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final, final

import torch
from torch import Tensor

from draftwood.core.draws import Draw
from draftwood.core.rounds import Round
from draftwood.core.tree import DraftTree
from draftwood.exactness.evidence import LIKELY, STAKES, of_events, of_mean, of_pairs, of_wealth, pit, ratios, wealth
from draftwood.trace.arrays import RoundArrays
from draftwood.trace.walks import WALKS

DEEPEST: Final = 8  # deeper trials share one test
LAST: Final = 4  # later siblings share one test
_MIN_MASS: Final = 1e-4  # probability that must remain after earlier siblings; below it rounding errors are too large


@final
class Rounds:
    """Tests of many rounds.

    Args:
        verifier: the verifier's name.
        generator: draws the point within a choice's own probability.
    """

    def __init__(self, verifier: str, generator: torch.Generator) -> None:
        self._verifier, self._generator = verifier, generator
        self._trials = defaultdict[str, list[tuple[float, bool]]](list)  # chances and outcomes by test
        self._values = defaultdict[str, list[float]](list)  # uniform ones
        self._pairs = defaultdict[str, list[tuple[float, float]]](list)  # independent ones
        self._reused = torch.zeros(len(STAKES), dtype=torch.float64)
        self._reuses = 0
        self.start()

    def start(self) -> None:
        """Begin a new batch: its rows have no earlier rounds."""
        self._before, self._now = dict[tuple[str, int], Any](), dict[tuple[str, int], Any]()  # by test and row

    def add(self, this_round: Round, rows: Sequence[int]) -> None:
        """Add one round, and the numbers of its rows in the batch. A row takes part in every round until its text ends."""
        self._before, self._now = self._now, {}
        with torch.inference_mode():
            for rank, value in drafted(this_round.tree, self._generator):
                self._values[f"drafted, sibling {min(rank, LAST)}"].append(value)
            self._origins(this_round.tree, rows)
            if self._verifier in WALKS:
                self._verdicts(this_round, rows)

    def _add_next(self, test: str, row: int, value: float) -> None:
        """Add a PIT value of a row's round, which does not depend on the one of its round before."""
        self._now[test, row] = value
        if (before := self._before.get((test, row))) is not None:
            self._pairs[test].append((before, value))

    def _verdicts(self, this_round: Round, rows: Sequence[int]) -> None:
        """Compare each row's verdict with the distributions behind it."""
        arrays = RoundArrays(this_round)
        tree, last = arrays.tree, torch.tensor(list(this_round.verdict.next_tokens))
        columns = (last if arrays.columns is None else torch.searchsorted(arrays.columns.cpu(), last)).tolist()
        depths = tree.depths.tolist()
        for at, (path, token, row) in enumerate(zip(this_round.paths, columns, rows, strict=True)):
            walk, end, children = WALKS[self._verifier](arrays, at, path), path[-1] if path else 0, tree.children[at]
            ranks = {child: rank for below in children for rank, child in enumerate(below, 1)}
            for test in walk.tests:
                depth, rank = min(depths[at][test.node], DEEPEST), min(ranks[test.node], LAST)
                for name in ("accepted", f"accepted, depth {depth}", f"accepted, sibling {rank}"):
                    self._trials[name].append((test.chance, test.node in path))
            target = torch.from_numpy(arrays.target_vector(at, end))
            residual = target if walk.last is None else torch.from_numpy(walk.last)
            share, extra = torch.rand(2, 1, generator=self._generator, dtype=torch.float64)  # points within a probability
            if walk.tests:
                chance, point = min(1.0, walk.tests[0].chance), float(share)
                first = chance * point if walk.tests[0].node in path else chance + (1 - chance) * point
                self._add_next("next round, first trial", row, first)
            after = "a rejection" if children[end] else "a full path"
            drawn, tokens = residual.unsqueeze(0), torch.tensor([token])
            self._add_next("next round, extra token", row, float(pit(drawn, tokens, extra)))
            # After a rejection, tokens that the draft underrates come last.
            order = torch.where(target > 0, residual / target, 0.0).unsqueeze(0)
            self._values[f"extra token after {after}"].append(float(pit(drawn, tokens, extra, order)))

    def _origins(self, tree: DraftTree, rows: Sequence[int]) -> None:
        """Test whether the first children of two successive roots were drawn with the same noise."""
        if tree.draft_log_probs is None:
            return
        probs = tree.draft_log_probs.at([0]).dense()[:, 0].exp()
        for at, row in enumerate(rows):
            if below := tree.children[at][0]:
                origin = self._now["origin", row] = probs[at].cpu(), tree.host.tokens[at][below[0]]
                if (before := self._before.get(("origin", row))) is not None:
                    self._reused += wealth(_same_noise(*origin, *before))
                    self._reuses += 1

    def p_values(self) -> Iterator[tuple[str, float]]:
        """Names and p-values of the tests; none for too few values."""
        for name, trials in sorted(self._trials.items()):
            yield name, of_events(*zip(*trials, strict=True))
        found = [(name, of_mean(values)) for name, values in sorted(self._values.items())]
        found += [(name, of_pairs(pairs)) for name, pairs in sorted(self._pairs.items())]
        yield from ((name, p_value) for name, p_value in found if p_value is not None)
        if self._reuses:
            yield "next round, drafted", of_wealth(self._reused)


def _same_noise(now: Tensor, token: int, then: Tensor, earlier: int) -> Tensor:
    """The likelihood ratio of ``token``, drawn from ``now``, under the noise that picked ``earlier`` from ``then``."""
    likely: Tensor = now.topk(min(LIKELY, len(now))).indices.unsqueeze(0)
    pick, earlier_pick = torch.tensor([token]), torch.tensor([earlier])
    ratio: Tensor = ratios(now[likely], then[likely], likely, now[earlier_pick], then[earlier_pick], earlier_pick, pick)
    return ratio


def drafted(tree: DraftTree, generator: torch.Generator) -> list[tuple[int, float]]:
    """For each drawn node, its rank among its siblings from 1 on, and its PIT value in its recorded distribution.

    Tokens are ordered by id.
    """
    if tree.draft_log_probs is None:
        return []
    probs = tree.draft_log_probs.dense().double().exp().cpu()
    out = []
    for row, children in enumerate(tree.children):
        for parent, below in enumerate(children[: probs.shape[1]]):
            if not below:
                continue
            left, shares = probs[row, parent].clone(), torch.rand(len(below), generator=generator, dtype=torch.float64)
            for rank, (child, share) in enumerate(zip(below, shares.unsqueeze(1), strict=True), 1):
                token = tree.host.tokens[row][child]
                if not left.sum() <= _MIN_MASS:
                    out.append((rank, float(pit(left.unsqueeze(0), torch.tensor([token]), share))))
                if tree.draw is Draw.WITHOUT_REPLACEMENT:
                    left[token] = 0.0
    return out
