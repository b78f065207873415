"""Tests of single rounds: drafted tokens and verdicts against the distributions that they should follow.

Drafted tokens have recorded distributions. For verdicts, the tree and the target's scores determine two things: the
acceptance probability of each tried child, and the distribution of the token at the end of the path. Whether a child is
tried depends on earlier choices only. So accepted minus expected is a martingale, at any depth and for any rank among
siblings. No text is read here, so nothing is selected by its outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.draws import DRAWS_WITH_LOG_PROBS, Draw
from draftwood.core.rounds import Round
from draftwood.core.tree import DraftTree
from draftwood.exactness.evidence import STAKES, of_events, of_mean, of_pairs, of_wealth, wealth
from draftwood.exactness.reuse import LIKELY, ratios
from draftwood.verify.siblings import probs_at
from draftwood.verify.sparse import reduced
from draftwood.verify.traversal import inner_levels, parents_of, post_order, weigh_children

_MIN_MASS: Final = 1e-4  # probability that must remain after earlier siblings; below it rounding errors are too large


@final
@dataclass(frozen=True, kw_only=True)
class Trial:
    """A child that was tried.

    Attributes:
        depth, rank: its depth, and its number among its siblings in draw order; both from 1 on.
        chance: the probability of accepting it, given all earlier trials.
    """

    depth: int
    rank: int
    chance: float
    accepted: bool


@final
@dataclass(frozen=True, kw_only=True)
class Decision:
    """One row's verdict, and the distributions behind it.

    Attributes:
        trials: in the order in which they were made.
        residual: the distribution of the token after the path, up to a factor.
        target: the target's probabilities there.
        token: that token, as an index into both.
        after_rejection: a child was tried and rejected at the end of the path.
    """

    trials: list[Trial]
    residual: Float[Tensor, "n"]
    target: Float[Tensor, "n"]
    token: int
    after_rejection: bool


Rule: TypeAlias = Callable[
    [DraftTree, Float[Tensor, "row node n"], Sequence[list[int]]], tuple[list[list[Trial]], list[Tensor]]
]
"""From a tree, the target and the paths: each row's trials, and the residual at the end of its path."""


def _recursive(
    tree: DraftTree, target_logp: Float[Tensor, "row node n"], paths: Sequence[list[int]]
) -> tuple[list[list[Trial]], list[Tensor]]:
    """Trials under recursive rejection: at each node on the path, the children up to the accepted one."""
    inner = [(row, node) for row, path in enumerate(paths) for node in (0, *path) if tree.children[row][node]]
    residuals: dict[tuple[int, int], Tensor] = {}
    chances = torch.ones(tree.rows, tree.size, tree.branching + 1, dtype=torch.float64, device=target_logp.device)
    if inner:
        parents = parents_of(tree, inner)
        residual = weigh_children(tree, parents, torch.ones_like(chances[..., 0]), target_logp, chances)
        residuals.update(zip(zip(parents.rows, parents.nodes, strict=True), residual, strict=True))
    trials: list[list[Trial]] = []
    for row, (path, chance) in enumerate(zip(paths, chances[..., 0].tolist(), strict=True)):
        trials.append([])
        for depth, (node, kept) in enumerate(zip((0, *path), (*path, 0), strict=True), 1):
            for rank, child in enumerate(tree.children[row][node], 1):
                trials[-1].append(Trial(depth=depth, rank=rank, chance=chance[child], accepted=child == kept))
                if child == kept:
                    break
    return trials, [_last(residuals, target_logp, row, path) for row, path in enumerate(paths)]


def _traversal(
    tree: DraftTree, target_logp: Float[Tensor, "row node n"], paths: Sequence[list[int]]
) -> tuple[list[list[Trial]], list[Tensor]]:
    """Trials under traversal verification: the nodes in post-order, up to the end of the path."""
    weights = torch.ones(tree.rows, tree.size, dtype=torch.float64, device=target_logp.device)
    residuals: dict[tuple[int, int], Tensor] = {}
    for parents in inner_levels(tree):
        residual = weigh_children(tree, parents, weights, target_logp)
        residuals.update(zip(zip(parents.rows, parents.nodes, strict=True), residual, strict=True))
    trials, depths = [], tree.depths.tolist()
    for row, (path, chance) in enumerate(zip(paths, weights.tolist(), strict=True)):
        ranks = {child: rank for below in tree.children[row] for rank, child in enumerate(below, 1)}
        order, last = post_order(tree.children[row]), path[-1] if path else 0
        trials.append([
            Trial(depth=depths[row][node], rank=ranks[node], chance=chance[node], accepted=node == last)
            for node in order[: order.index(last) + 1]
            if node
        ])  # fmt: skip
    return trials, [_last(residuals, target_logp, row, path) for row, path in enumerate(paths)]


def _last(residuals: Mapping[tuple[int, int], Tensor], target_logp: Tensor, row: int, path: Sequence[int]) -> Tensor:
    """The residual at the end of a path.

    It is the target's own distribution where the last node has no children, or where rounding leaves nothing.
    """
    node = path[-1] if path else 0
    residual = residuals.get((row, node))
    return target_logp[row, node].exp() if residual is None or float(residual.sum()) <= 0 else residual


RANDOM_DRAWS: Final = DRAWS_WITH_LOG_PROBS - {Draw.POINT_MASS}
"""Ways of choosing siblings at random from recorded distributions."""

RULES: Final[Mapping[str, Rule]] = {"recursive": _recursive, "traversal": _traversal}
"""Rules by the verifier's name. A matching verifier has none: it decides nothing at random."""


def decisions(this_round: Round, rule: Rule) -> list[Decision]:
    """Each row's verdict under this rule."""
    tree, target_logp, tokens = reduced(this_round.tree, this_round.target_log_probs)
    paths, last = this_round.paths, torch.tensor(list(this_round.verdict.next_tokens))
    columns = (last if tokens is None else torch.searchsorted(tokens.cpu(), last)).tolist()
    trials, residuals = rule(tree, target_logp, paths)
    ends = [path[-1] if path else 0 for path in paths]
    target = probs_at(target_logp, range(tree.rows), ends)
    return [
        Decision(
            trials=trials[row],
            residual=residuals[row],
            target=target[row],
            token=columns[row],
            after_rejection=bool(tree.children[row][ends[row]]),
        )
        for row in range(tree.rows)
    ]


def drafted(tree: DraftTree, generator: torch.Generator) -> list[tuple[int, float]]:
    """For each drawn node, its rank among its siblings from 1 on, and its PIT value in its recorded distribution.

    Tokens are ordered by id.
    """
    if tree.draft_log_probs is None or tree.draw not in RANDOM_DRAWS:
        return []
    probs = tree.draft_log_probs.dense().double().exp()
    cumulative = probs.cumsum(-1)
    out = []
    for row, children in enumerate(tree.children):
        for parent, below in enumerate(children[: probs.shape[1]]):
            if below:
                out += _siblings(tree, row, parent, probs[row, parent], cumulative[row, parent], generator)
    return out


def _siblings(
    tree: DraftTree, row: int, parent: int, probs: Tensor, cumulative: Tensor, generator: torch.Generator
) -> list[tuple[int, float]]:
    children = tree.children[row][parent]
    tokens = [tree.lists[0][row][child] for child in children]
    certain = [tree.draw is Draw.HYBRID and tree.certain[row][child] for child in children]
    own, ends, total = probs[tokens].tolist(), cumulative[tokens].tolist(), float(cumulative[-1])
    shares = torch.rand(len(children), generator=generator, dtype=torch.float64).tolist()
    gone = {token: p for token, p, sure in zip(tokens, own, certain, strict=True) if sure}
    out = []
    for rank, (token, p, end, share, sure) in enumerate(zip(tokens, own, ends, shares, certain, strict=True), 1):
        rest = total - sum(gone.values())
        if not sure and rest > _MIN_MASS:
            below = end - p - sum(q for other, q in gone.items() if other < token)
            out.append((rank, min(1.0, max(0.0, (below + share * p) / rest))))
        if tree.draw is Draw.WITHOUT_REPLACEMENT:
            gone[token] = p
    return out


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
        self._rule, self._generator = RULES.get(verifier), generator
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
            if self._rule is not None:
                for decision, row, current in zip(decisions(this_round, self._rule), rows, now, strict=True):
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
            if not below or (tree.draw is Draw.HYBRID and tree.certain[at][below[0]]):
                continue
            current.origin = probs[at].cpu(), tree.lists[0][at][below[0]]
            before = self._before.get(row, Remembered()).origin
            if before is not None and tree.draw is not Draw.HYBRID:
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
