"""One row of one round as a record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import final

import torch

from draftwood.core.draws import Draw
from draftwood.core.rounds import Piece
from draftwood.core.tree import DraftTree
from draftwood.sampling.counter_rng import CounterRoundRng, Stream
from draftwood.trace.arrays import RoundArrays
from draftwood.trace.records import Choice, Distribution, Node, Part, Trace, TracedRound, Trial, Verdict
from draftwood.trace.walks import WALKS, Walk


@final
class RowRecord:
    """Makes a row's record, with the ``most`` likeliest tokens of distributions; ``rng`` is at the root's position."""

    def __init__(self, arrays: RoundArrays, row: int, head: Trace, most: int, rng: CounterRoundRng) -> None:
        self._arrays, self._row, self._head, self._most, self._rng = arrays, row, head, most, rng
        self._tree: DraftTree = arrays.made.tree
        self._path = arrays.made.paths[row]
        self._real = [node for node, real in enumerate(self._tree.host.valid[row]) if real]
        self._number = {node: i for i, node in enumerate(self._real)}
        self._target = arrays.target_distributions(row, most)
        self._draft = arrays.draft_distributions(row, most)
        self._shared = self._noise()

    def make(self, piece: Piece, *, number: int, position: int, parts: list[Part], end: float) -> TracedRound:
        """The record of a piece; the other arguments are fields of these names."""
        arrays, row, verifier = self._arrays, self._row, self._head.verifier
        last, trials, walk = self._target[self._path[-1] if self._path else 0], list[Trial](), None
        if verifier in WALKS:
            walk = WALKS[verifier](arrays, row, self._path, self._most)
            trials = self._trials(walk)
            last = last if walk.last is None else arrays.distribution(walk.last, self._most)
        tree = self._tree
        return TracedRound(
            number=number,
            position=position,
            draw=tree.draw.value,
            nodes=self._nodes(walk),
            trials=trials,
            choices=[] if walk else self._choices(),
            path=[self._number[node] for node in self._path],
            next_token=arrays.made.tokens[row][-1],
            next_from=last,
            next_is_residual=walk is not None and walk.last is not None,
            tokens=list(piece.tokens),
            text=piece.text,
            parts=parts,
            seconds=dict(arrays.made.seconds),
            end=end,
            stop=tree.stop,
            uniform=None if self._greedy or not walk else self._rng.uniform(Stream.TOKEN)[0],
            path_uniform=self._path_uniform(),
        )

    @property
    def _greedy(self) -> bool:
        return self._head.temperature == 0

    def _path_uniform(self) -> float | None:
        if self._head.verifier != "traversal" or self._greedy:
            return None
        return self._rng.uniform(Stream.PATH)[0]

    def _nodes(self, walk: Walk | None) -> list[Node]:
        tree, row, children = self._tree, self._row, self._tree.children[self._row]
        tokens, parents, _ = (part[row] for part in tree.host)
        verdicts, noise = self._verdicts(walk), self._shared
        target = self._arrays.target_probs(row)
        draft: Sequence[float | None] = self._arrays.draft_probs(row) if self._draft else [None] * tree.size
        ranks = {child: rank for below in children for rank, child in enumerate(below)}
        depths, shared = [0] * tree.size, tree.draw is Draw.SHARED_NOISE
        nodes = []
        for node in self._real:
            depths[node] = depths[parents[node]] + 1 if node else 0
            nodes.append(
                Node(
                    token=tokens[node],
                    parent=self._number[parents[node]] if node else None,
                    depth=depths[node],
                    rank=ranks.get(node, 0),
                    target_prob=target[node] if node else None,
                    draft_prob=draft[node] if node else None,
                    verdict=verdicts.get(node, "not tried"),
                    target=self._target[node],
                    draft=self._draft[node] if children[node] and node < len(self._draft) else None,
                    noise=noise[depths[node] - 1][tokens[node]] if noise and shared and node else None,
                    certain=bool(node) and tree.draw is Draw.POINT_MASS,
                )
            )
        return nodes

    def _verdicts(self, walk: Walk | None) -> dict[int, Verdict]:
        children = self._tree.children[self._row]
        looked = [t.node for t in walk.tests] if walk else chain.from_iterable(children[n] for n in (0, *self._path))
        found: dict[int, Verdict] = dict.fromkeys(looked, "rejected")
        found.update(dict.fromkeys(self._path, "accepted"))
        found[0] = "root"
        return found

    def _noise(self) -> list[dict[int, float]] | None:
        """Shared noise of drafted tokens and of those on the path, by depth below the root; None without."""
        if self._head.verifier != "coupled" or self._greedy:
            return None
        shared = self._tree.draw is Draw.SHARED_NOISE
        own = {self._tree.host.tokens[self._row][node] for node in self._real[1:]} if shared else set[int]()
        wanted = sorted(own.union(self._arrays.made.tokens[self._row]))
        count = max(self._tree.max_depth if shared else 0, len(self._path) + 1)
        found = self._rng.shared(
            0, count, self._arrays.made.target.vocab, torch.tensor(wanted, device=self._arrays.target.device)
        )
        assert found is not None
        return [dict(zip(wanted, line, strict=True)) for line in found[0].tolist()]

    def _choices(self) -> list[Choice]:
        """The target's own tokens along the path."""
        noise, beta = self._shared, self._head.beta
        near = None if beta is None else self._arrays.target_distributions(self._row, beta)
        chosen, choices = self._arrays.made.tokens[self._row], []
        for depth, node in enumerate((0, *self._path)):
            kept = [chosen[depth]] if near is None else _tolerated(near[node], self._head.tau or 0.0)
            token = kept[0]
            given = None if noise is None else noise[depth][token]
            choices.append(Choice(node=self._number[node], token=token, noise=given, kept=kept))
        return choices

    def _trials(self, walk: Walk) -> list[Trial]:
        """The tests with the numbers of the record's nodes, what their chances were compared with, and the outcome."""
        return [
            replace(test, node=self._number[test.node], uniform=uniform, accepted=test.node in self._path)
            for test, uniform in zip(walk.tests, self._uniforms(walk), strict=True)
        ]

    def _uniforms(self, walk: Walk) -> list[float | None]:
        """The number that each test's chance is compared with."""
        if self._head.verifier != "traversal":
            return [self._rng.uniform(Stream.ACCEPT, test.node)[0] for test in walk.tests]
        if (point := self._path_uniform()) is None:
            return [None] * len(walk.tests)
        uniforms: list[float | None] = []
        begin, going = 0.0, 1.0  # the tests before took [0, begin) of the number's range
        for test in walk.tests:
            uniforms.append(min(1.0, max(0.0, (point - begin) / going)) if going > 0 else 0.0)
            begin, going = begin + test.chance * going, going * (1.0 - test.chance)
        return uniforms


def _tolerated(best: Distribution, tau: float) -> list[int]:
    """Of these tokens, those within ``tau`` nats of the best one."""
    least = best.probs[0] * math.exp(-tau)
    return [token for token, prob in zip(best.tokens, best.probs, strict=True) if prob >= least]
