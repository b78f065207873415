"""Best-first trees: the most valuable nodes under a budget, with one draft forward per level, or one for all of them.

A node's value estimates the probability that the output runs through it: the product of shares along its path
(:class:`Fan`). With shared noise the share of a child is the probability that the target's choice falls on it, learnt from
round to round; any tree is legal there, since the verifier only matches. At temperature 0 the noise is zero; EAGLE-2 (arXiv
2406.16858) takes the draft's probability itself.

Trees of drawn children are cut in the same way, and stay exact because of what the shares depend on. Whether a place in the
tree exists may depend on anything except the token drawn there and what is drawn below it. A place's value depends on the
draft's distributions above it and on how many siblings come before it, and no place below it is worth more than it; so
neither its own token nor any below decides whether it is among the most valuable ones, or whether its level is drawn at all.

A small draft model may choose several tokens in one call (:class:`draftwood.runners.protocols.BurstRunner`), each the best
child of the one before. Then the tree grows by such chains: below the root, and below whatever candidate promises most after
that.

A draft that scores a whole block in one forward knows a distribution for every depth before anything is chosen. With shared
noise all nodes of one depth then have the same children, and the tree is made at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from time import perf_counter
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.draws import DRAWS_WITH_LOG_PROBS, Draw
from draftwood.core.log_probs import LogProbs
from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Round
from draftwood.core.sampling import Sampler
from draftwood.core.tree import DraftTree
from draftwood.draft.fans import Fan, SharedFan
from draftwood.draft.lookup import Lookup
from draftwood.draft.none import NoDraft
from draftwood.draft.pace import Pace
from draftwood.draft.pool import Planes, Pool, lineage, planes, prefixes
from draftwood.runners.protocols import BlockRunner, BurstRunner, Runner


@final
class BestFirst:
    """Keeps the ``nodes`` most valuable nodes of a tree grown ``width`` nodes a level down to ``length``, and with a pace
    only as much of it as pays: fewer nodes, fewer levels, or no draft at all.

    Args:
        runner: the draft model.
        nodes: the node budget, the root not counted.
        width: nodes expanded per level.
        length: the depth budget; by chains, that of calls.
        fan: the children that a candidate gets.
        pace: what drafting costs and brings; without one the budgets are filled every round.
        lookup: guesses from the texts, which become candidates too; for shared noise only, where any tree is legal.
    """

    def __init__(
        self,
        runner: Runner,
        fan: Fan,
        *,
        nodes: int,
        width: int,
        length: int,
        pace: Pace | None = None,
        lookup: Lookup | None = None,
    ) -> None:
        self.runner = runner
        self.nodes = nodes
        self.width = width
        self.length = length
        self.fan = fan
        self.name = fan.name if lookup is None else "adaptive"
        self.draw = fan.draw
        self.pace = pace
        self.lookup = lookup
        self._at_once = (runner, fan) if isinstance(runner, BlockRunner) and isinstance(fan, SharedFan) else None
        self._chains: tuple[BurstRunner, SharedFan] | None = None
        if pace is not None and isinstance(runner, BurstRunner) and isinstance(fan, SharedFan):
            self._chains = runner, fan
        self._begun = self._drafting = 0.0  # when this round began, and the seconds of its levels
        self._reading = True  # the first round reads the prompt, which says nothing about costs
        self._by_calls = False  # whether the last round was drafted by chains
        self._behind = True  # the draft has text to read that was committed while nothing was drafted
        self._pools: list[Pool] = []
        self._kept: list[list[int]] = []  # per row, the candidate that each tree node is
        self._log_probs: list[LogProbs] = []  # of this round's levels

    @property
    def max_length(self) -> int | None:
        return self.runner.max_length

    @property
    def forward_seconds(self) -> float:
        return self.runner.forward_seconds

    def clear(self) -> None:
        self.runner.clear()
        if self.lookup is not None:
            self.lookup.clear()
        self._by_calls = False

    def add(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        self.runner.add(texts, sources)
        if self.lookup is not None:
            self.lookup.add(texts, sources)
        self._reading = self._behind = True

    def drop(self, rows: Sequence[int]) -> None:
        self.runner.drop(rows)
        if self.lookup is not None:
            self.lookup.drop(rows)

    def draft(self, root: Int[Tensor, "row"], sampler: Sampler, rng: RoundRng, limits: Sequence[int]) -> DraftTree:
        self._begun, self._drafting = perf_counter(), 0.0
        if self.pace is not None and self.pace.begin():
            limits = [0] * len(limits)
        pools = self._guessed(sampler, limits)
        fronts = [[0] if limit > 0 else [] for limit in limits]
        self._log_probs = []
        by_chains = self._chains is not None and self._chains[0].burst > 0 and sampler.sampling.only_scales
        self._behind |= self._by_calls and not by_chains  # the draft begins again
        self._by_calls = by_chains
        if self._chains is not None and by_chains:
            self._by_chains(*self._chains, pools[0], sampler, rng, limits[0])
        elif self._at_once is None or sampler.sampling.looks_back:
            self._descend(pools, fronts, sampler, rng, limits)
        elif any(fronts) and self._pays(above := _above(pools, fronts), 0):
            block, fan = self._at_once
            places = fan.along(sampler.draft(block.score_block(root, self.length), list).dense(), rng, 0)
            since = [len(pool.values) for pool in pools]
            for pool, row, limit, stops in zip(pools, places, limits, sampler.stops, strict=True):
                pool.numbers[0] = 0  # the only candidate that the runner has seen
                pool.fill(row[:limit], self.nodes, stops)
            self._learn_cost(pools, above, since, 0, perf_counter() - self._begun)
        self._pools, self._kept = pools, self._best(pools)
        if max(map(len, self._kept)) > 1:
            return self._planted(root.device, sampler.sampling.greedy)
        return NoDraft().draft(root, sampler, rng, limits)

    def _guessed(self, sampler: Sampler, limits: Sequence[int]) -> list[Pool]:
        """Pools with the roots, and what is guessed to follow them if it is worth showing to the target by itself: else it
        would only keep the draft from being asked."""
        pools = [Pool(text[-1]) for text in sampler.texts]
        if self.lookup is not None:
            guesses = self.lookup.guess(sampler, limits)
            if self.pace is None or self.pace.shows([guess.chances for guess in guesses]):
                for pool, guess in zip(pools, guesses, strict=True):
                    pool.graft(guess.tokens, guess.chances)
        return pools

    def _descend(
        self, pools: list[Pool], fronts: list[list[int]], sampler: Sampler, rng: RoundRng, limits: Sequence[int]
    ) -> None:
        """Candidates level by level, with a forward for each."""
        seen, began = 0, perf_counter()
        for depth in range(self.length):
            if not any(fronts) or not self._pays(above := _above(pools, fronts), depth):
                break
            since = [len(pool.values) for pool in pools]
            seen = self._expand(pools, fronts, seen, sampler, rng, depth)
            least = 0.0 if self.pace is None else self.pace.least_front(depth + 1)
            fronts = [
                pool.front(depth + 1, self.width, self.nodes, least) if depth + 1 < limit else []
                for pool, limit in zip(pools, limits, strict=True)
            ]
            for pool, front, stops in zip(pools, fronts, sampler.stops, strict=True):
                front[:] = [i for i in front if pool.tokens[i] not in stops]  # nothing follows the end of the text
            ended = perf_counter()
            self._learn_cost(pools, above, since, depth, ended - began)
            began = ended

    def _by_chains(
        self, runner: BurstRunner, fan: SharedFan, pool: Pool, sampler: Sampler, rng: RoundRng, limit: int
    ) -> None:
        """One row's candidates, several levels in each call: below the root, and then below whatever promises most."""
        seen, began, scale = 0, perf_counter(), 1.0 if sampler.sampling.greedy else 1.0 / sampler.sampling.temperature
        for call in range(self.length):
            candidate = pool.most_promising(self.nodes, limit, sampler.stops[0])
            if candidate is None or not self._pays(above := pool.unguessed(candidate), call):
                break
            since, depth = len(pool.values), pool.depths[candidate]
            noise = rng.shared(depth, runner.burst, sampler.vocab)
            path = [pool.numbers[i] for i in pool.above(candidate)]
            chosen, scores = runner.draft_burst(pool.tokens[candidate], path, None if noise is None else noise[0], scale)
            [fans] = fan.along(sampler.draft(scores.unsqueeze(0), list).dense(), rng, depth)
            pool.chain(candidate, seen, fans[: limit - depth], chosen, sampler.stops[0])
            seen += len(chosen)
            ended = perf_counter()
            through = candidate in pool.guessed  # then the chain may have run on below the guess
            self._learn_cost([pool], 0.0 if through else above, [since], call, ended - began)
            began = ended

    def _pays(self, above: float, depth: int) -> bool:
        return self.pace is None or self.pace.worth(depth, above)

    def _learn_cost(self, pools: list[Pool], above: float, since: list[int], depth: int, seconds: float) -> None:
        self._drafting += seconds
        if self.pace is not None:
            new = [pool.fresh(first, self.nodes) for pool, first in zip(pools, since, strict=True)]
            gain = _worth(pools, new, self.pace.least_value())
            self.pace.grew(depth, above, gain, None if self._behind else seconds)
        self._behind = False

    def _expand(
        self, pools: list[Pool], fronts: list[list[int]], seen: int, sampler: Sampler, rng: RoundRng, depth: int
    ) -> int:
        """Score the fronts and put their best children into the pools; returns the nodes that the runner has seen."""
        n, device = max(map(len, fronts)), self.runner.device
        ancestors = lineage(pools, fronts, seen).to(device)
        tokens = [
            [pool.tokens[i] for i in front] + [0] * (n - len(front)) for pool, front in zip(pools, fronts, strict=True)
        ]
        depths = torch.full((len(pools), n), depth, device=device)
        logits = self.runner.extend(torch.tensor(tokens, device=device), depths, ancestors).logits
        log_probs = sampler.draft(logits, lambda: prefixes(pools, fronts))
        self._log_probs.append(log_probs)
        logp, missing = log_probs.dense(), [[i >= len(front) for i in range(n)] for front in fronts]
        if any(map(any, missing)):
            logp = logp.masked_fill(torch.tensor(missing, device=device).unsqueeze(-1), -torch.inf)
        first = 1 + self.width * (depth - 1) if depth else 0  # of slots of noise; ``seen`` hangs on the neighbours
        grown = self.fan.expand(logp, rng, depth, first)
        for pool, front, children in zip(pools, fronts, grown, strict=True):
            for candidate, its in zip(front, children, strict=False):  # behind the front stand places without a node
                if its.tokens:
                    pool.add(candidate, its)
        return seen + n

    def _best(self, pools: list[Pool]) -> list[list[int]]:
        """What is shown to the target."""
        if all(len(pool.values) == 1 for pool in pools):
            return [[0]] * len(pools)
        if self.pace is None:
            return [pool.best(self.nodes) for pool in pools]
        values = [sorted((math.exp(value) for value in pool.values[1:]), reverse=True) for pool in pools]
        size = self.pace.size([math.fsum(nth) / len(pools) for nth in zip_longest(*values, fillvalue=0.0)][: self.nodes])
        return [pool.best(size) for pool in pools]

    def _planted(self, device: torch.device, greedy: bool) -> DraftTree:
        tree = planes(self._pools, self._kept, device)
        keeps_log_probs = self.draw in DRAWS_WITH_LOG_PROBS and not greedy and bool(self._log_probs)
        return DraftTree(
            tokens=tree.tokens,
            parents=tree.parents,
            depths=tree.depths,
            valid=tree.valid,
            ancestors=tree.ancestors,
            branching=self.fan.count + (self.lookup is not None),
            draw=Draw.POINT_MASS if greedy else self.draw,
            draft_log_probs=self._kept_log_probs(tree) if keeps_log_probs else None,
        )

    def _kept_log_probs(self, tree: Planes) -> LogProbs:
        """The distributions at the kept nodes up to the last one with children; any distribution stands at those without."""
        inner = 1 + int(tree.parents.max())  # host sync
        numbers = [
            [pool.numbers.get(candidate, 0) for candidate in (kept + [0] * inner)[:inner]]
            for pool, kept in zip(self._pools, self._kept, strict=True)
        ]
        return LogProbs.joined(self._log_probs).pick(torch.tensor(numbers, device=tree.tokens.device))

    def commit(self, this_round: Round) -> None:
        seen, rest = [], []
        for path, came, pool, kept in zip(this_round.paths, this_round.tokens, self._pools, self._kept, strict=True):
            chain = [0, *path]
            numbers = [pool.numbers.get(kept[node], -1) for node in chain]
            seen.append([number for number in numbers if number >= 0])
            rest.append([pool.tokens[kept[node]] for node, number in zip(chain, numbers, strict=True) if number < 0])
            for node, choice in zip(chain, came, strict=True):
                if (grown := pool.grown.get(kept[node])) is not None:
                    self.fan.learn(grown, choice)
        self.runner.commit(seen, rest, this_round.hidden)
        if self.lookup is not None:
            self.lookup.learn(this_round.tokens)
        if self.pace is not None and not self._reading:
            tree, new_tokens = this_round.tree, sum(map(len, this_round.tokens))
            expected = _worth(self._pools, [kept[1:] for kept in self._kept], 0.0)
            self.pace.finished(tree.size, expected, new_tokens / tree.rows, self._drafting, perf_counter() - self._begun)
        self._reading, self._behind = False, not any(pool.numbers for pool in self._pools)
        self._log_probs = []  # tensors of the size of the vocabulary, which must not outlive the text


def _worth(pools: list[Pool], fresh: list[list[int]], less: float) -> float:
    """Tokens that these candidates are expected to bring beyond ``less`` each, on average over the rows."""
    values = (math.exp(pool.values[i]) for pool, new in zip(pools, fresh, strict=True) for i in new)
    return math.fsum(max(0.0, value - less) for value in values) / len(pools)


def _above(pools: list[Pool], fronts: list[list[int]]) -> float:
    """How probable it is that the text runs through the fronts and not where it is guessed to, on average over the rows."""
    return math.fsum(pool.unguessed(i) for pool, front in zip(pools, fronts, strict=True) for i in front) / len(pools)
