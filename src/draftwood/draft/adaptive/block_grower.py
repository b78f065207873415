"""Grows candidates with a drafter that scores a block: the native library adds all levels in one call.

A level takes tens of microseconds there. In Python it takes hundreds, as the forwards have emptied the caches. The rules are
those of :class:`draftwood.draft.adaptive.growers.LevelGrower`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import addressof, byref
from itertools import zip_longest
from typing import Any, Final, TypeAlias, final

import numpy as np
import torch

from draftwood.core.log_probs import Pending
from draftwood.core.scores import Scores
from draftwood.draft.adaptive.draft_round import DraftRound, TreeShape
from draftwood.draft.adaptive.expand import GumbelExpander, children_of
from draftwood.native.library import TreeCandidate, TreeExpansion, TreeLevel, address, array_address, library
from draftwood.native.sampling import cuts_of
from draftwood.runners.hidden.runner import HiddenBlockRunner
from draftwood.runners.native.memory import succeed
from draftwood.runners.protocols import PerNode
from draftwood.sampling.counter_rng import CounterRoundRng
from draftwood.sampling.counters import token_bases

Below: TypeAlias = Callable[[PerNode, PerNode], Scores]
"""Scores after nodes of a block, given their tokens and depths."""
_GUESSED: Final = 32  # initial capacity of a row for its root and guessed tokens


@final
class BlockGrower:
    """Adds all levels of a round's trees in one call.

    Args:
        runner: the drafter.
        expander: its model of acceptance gives the children their probabilities.
        shape: the largest tree, which is no deeper than the block.
    """

    def __init__(self, runner: HiddenBlockRunner, expander: GumbelExpander, shape: TreeShape) -> None:
        self._runner, self._expander, self._shape = runner, expander, shape
        self._expansion = TreeExpansion()
        self._arrays: dict[str, Any] = {}

    def takes(self, draft: DraftRound) -> bool:
        """Whether the library can grow these trees: the engine scores a block of every row, the noise is that of counters,
        and nothing but a temperature changes the scores."""
        return self._runner.ready and draft.sampler.only_scales and isinstance(draft.rng, CounterRoundRng)

    def expand(self, draft: DraftRound) -> None:
        """Grow every row's tree within the row's limit and the budget. The caller has decided that the first level pays.

        Raises:
            CacheError: memory does not suffice, or the library refuses a size.
        """
        self._reserve(len(draft.trees), max(len(tree.tokens) for tree in draft.trees))
        below = self._runner.give_block(self._expansion, draft.root)
        alive = self._give(draft)
        drafted = succeed(library().grow(byref(self._expansion)))
        del alive
        levels = self._arrays["levels"][: drafted + 1].tolist()
        lines = len(draft.trees) * sum(nodes for _, nodes, _, _ in levels[:-1])
        self._take_trees(draft, lines)
        self._take_levels(draft, levels)
        draft.distributions = [lambda: _pending(draft, below).settled]
        if np.isnan(self._arrays["likeliest"][:lines]).any():
            _pending(draft, below).look()

    def _reserve(self, rows: int, room: int) -> None:
        """Allocate for ``rows`` trees that hold at most ``room`` candidates before they grow."""
        expansion, (nodes, width, depths), count = self._expansion, self._shape, self._expander.count
        if rows == expansion.rows and room + depths * width * count <= expansion.most:
            return
        most, lines = max(_GUESSED, room) + depths * width * count, rows * (1 + width * (depths - 1))
        arrays = {
            "candidates": np.zeros((rows, most), TreeCandidate),
            "counts": np.zeros(rows, np.int64),
            "limits": np.zeros(rows, np.int64),
            "temperatures": np.ones(rows, np.float32),
            "weights": np.zeros(len(self._expander.model.weights)),
            "gains": np.zeros(depths + 1),
            "prices": np.zeros(width + 1),
            "ranked": np.zeros((rows, nodes + 1), np.int64),
            "levels": np.zeros(depths + 1, TreeLevel),
            "best_values": np.zeros((depths, nodes)),
            "tokens": np.zeros((lines, count), np.int64),
            "values": np.zeros((lines, count), np.float32),
            "likeliest": np.zeros(lines, np.float32),
            "chances": np.zeros((lines, count)),
        }
        sizes = {"rows": rows, "most": most, "nodes": nodes, "width": width, "depths": depths, "count": count}
        pointers = {name: array.ctypes.data for name, array in arrays.items()}
        self._expansion, self._arrays = TreeExpansion(**sizes, **pointers), arrays

    def _give(self, draft: DraftRound) -> list[Any]:
        """Give the library the trees so far, and how far they grow; returns what must stay alive until they have grown."""
        expansion, arrays, depths = self._expansion, self._arrays, self._shape.depth
        sampler, budget = draft.sampler, draft.budget
        assert isinstance(draft.rng, CounterRoundRng)
        assert len(sampler.rows) == len(draft.limits) == expansion.rows
        for row, tree in enumerate(draft.trees):
            arrays["counts"][row] = len(tree.tokens)
            guessed = [tree.guessed[i][1] if i in tree.guessed else 0.0 for i in range(len(tree.tokens))]
            columns = tree.tokens, tree.parents, tree.depths, [-1] * len(guessed), tree.log_probs, guessed
            arrays["candidates"][row, : len(guessed)] = [*zip(*columns, strict=True)]
        arrays["limits"][:] = draft.limits
        arrays["temperatures"][:] = [row.sampling.temperature or 1.0 for row in sampler.rows]
        arrays["weights"][:] = self._expander.model.weights
        arrays["gains"][:] = [budget.gain(depth) for depth in range(depths + 1)]
        arrays["prices"][1:] = [budget.price(nodes) for nodes in range(1, expansion.width + 1)]
        most = max(len(row.stops) for row in sampler.rows)
        stops = np.array([[*row.stops, *[-1] * (most - len(row.stops))] for row in sampler.rows], np.int64)
        keys, bases = draft.rng.shared_keys(0, depths), token_bases(sampler.vocab, self._runner.device)
        keys = None if keys is None else np.ascontiguousarray(keys)
        cuts = cuts_of(tuple(sampler.cuts), expansion.vocab)
        expansion.stops, expansion.stops_count = array_address(stops, np.int64, expansion.rows, most), most
        expansion.keys = None if keys is None else array_address(keys, np.int64, expansion.rows, depths)
        expansion.bases, expansion.bases_count = address(bases, torch.long, len(bases)), len(bases)
        expansion.cuts = addressof(cuts)
        return [stops, keys, bases, cuts]

    def _take_trees(self, draft: DraftRound, lines: int) -> None:
        """Take the trees, whose candidates have children in the first ``lines`` lines."""
        nodes = (self._arrays[name][:lines].tolist() for name in ("tokens", "chances", "values", "likeliest"))
        children = [children_of(*node) for node in zip(*nodes, strict=True)]
        grown = zip(draft.trees, self._arrays["candidates"], self._arrays["counts"].tolist(), strict=True)
        for tree, candidates, count in grown:
            parts = map(list, zip(*candidates[:count].tolist(), strict=True))
            tree.tokens, tree.parents, tree.depths, of_children, tree.log_probs, _ = parts
            expanded = [candidate for candidate, line in enumerate(of_children) if line >= 0]
            tree.numbers = {candidate: number for number, candidate in enumerate(expanded)}
            tree.children = {candidate: children[of_children[candidate]] for candidate in expanded}
        draft.ranked = [[i for i in ranked if i >= 0] for ranked in self._arrays["ranked"].tolist()]

    def _take_levels(self, draft: DraftRound, levels: Sequence[tuple[float, int, int, float]]) -> None:
        """Report the levels to the budget, as if they had ended one after the other until now."""
        *drafted, (above, nodes, _, _) = levels
        now, last = draft.clock(), drafted[-1][3]
        for depth, (probability, width, best, ended) in enumerate(drafted):
            draft.values = self._arrays["best_values"][depth, :best].tolist()
            draft.end_level(depth, probability, width, now - last + ended)
        self._runner.forward_seconds += last
        draft.stop = "depth limit"
        if len(drafted) < self._shape.depth:
            draft.stop = draft.no_frontier(len(drafted))
            if nodes:
                draft.stop = "another level does not pay"
                draft.budget.refuse_level(len(drafted), above)


def _pending(draft: DraftRound, below: Below) -> Pending:
    """The draft's scores at the nodes that it has scored, of which a row may have fewer."""
    tokens = [[tree.tokens[i] for i in tree.numbers] for tree in draft.trees]
    depths = [[tree.depths[i] for i in tree.numbers] for tree in draft.trees]
    scores = below(*(np.array([*zip_longest(*rows, fillvalue=0)]).T for rows in (tokens, depths)))
    return draft.sampler.draft(scores.logits, lambda: [], scores.tokens)
