"""Tests of single rounds: drafted tokens and verdicts against the distributions that they should follow.

Drafted tokens have recorded distributions. For verdicts, the tree and the target's scores determine two things: the
acceptance probability of each tried child, and the distribution of the token at the end of the path. Whether a child is
tried depends on earlier choices only. So accepted minus expected is a martingale, at any depth and for any rank among
siblings. No text is read here, so nothing is selected by its outcome.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from draftwood.core.rounds import Round
from draftwood.core.tree import DraftTree
from draftwood.exactness.decisions import RANDOM_DRAWS, Decision, Trial, decisions, drafted
from draftwood.exactness.evidence import STAKES, of_events, of_mean, of_pairs, of_wealth, wealth
from draftwood.exactness.reuse import LIKELY, ratios
from draftwood.trace.walks import WALKS

DEEPEST: Final = 8  # deeper trials share one test
LAST: Final = 4  # later siblings share one test


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
        self._trials: list[Trial] = []
        self._drafted: dict[int, list[float]] = {}
        self._extra: dict[bool, list[float]] = {}
        self._pairs: dict[str, list[tuple[float, float]]] = {"first trial": [], "extra token": []}
        self._reused = torch.zeros(len(STAKES), dtype=torch.float64)
        self._reuses = 0
        self._before: dict[int, Remembered] = {}

    def start(self) -> None:
        """Begin a new batch: its rows have no earlier rounds."""
        self._before = {}

    def add(self, this_round: Round, rows: Sequence[int]) -> None:
        """Add one round, and the numbers of its rows in the batch."""
        with torch.inference_mode():
            for rank, pit in drafted(this_round.tree, self._generator):
                self._drafted.setdefault(min(rank, LAST), []).append(pit)
            now = [Remembered() for _ in rows]
            self._origins(this_round.tree, rows, now)
            if self._verifier in WALKS:
                for decision, row, current in zip(decisions(this_round, self._verifier), rows, now, strict=True):
                    self._add_decision(decision, row, current)
        self._before.update(zip(rows, now, strict=True))

    def _add_decision(self, decision: Decision, row: int, now: Remembered) -> None:
        self._trials += decision.trials
        before = self._before.get(row, Remembered())
        share = torch.rand(2, generator=self._generator, dtype=torch.float64)
        if decision.trials:
            trial, within = decision.trials[0], float(share[0])
            chance = min(1.0, trial.chance)
            now.first = chance * within if trial.accepted else chance + (1 - chance) * within
            if before.first is not None:
                self._pairs["first trial"].append((before.first, now.first))
        residual, target, token = decision.residual.double(), decision.target.double(), decision.token
        cumulative = residual.cumsum(0)
        now.extra = float((cumulative[token] - (1 - share[1]) * residual[token]) / cumulative[-1])
        if before.extra is not None:
            self._pairs["extra token"].append((before.extra, now.extra))
        # Tokens are ordered by residual over target: after a rejection, tokens that the draft underrates come last.
        ratio = torch.where(target > 0, residual / target, 0.0)
        lower = (ratio < ratio[token]) | ((ratio == ratio[token]) & (torch.arange(len(ratio), device=ratio.device) < token))
        pit = float((residual[lower].sum() + share[1] * residual[token]) / cumulative[-1])
        self._extra.setdefault(decision.after_rejection, []).append(pit)

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
        """Names and p-values of the tests."""
        if self._trials:
            yield "accepted", _of_trials(self._trials)
        for depth in range(1, DEEPEST + 1):
            if some := [t for t in self._trials if min(t.depth, DEEPEST) == depth]:
                yield f"accepted, depth {depth}", _of_trials(some)
        for rank in range(1, LAST + 1):
            if some := [t for t in self._trials if min(t.rank, LAST) == rank]:
                yield f"accepted, sibling {rank}", _of_trials(some)
        for rank, pit in sorted(self._drafted.items()):
            yield from _unless_none(f"drafted, sibling {rank}", of_mean(pit))
        for after, pit in sorted(self._extra.items()):
            yield from _unless_none(f"extra token after {'a rejection' if after else 'a full path'}", of_mean(pit))
        for name, pairs in self._pairs.items():
            yield from _unless_none(f"next round, {name}", of_pairs(pairs))
        if self._reuses:
            yield "next round, drafted", of_wealth(self._reused)


def _unless_none(name: str, p_value: float | None) -> Iterator[tuple[str, float]]:
    if p_value is not None:
        yield name, p_value


def _of_trials(trials: Sequence[Trial]) -> float:
    return of_events([trial.chance for trial in trials], [trial.accepted for trial in trials])


def _same_noise(now: Tensor, token: int, then: Tensor, earlier: int) -> Tensor:
    """The likelihood ratio of ``token``, drawn from ``now``, under the noise that picked ``earlier`` from ``then``."""
    likely: Tensor = now.topk(min(LIKELY, len(now))).indices.unsqueeze(0)
    pick, earlier_pick = torch.tensor([token]), torch.tensor([earlier])
    ratio: Tensor = ratios(now[likely], then[likely], likely, now[earlier_pick], then[earlier_pick], earlier_pick, pick)
    return ratio
