"""Tests of single rounds: drafted tokens and verdicts against the distributions that they should follow.

Drafted tokens have recorded distributions. For verdicts, the tree and the target's scores determine two things: the
acceptance probability of each tried child, and the distribution of the token at the end of the path. Whether a child is
tried depends on earlier choices only. So accepted minus expected is a martingale, at any depth and for any rank among
siblings. No text is read here, so nothing is selected by its outcome.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from draftwood.core.draws import DRAWS_WITH_LOG_PROBS, Draw
from draftwood.core.rounds import Round
from draftwood.core.tree import DraftTree
from draftwood.exactness.evidence import LIKELY, STAKES, of_events, of_mean, of_pairs, of_wealth, pit, ratios, wealth
from draftwood.trace.arrays import RoundArrays
from draftwood.trace.walks import WALKS

DEEPEST: Final = 8  # deeper trials share one test
LAST: Final = 4  # later siblings share one test
RANDOM_DRAWS: Final = DRAWS_WITH_LOG_PROBS - {Draw.POINT_MASS}
"""Draws that choose siblings at random from recorded distributions."""
_MIN_MASS: Final = 1e-4  # probability that must remain after earlier siblings; below it rounding errors are too large


@final
@dataclass
class Remembered:
    """What a row's next round is compared with.

    Attributes:
        first, extra: PIT values of the first trial and of the token after the path.
        origin: the distribution of the root's first drafted child, and its token.
    """

    first: float | None = None
    extra: float | None = None
    origin: tuple[Tensor, int] | None = None


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
        self._before: dict[int, Remembered] = {}

    def start(self) -> None:
        """Begin a new batch: its rows have no earlier rounds."""
        self._before = {}

    def add(self, this_round: Round, rows: Sequence[int]) -> None:
        """Add one round, and the numbers of its rows in the batch."""
        with torch.inference_mode():
            for rank, value in drafted(this_round.tree, self._generator):
                self._values[f"drafted, sibling {min(rank, LAST)}"].append(value)
            now = [Remembered() for _ in rows]
            self._origins(this_round.tree, rows, now)
            if self._verifier in WALKS:
                self._verdicts(this_round, rows, now)
        self._before.update(zip(rows, now, strict=True))

    def _verdicts(self, this_round: Round, rows: Sequence[int], now: Sequence[Remembered]) -> None:
        """Compare each row's verdict with the distributions behind it."""
        arrays = RoundArrays(this_round, argmax=False)
        tree, last = arrays.tree, torch.tensor(list(this_round.verdict.next_tokens))
        columns = (last if arrays.columns is None else torch.searchsorted(arrays.columns.cpu(), last)).tolist()
        depths = tree.depths.tolist()
        for at, (path, token, row, current) in enumerate(zip(this_round.paths, columns, rows, now, strict=True)):
            walk, end, children = WALKS[self._verifier](arrays, at, path), path[-1] if path else 0, tree.children[at]
            ranks = {child: rank for below in children for rank, child in enumerate(below, 1)}
            for test in walk.tests:
                depth, rank = min(depths[at][test.node], DEEPEST), min(ranks[test.node], LAST)
                for name in ("accepted", f"accepted, depth {depth}", f"accepted, sibling {rank}"):
                    self._trials[name].append((test.chance, test.node in path))
            target = torch.from_numpy(arrays.target_vector(at, end))
            residual = target if walk.last is None else torch.from_numpy(walk.last)
            before = self._before.get(row, Remembered())
            share = torch.rand(2, generator=self._generator, dtype=torch.float64)
            if walk.tests:
                self._add_first(walk.tests[0].chance, walk.tests[0].node in path, float(share[0]), before, current)
            after = "a rejection" if children[end] else "a full path"
            value = self._add_extra(residual, target, token, share[1:], before, current)
            self._values[f"extra token after {after}"].append(value)

    def _add_first(self, chance: float, accepted: bool, share: float, before: Remembered, now: Remembered) -> None:
        """Add a row's first test; ``share`` is the point within the outcome's own probability."""
        chance = min(1.0, chance)
        now.first = chance * share if accepted else chance + (1 - chance) * share
        if before.first is not None:
            self._pairs["next round, first trial"].append((before.first, now.first))

    def _add_extra(
        self, residual: Tensor, target: Tensor, token: int, share: Tensor, before: Remembered, now: Remembered
    ) -> float:
        """Add the token after the path, drawn from ``residual``, where the target's own distribution is ``target``.

        Returns:
            Its PIT value with tokens ordered by residual over target: after a rejection, tokens that the draft underrates
            come last.
        """
        drawn, tokens = residual.unsqueeze(0), torch.tensor([token])
        now.extra = float(pit(drawn, tokens, share))
        if before.extra is not None:
            self._pairs["next round, extra token"].append((before.extra, now.extra))
        ratio = torch.where(target > 0, residual / target, 0.0)
        return float(pit(drawn, tokens, share, ratio.unsqueeze(0)))

    def _origins(self, tree: DraftTree, rows: Sequence[int], now: list[Remembered]) -> None:
        """Test whether the first children of two successive roots were drawn with the same noise."""
        if tree.draft_log_probs is None or tree.draw not in RANDOM_DRAWS:
            return
        probs = tree.draft_log_probs.at([0]).dense()[:, 0].exp()
        for at, (row, current) in enumerate(zip(rows, now, strict=True)):
            below = tree.children[at][0]
            if not below:
                continue
            current.origin = probs[at].cpu(), tree.host.tokens[at][below[0]]
            before = self._before.get(row, Remembered()).origin
            if before is not None:
                self._reused += wealth(_same_noise(*current.origin, *before))
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
    if tree.draft_log_probs is None or tree.draw not in RANDOM_DRAWS:
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
