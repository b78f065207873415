"""What rounds reveal: drafted tokens in the distributions recorded for them, and verdicts in those that the rule gives them.

A tree and the target's scores fix with what probability each child that is tried is accepted, and from what distribution the
token at the end of the path is drawn. Whether a child is tried depends on earlier choices only, so that accepted minus
probable is a martingale, at any depth and for any rank among the siblings. No text is looked at here, so nothing is selected
by what became of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.rounds import Round
from draftwood.core.tree import DRAWS_WITH_LOG_PROBS, DraftTree, Draw
from draftwood.exactness.evidence import STAKES, of_events, of_mean, of_pairs, of_wealth, wealth
from draftwood.exactness.reuse import LIKELY, ratios
from draftwood.verify.siblings import probs_at
from draftwood.verify.sparse import reduced
from draftwood.verify.traversal import inner_levels, post_order, parents_of, weigh_children

_LEAST: Final = 1e-4  # of a distribution that must be left after earlier siblings; of less, rounding takes too much


@final
@dataclass(frozen=True, kw_only=True)
class Trial:
    """A child that was tried.

    Attributes:
        depth, rank: its depth, and its number among its siblings in draw order; both from 1 on.
        chance: the probability of accepting it, given all that was tried before.
    """

    depth: int
    rank: int
    chance: float
    accepted: bool


@final
@dataclass(frozen=True, kw_only=True)
class Decided:
    """One row's verdict.

    Attributes:
        trials: in the order in which they were made.
        left: what the token behind the path was drawn from, up to a factor.
        own: the target's distribution there.
        token: that token, as both number it.
        after_rejection: a child was tried and rejected there.
    """

    trials: list[Trial]
    left: Float[Tensor, "n"]
    own: Float[Tensor, "n"]
    token: int
    after_rejection: bool


Rule: TypeAlias = Callable[
    [DraftTree, Float[Tensor, "row node n"], Sequence[list[int]]], tuple[list[list[Trial]], list[Tensor]]
]
"""Each row's trials, and what was left of the target's distribution at the end of its path."""


def _recursive(
    tree: DraftTree, target_logp: Float[Tensor, "row node n"], paths: Sequence[list[int]]
) -> tuple[list[list[Trial]], list[Tensor]]:
    """Children of the nodes on the path, each up to the accepted one."""
    asked = [(row, node) for row, path in enumerate(paths) for node in (0, *path) if tree.children[row][node]]
    left: dict[tuple[int, int], Tensor] = {}
    chances = torch.ones(tree.rows, tree.size, tree.branching + 1, dtype=torch.float64, device=target_logp.device)
    if asked:
        parents = parents_of(tree, asked)
        rest = weigh_children(tree, parents, torch.ones_like(chances[..., 0]), target_logp, chances)
        left.update(zip(zip(parents.rows, parents.nodes, strict=True), rest, strict=True))
    trials: list[list[Trial]] = []
    for row, (path, chance) in enumerate(zip(paths, chances[..., 0].tolist(), strict=True)):
        trials.append([])
        for depth, (node, kept) in enumerate(zip((0, *path), (*path, 0), strict=True), 1):
            for rank, child in enumerate(tree.children[row][node], 1):
                trials[-1].append(Trial(depth=depth, rank=rank, chance=chance[child], accepted=child == kept))
                if child == kept:
                    break
    return trials, [_left(left, target_logp, row, path) for row, path in enumerate(paths)]


def _traversal(
    tree: DraftTree, target_logp: Float[Tensor, "row node n"], paths: Sequence[list[int]]
) -> tuple[list[list[Trial]], list[Tensor]]:
    """All nodes, leaves first, up to the one where the path ends."""
    own = torch.ones(tree.rows, tree.size, dtype=torch.float64, device=target_logp.device)
    left: dict[tuple[int, int], Tensor] = {}
    for parents in inner_levels(tree):
        rest = weigh_children(tree, parents, own, target_logp)
        left.update(zip(zip(parents.rows, parents.nodes, strict=True), rest, strict=True))
    trials, depths = [], tree.depths.tolist()
    for row, (path, chance) in enumerate(zip(paths, own.tolist(), strict=True)):
        ranks = {child: rank for below in tree.children[row] for rank, child in enumerate(below, 1)}
        order, last = post_order(tree.children[row]), path[-1] if path else 0
        trials.append([
            Trial(depth=depths[row][node], rank=ranks[node], chance=chance[node], accepted=node == last)
            for node in order[: order.index(last) + 1]
            if node
        ])  # fmt: skip
    return trials, [_left(left, target_logp, row, path) for row, path in enumerate(paths)]


def _left(left: Mapping[tuple[int, int], Tensor], target_logp: Tensor, row: int, path: Sequence[int]) -> Tensor:
    """At the end of a path; the target's own distribution where it has no children, or all is gone by rounding."""
    node = path[-1] if path else 0
    rest = left.get((row, node))
    return target_logp[row, node].exp() if rest is None or float(rest.sum()) <= 0 else rest


RULES: Final[Mapping[str, Rule]] = {"recursive": _recursive, "traversal": _traversal}
"""By the verifier's name; a verifier that matches decides nothing by chance."""


def decided(this_round: Round, rule: Rule) -> list[Decided]:
    """What each row's verdict was drawn from."""
    tree, target_logp, tokens = reduced(this_round.tree, this_round.target_log_probs)
    paths, last = this_round.paths, torch.tensor(list(this_round.verdict.next_tokens))
    numbers = (last if tokens is None else torch.searchsorted(tokens.cpu(), last)).tolist()
    trials, left = rule(tree, target_logp, paths)
    ends = [path[-1] if path else 0 for path in paths]
    own = probs_at(target_logp, range(tree.rows), ends)
    return [
        Decided(
            trials=trials[row],
            left=left[row],
            own=own[row],
            token=numbers[row],
            after_rejection=bool(tree.children[row][ends[row]]),
        )
        for row in range(tree.rows)
    ]


def drafted(tree: DraftTree, generator: torch.Generator) -> list[tuple[int, float]]:
    """Of each drawn node: its rank among its siblings from 1 on, and its place from 0 to 1, by token number, in the
    distribution that is recorded for it."""
    if tree.draft_log_probs is None or tree.draw not in DRAWS_WITH_LOG_PROBS - {Draw.POINT_MASS}:
        return []
    distribution = tree.draft_log_probs.dense().double().exp()
    reached = distribution.cumsum(-1)
    out = []
    for row, children in enumerate(tree.children):
        for parent, below in enumerate(children[: distribution.shape[1]]):
            if below:
                out += _siblings(tree, row, parent, distribution[row, parent], reached[row, parent], generator)
    return out


def _siblings(
    tree: DraftTree, row: int, parent: int, distribution: Tensor, reached: Tensor, generator: torch.Generator
) -> list[tuple[int, float]]:
    children = tree.children[row][parent]
    tokens = [tree.lists[0][row][child] for child in children]
    certain = [tree.draw is Draw.HYBRID and tree.certain[row][child] for child in children]
    own, ends, whole = distribution[tokens].tolist(), reached[tokens].tolist(), float(reached[-1])
    shares = torch.rand(len(children), generator=generator, dtype=torch.float64).tolist()
    gone = {token: p for token, p, sure in zip(tokens, own, certain, strict=True) if sure}
    out = []
    for rank, (token, p, end, share, sure) in enumerate(zip(tokens, own, ends, shares, certain, strict=True), 1):
        rest = whole - sum(gone.values())
        if not sure and rest > _LEAST:
            below = end - p - sum(q for other, q in gone.items() if other < token)
            out.append((rank, min(1.0, max(0.0, (below + share * p) / rest))))
        if tree.draw is Draw.WITHOUT_REPLACEMENT:
            gone[token] = p
    return out


DEEPEST: Final = 8  # deeper trials are judged together
LAST: Final = 4  # so are later siblings


@final
@dataclass
class Before:
    """What is remembered of a row's last round: the places of its random choices, and the first drafted child's origin."""

    first: float | None = None
    extra: float | None = None
    origin: tuple[Tensor, int] | None = None


@final
class Rounds:
    """Tests of many rounds.

    Args:
        verifier: its name.
        generator: of places within a choice's own share.
    """

    def __init__(self, verifier: str, generator: torch.Generator) -> None:
        self._rule, self._generator = RULES.get(verifier), generator
        self._trials: list[Trial] = []
        self._drafted: dict[int, list[float]] = {}
        self._extra: dict[bool, list[float]] = {}
        self._pairs: dict[str, list[tuple[float, float]]] = {"first trial": [], "extra token": []}
        self._reused = torch.zeros(len(STAKES), dtype=torch.float64)
        self._reuses = 0
        self._before: dict[int, Before] = {}

    def start(self) -> None:
        """A new batch begins."""
        self._before = {}

    def add(self, this_round: Round, rows: Sequence[int]) -> None:
        """One round, and the numbers of its rows in the batch."""
        with torch.inference_mode():
            for rank, place in drafted(this_round.tree, self._generator):
                self._drafted.setdefault(min(rank, LAST), []).append(place)
            now = [Before() for _ in rows]
            self._origins(this_round.tree, rows, now)
            if self._rule is not None:
                for found, row, known in zip(decided(this_round, self._rule), rows, now, strict=True):
                    self._decided(found, row, known)
        self._before.update(zip(rows, now, strict=True))

    def _decided(self, found: Decided, row: int, now: Before) -> None:
        self._trials += found.trials
        before = self._before.get(row, Before())
        share = torch.rand(2, generator=self._generator, dtype=torch.float64)
        if found.trials:
            trial, within = found.trials[0], float(share[0])
            chance = min(1.0, trial.chance)
            now.first = chance * within if trial.accepted else chance + (1 - chance) * within
            if before.first is not None:
                self._pairs["first trial"].append((before.first, now.first))
        left, own, token = found.left.double(), found.own.double(), found.token
        reached = left.cumsum(0)
        now.extra = float((reached[token] - (1 - share[1]) * left[token]) / reached[-1])
        if before.extra is not None:
            self._pairs["extra token"].append((before.extra, now.extra))
        # What stands out after a rejection is what the draft says too seldom.
        bart = torch.where(own > 0, left / own, 0.0)
        lower = (bart < bart[token]) | ((bart == bart[token]) & (torch.arange(len(bart), device=bart.device) < token))
        place = float((left[lower].sum() + share[1] * left[token]) / reached[-1])
        self._extra.setdefault(found.after_rejection, []).append(place)

    def _origins(self, tree: DraftTree, rows: Sequence[int], now: list[Before]) -> None:
        """Whether the first children of two rounds' roots were drawn with the same noise."""
        if tree.draft_log_probs is None or tree.draw not in DRAWS_WITH_LOG_PROBS - {Draw.POINT_MASS}:
            return
        log_probs = tree.draft_log_probs.at([0]).dense()[:, 0].exp()
        for at, (row, known) in enumerate(zip(rows, now, strict=True)):
            below = tree.children[at][0]
            if not below or (tree.draw is Draw.HYBRID and tree.certain[at][below[0]]):
                continue
            known.origin = log_probs[at].cpu(), tree.lists[0][at][below[0]]
            before = self._before.get(row, Before()).origin
            if before is not None and tree.draw is not Draw.HYBRID:
                self._reused += wealth(_same_noise(*known.origin, *before))
                self._reuses += 1

    def found(self) -> Iterator[tuple[str, float]]:
        """Names and p-values of the tests."""
        if self._trials:
            yield "accepted", _of_trials(self._trials)
        for depth in range(1, DEEPEST + 1):
            if some := [t for t in self._trials if min(t.depth, DEEPEST) == depth]:
                yield f"accepted, depth {depth}", _of_trials(some)
        for rank in range(1, LAST + 1):
            if some := [t for t in self._trials if min(t.rank, LAST) == rank]:
                yield f"accepted, sibling {rank}", _of_trials(some)
        for rank, places in sorted(self._drafted.items()):
            yield from _told(f"drafted, sibling {rank}", of_mean(places))
        for after, places in sorted(self._extra.items()):
            yield from _told("extra token after a rejection" if after else "extra token after a full path", of_mean(places))
        for name, pairs in self._pairs.items():
            yield from _told(f"next round, {name}", of_pairs(pairs))
        if self._reuses:
            yield "next round, drafted", of_wealth(self._reused)


def _told(name: str, p_value: float | None) -> Iterator[tuple[str, float]]:
    if p_value is not None:
        yield name, p_value


def _of_trials(trials: Sequence[Trial]) -> float:
    return of_events([trial.chance for trial in trials], [trial.accepted for trial in trials])


def _same_noise(distribution: Tensor, token: int, distribution_before: Tensor, before: int) -> Tensor:
    likely: Tensor = distribution.topk(min(LIKELY, len(distribution))).indices.unsqueeze(0)
    one, other = torch.tensor([token]), torch.tensor([before])
    found: Tensor = ratios(
        distribution[likely],
        distribution_before[likely],
        likely,
        distribution[other],
        distribution_before[other],
        other,
        one,
    )
    return found
